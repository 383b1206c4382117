"""The guided family on models that are not linear and Gaussian.

One normal law is a projection: on most rows it is some percent of a standard deviation away from the exact filter. What
it must equal is the recursion that matches moments, here by quadrature with thousands of nodes. How far that one is
from the exact filter is a property of the model, and stated where it matters.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats

import backstream as bs
from backstream.estimators import LogScore
from backstream.families import Guided, GuidedMixture
from backstream.families.backward import filter_states
from backstream.families.guided import family
from backstream.models import Growth, LinearGaussian, StateSpaceModel
from guided_reference import grid_filter, moment_matching
from toys import Censored, Toy

norm = scipy.stats.norm


def walk(x, u):
    return dist.Normal(0.95 * x, 0.3).to_event(1)


LAWS = {
    "volatility": (
        lambda x, u: dist.Normal(0.0, jnp.exp(0.5 * x)).to_event(1),
        lambda x, y: norm.logpdf(y, 0.0, np.exp(0.5 * x)),
    ),
    "Student-t level": (
        lambda x, u: dist.StudentT(3.0, x, 0.5).to_event(1),
        lambda x, y: scipy.stats.t.logpdf(y, 3.0, x, 0.5),
    ),
    "counts": (
        lambda x, u: dist.Poisson(jnp.exp(x)).to_event(1),
        lambda x, y: scipy.stats.poisson.logpmf(y, np.exp(x)),
    ),
    "binary": (
        lambda x, u: dist.Bernoulli(logits=2 * x).to_event(1),
        lambda x, y: -np.logaddexp(0.0, -(2 * y - 1) * 2 * x),
    ),
    "angle": (
        lambda x, u: dist.VonMises(x, 4.0).to_event(1),
        lambda x, y: scipy.stats.vonmises.logpdf(y, 4.0, x),
    ),
    "censored, a law of the user's own": (
        lambda x, u: Censored(x[0], 0.5),
        lambda x, y: np.where(y > 0, norm.logpdf(y, x, 0.5), norm.logcdf(-x / 0.5)),
    ),
}


def run(p, q, ys, us=None):
    """States after each row, by a program of its own: what a test replaces is not found in a cache."""
    return jax.jit(lambda ys, us: filter_states(p, q, ys, us))(jnp.asarray(ys), us)


def matched(log_emission, ys, **other):
    return moment_matching(0.95, 0.3, log_emission, ys, **other)


def distance(states, reference, rows=slice(None)):
    """The largest of means and standard deviations, in standard deviations of the reference."""
    mean, scale = reference.mean[rows], reference.scale[rows]
    apart = np.abs((states.mean[rows, 0] - mean) / scale), np.abs(states.factor[rows, 0, 0] / scale - 1)
    return np.max(apart)


@pytest.mark.parametrize("name", LAWS)
def test_one_state_is_the_recursion_that_matches_moments(name):
    """Filtered and smoothed means and scales over 50 rows with a gap, and the log score of each row: to 0.002, the
    tails that a grid of 41 nodes cuts off a heavy-tailed posterior."""
    emit, log_emission = LAWS[name]
    p = Toy(emit, walk, scale=0.5)
    ys = np.array(p.simulate(50, key=jax.random.key(3))[1])
    ys[20:24] = np.nan
    q = Guided.from_model(p)
    expected = matched(log_emission, ys[:, 0], prior=(0.0, 0.5))
    states = run(p, q, ys)
    assert distance(states, expected) < 0.002
    np.testing.assert_allclose(jax.vmap(q.log_score)(states), expected.log_scores, atol=0.002)
    smoothed = bs.smooth(p, q, ys)
    assert np.abs((smoothed.mean[:, 0] - expected.smooth_mean) / expected.smooth_scale).max() < 0.002
    assert np.abs(np.sqrt(smoothed.cov[:, 0, 0]) / expected.smooth_scale - 1).max() < 0.002


# ---- units -----------------------------------------------------------------------------------------------------------
def in_units(name, s):
    """A model whose states, and observations where they are of the same kind, are s times as large."""
    if name == "two states, sine":

        def move(x, u):
            return dist.Normal(s * jnp.sin(x / s) + 0.5 * x[::-1], 0.3 * s).to_event(1)

        return Toy(lambda x, u: dist.StudentT(3.0, x, 0.4 * s).to_event(1), move, d=2, scale=s), s

    def move(x, u):
        return dist.Normal(0.9 * x, 0.3 * s).to_event(1)

    emit = {
        "normal": lambda x, u: dist.Normal(x, 0.4 * s).to_event(1),
        "Student-t": lambda x, u: dist.StudentT(3.0, x, 0.4 * s).to_event(1),
        "counts": lambda x, u: dist.Poisson(jnp.exp(x / s)).to_event(1),
        "counts of four states": lambda x, u: dist.Poisson(jnp.exp(MIX @ x / s)).to_event(1),
    }[name]
    return Toy(emit, move, d=4 if "four" in name else 1, scale=s), s if name in ("normal", "Student-t") else 1.0


MIX = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


@pytest.mark.parametrize("name", ["normal", "Student-t", "counts", "counts of four states", "two states, sine"])
def test_units_do_not_matter_in_single_precision(name):
    """States of 10⁻⁶ and of 10⁶: the same to 10⁻³ posterior standard deviations."""
    results = []
    with jax.enable_x64(False):
        first, _ = in_units(name, 1.0)
        ys = np.array(first.simulate(40, key=jax.random.key(0))[1])
        for s in (1.0, 1e-6, 1e6):
            p, unit = in_units(name, np.float32(s))
            states = run(p, Guided.from_model(p), ys * np.float32(unit))
            assert states.mean.dtype == states.factor.dtype == jnp.float32
            scale = np.sqrt((np.asarray(states.factor, float) ** 2).sum(2))
            results.append((np.asarray(states.mean, float) / s, scale / s))
    for mean, scale in results[1:]:
        assert np.abs((mean - results[0][0]) / results[0][1]).max() < 1e-3
        assert np.abs(scale / results[0][1] - 1).max() < 1e-3


# ---- rows that nobody expects ----------------------------------------------------------------------------------------
OUTLIERS = {
    "Student-t level": [(30.0, 1e3), (-30.0, -1e6)],
    "counts": [(1e4, 1e3), (1e4, 1e6)],
    "volatility": [(1e4, 1e3), (1e4, 1e6)],
}


@pytest.mark.parametrize("name", OUTLIERS)
def test_an_outlier_is_survived(name):
    """A first row far from the prior, and an outlier in row 10. All is finite, and each row is the recursion that
    matches moments, to 0.005: with such rows grids have a longer way to the mass."""
    emit, log_emission = LAWS[name]
    p = Toy(emit, walk)
    q = Guided.from_model(p)
    program = jax.jit(lambda ys: filter_states(p, q, ys))
    for first, outlier in OUTLIERS[name]:
        ys = np.array(p.simulate(41, key=jax.random.key(4))[1])
        ys[0], ys[10] = first, outlier
        states = program(jnp.asarray(ys))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states)) and not states.failed.any()
        assert distance(states, matched(log_emission, ys[:, 0])) < 0.005


def test_after_an_outlier_the_filter_is_back_as_soon_as_the_exact_one():
    """A count of 1 000 where 1 is usual. Thirty rows later 0.95³⁰ of the way that the state went is left. From then on
    the distance to the exact filter is what one normal law costs on any row: 0.1 standard deviations."""
    emit, log_emission = LAWS["counts"]
    p = Toy(emit, walk)
    ys = np.array(p.simulate(45, key=jax.random.key(4))[1])
    ys[5] = 1e3
    _, (mean, scale), _, _ = grid_filter(
        norm.logpdf,
        lambda before, after, t: norm.logpdf(after, 0.95 * before, 0.3),
        lambda x, y, t: log_emission(x, y),
        ys[:, 0],
        -8.0,
        12.0,
        801,
    )
    states = run(p, Guided.from_model(p), ys)
    assert np.abs((states.mean[35:, 0] - mean[35:]) / scale[35:]).max() < 0.1


def test_a_gap_of_a_thousand_rows():
    """The law returns to the stationary one, and the rows after it are read as if it were the prior."""
    emit, log_emission = LAWS["counts"]
    p = Toy(emit, walk)
    ys = np.full((1020, 1), np.nan)
    ys[:10] = ys[-10:] = np.array(p.simulate(10, key=jax.random.key(5))[1])
    states = run(p, Guided.from_model(p), ys)
    stationary = 0.3 / np.sqrt(1 - 0.95**2)
    np.testing.assert_allclose(states.mean[1009], 0, atol=1e-10)
    np.testing.assert_allclose(states.factor[1009, 0, 0], stationary, rtol=1e-9)
    after = matched(log_emission, ys[-10:, 0], prior=(0.0, stationary))
    assert distance(jax.tree.map(lambda leaf: leaf[-10:], states), after) < 0.002


# ---- inputs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["state", "observation"])
def test_a_known_input_is_as_good_as_its_effect_taken_out(name):
    """Pushes of up to 300 standard deviations of the noise, none in the first row. The state minus the path that they
    drive is the state without them; so are rows whose level they shift. To rounding, and to where a grid ends."""
    us = np.where(np.arange(40) % 7 == 3, 90.0, -1.0) * (np.arange(40) > 0)
    level, drives = LAWS["Student-t level"][0], name == "state"
    pushed = Toy(
        lambda x, u: level(x if drives else x + u, None),
        lambda x, u: dist.Normal(0.95 * x + (u if drives else 0.0), 0.3).to_event(1),
    )
    plain = Toy(level, walk)
    rows = np.array(plain.simulate(40, key=jax.random.key(6))[1])
    path = np.zeros(40)
    for t in range(1, 40):
        path[t] = 0.95 * path[t - 1] + us[t]
    shift = path if drives else us
    q = Guided.from_model(pushed, jnp.asarray(us[0]))
    found = run(pushed, q, rows + shift[:, None], jnp.asarray(us))
    expected = run(plain, Guided.from_model(plain), rows)
    moved = path if drives else np.zeros(40)
    np.testing.assert_allclose(found.mean[:, 0] - moved, expected.mean[:, 0], atol=1e-9)
    np.testing.assert_allclose(found.factor, expected.factor, atol=1e-9)
    np.testing.assert_allclose(found.log_score, expected.log_score, atol=1e-9)


def test_a_row_that_cannot_be_leaves_the_prediction():
    p = Toy(lambda x, u: dist.Uniform(x - 1, x + 1).to_event(1), walk)
    q = Guided.from_model(p)
    state = q.update(p, q.update(p, q.init(p), jnp.array([0.2])), jnp.array([1e9]))
    before = q.update(p, q.init(p), jnp.array([0.2]))
    missing = q.update(p, before, jnp.array([jnp.nan]))
    assert state.failed and q.log_score(state) == -jnp.inf and not missing.failed
    np.testing.assert_array_equal(state.mean, missing.mean)
    np.testing.assert_array_equal(state.factor, missing.factor)


# ---- cutting ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_cutting_where_the_transition_bends_helps(monkeypatch):
    """x/2 + 25 x/(1 + x²) + 8 cos(1.2 t), seen as x²/20: nearer to the exact means than the moments alone, and higher
    log scores. One fixed seed of 60 rows."""
    p, us = Growth(), jnp.arange(60.0)
    ys = np.array(p.simulate(60, us, key=jax.random.key(0))[1])
    q = Guided.from_model(p, us[0])

    def moved(x, t):
        return np.asarray(jax.vmap(lambda x: p.transition(x[None], float(t)).mean[0])(x.ravel())).reshape(x.shape)

    prior, noise, seen = (
        p.prior(us[0]),
        p.transition(jnp.zeros(1), 1.0).variance,
        p.emission(jnp.zeros(1), 1.0).variance,
    )
    _, (mean, _), _, scores = grid_filter(
        lambda x: norm.logpdf(x, *(float(part[0]) for part in (prior.mean, np.sqrt(prior.variance)))),
        lambda before, after, t: norm.logpdf(after, moved(before, t), np.sqrt(float(noise[0]))),
        lambda x, y, t: norm.logpdf(
            y, np.asarray(jax.vmap(lambda x: p.emission(x[None]).mean[0])(x)), np.sqrt(float(seen[0]))
        ),
        ys[:, 0],
        -45.0,
        45.0,
        901,
    )
    errors, losses = [], []
    for least in (family.LEAST_BEND, np.inf):
        monkeypatch.setattr(family, "LEAST_BEND", least)
        states = run(p, q, ys, us)
        errors.append(np.sqrt(np.mean((states.mean[:, 0] - mean) ** 2)))
        losses.append(scores.mean() - np.mean(jax.vmap(q.log_score)(states)))
    assert errors[0] < 0.7 * errors[1] and losses[0] < 0.7 * losses[1], (errors, losses)


# ---- derivatives -----------------------------------------------------------------------------------------------------
class Level(StateSpaceModel):
    """One or several levels with parameters, seen through columns of a kind."""

    keep: jax.Array
    noise: jax.Array
    mix: np.ndarray
    kind: str

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(self.mix.shape[1]), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.keep * x, jnp.exp(self.noise)).to_event(1)

    def emission(self, x, u=None):
        s = self.mix @ x
        laws = {
            "normal": dist.Normal(s, 0.5),
            "counts": dist.Poisson(jnp.exp(s)),
            "student": dist.StudentT(3.0, s, 0.5),
        }
        return laws[self.kind].to_event(1)


ONE, FIVE = np.ones((1, 1)), np.random.default_rng(1).standard_normal((5, 4))


@pytest.mark.parametrize(
    ("kind", "mix", "tolerance"),
    [("normal", ONE, 1e-6), ("counts", ONE, 2e-3), ("counts", FIVE, 1e-2)],
    ids=["closed", "one grid", "propagation"],
)
def test_the_gradient_of_the_log_score_is_that_of_differences(kind, mix, tolerance):
    """In λ and in both parameters, over 12 rows, relative to the largest. Closed forms are exact. A grid is frozen
    where it was found, and cuts off a tail of some 10⁻⁴. The rule for propagation is that of one more sweep: 1 %."""
    from backstream.estimators import Scan

    p = Level(jnp.asarray(0.9), jnp.asarray(-1.0), mix, kind)
    ys = p.simulate(12, key=jax.random.key(0))[1]
    q = Guided.from_model(p)

    @jax.jit
    def estimate(keep, noise, inflation):
        model = Level(keep, noise, mix, kind)
        family = Guided(q.plan, inflation)
        found = Scan(LogScore(learn_model=True))(model, family, ys, key=jax.random.key(0))
        return found.elbo, jnp.stack(
            [found.model_gradient.keep, found.model_gradient.noise, found.gradient.log_inflation]
        )

    at = np.array([0.9, -1.0, 0.2])
    _, gradient = estimate(*at)
    step, expected = 1e-4, []
    for i in range(3):
        ends = [estimate(*(at + sign * step * np.eye(3)[i]))[0] for sign in (-1, 1)]
        expected.append((ends[1] - ends[0]) / (2 * step))
    assert np.abs(gradient - np.array(expected)).max() < tolerance * np.abs(expected).max(), (gradient, expected)


def test_lambda_multiplies_the_noise():
    """A missing row of a linear Gaussian model: the variance is a² v + e^λ Q, for one component and for several."""
    one = jnp.ones(1)
    p = LinearGaussian(0 * one, one, 0.8 * one, one, 0.5 * one, 0.7 * one)
    for made in (Guided.from_model(p), GuidedMixture.from_model(p, components=2)):
        q = eqx.tree_at(lambda q: q.log_inflation, made, jnp.asarray(0.7))
        before = q.update(p, q.init(p), jnp.array([0.3]))
        after = q.update(p, before, jnp.array([jnp.nan]))
        expected = 0.64 * q.moments(before)[1] + np.exp(0.7) * 0.25
        np.testing.assert_allclose(q.moments(after)[1], expected, rtol=1e-6)
