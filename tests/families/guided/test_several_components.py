"""The guided family with several components, against dense sums and exact grids."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.families.backward import filter_states, sample_backward
from backstream.families.guided.components import Pieces
from backstream.families.guided.grids import SINGLE, Frame, fit
from backstream.families.guided.reduction import reduce
from backstream.families.guided.windows import fit_windows
from benchmarks.zoo.models import absolute_value, double_well, growth
from benchmarks.zoo.references.grid import Grid, grid_smoother
from toys import Toy


# ---- merging ---------------------------------------------------------------------------------------------------------
def some_pieces(n=7, d=2, seed=0):
    rng = np.random.default_rng(seed)
    factor = np.tril(rng.standard_normal((n, d, d))) * 0.3 + np.eye(d)
    return rng.random(n) * 0.01, 3 * rng.standard_normal((n, d)), factor


def merged_pair(a, b):
    (w, m, P), (v, n, Q) = a, b
    total = w + v
    mean = (w * m + v * n) / total
    cov = (w * P + v * Q) / total + w * v / total**2 * np.outer(m - n, m - n)
    return total, mean, cov


def runnalls(weights, means, factors, count):
    """One pair at a time, every pair looked at anew."""
    groups = [(w, m, F @ F.T) for w, m, F in zip(weights / weights.sum(), means, factors, strict=True)]

    def cost(a, b):
        w, _, P = merged_pair(a, b)
        return 0.5 * sum(s * g * np.linalg.slogdet(C)[1] for s, g, C in ((1, w, P), (-1, a[0], a[2]), (-1, b[0], b[2])))

    while len(groups) > count:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        i, j = min(pairs, key=lambda pair: cost(groups[pair[0]], groups[pair[1]]))
        merged = merged_pair(groups[i], groups[j])
        groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [merged]
    return sorted(groups, key=lambda g: g[0])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_merging_takes_the_cheapest_pair_each_time(d):
    weight, mean, factor = some_pieces(d=d)
    found = reduce(Pieces(*map(jnp.asarray, (np.log(weight), mean, factor))), 3)
    order = np.argsort(found.log_weight)
    expected = runnalls(weight, mean, factor, 3)
    np.testing.assert_allclose(np.exp(found.log_weight)[order] / weight.sum(), [w for w, _, _ in expected], rtol=1e-9)
    np.testing.assert_allclose(found.mean[order], [m for _, m, _ in expected], rtol=1e-9)
    covs = found.factor @ np.swapaxes(found.factor, 1, 2)
    np.testing.assert_allclose(covs[order], [P for _, _, P in expected], rtol=1e-9, atol=1e-12)


def test_pieces_without_weight_are_left_out():
    weight, mean, factor = some_pieces()
    weight[2] = 0.0
    pieces = Pieces(*map(jnp.asarray, (np.log(np.maximum(weight, 1e-300)), mean, factor)))
    kept = np.arange(7) != 2
    found, expected = reduce(pieces, 3), reduce(Pieces(*(leaf[kept] for leaf in pieces)), 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, expected)


def test_fewer_pieces_than_components_leave_empty_ones():
    """One piece has all the weight, so that nothing is left for two of three components."""
    _, mean, factor = some_pieces()
    log_weight = np.full(7, -1e3)
    log_weight[4] = 0.0
    found = reduce(Pieces(jnp.asarray(log_weight), jnp.asarray(mean), jnp.asarray(factor)), 3)
    assert np.isfinite(found.mean).all() and np.isfinite(found.factor).all()
    best = np.argmax(found.log_weight)
    np.testing.assert_allclose(found.mean[best], mean[4], rtol=1e-12)
    assert np.sort(found.log_weight)[1] < -20


# ---- windows ---------------------------------------------------------------------------------------------------------
def test_windows_find_both_modes_and_add_up_to_the_whole():
    """N(0, 1) seen as its square, with little noise: modes at ±1.2 and half the mass in each."""

    def density(w):
        return -0.5 * w[..., 0] ** 2 - 0.5 * ((w[..., 0] ** 2 - 1.44) / 0.2) ** 2

    found = fit_windows(jax.tree_util.Partial(density), 1, 1, float)
    x = np.linspace(-3, 3, 100_001)
    mass = np.exp(np.asarray(density(x[:, None]))) * (x[1] - x[0])
    assert np.asarray(found.mean).shape == (2, 1)
    np.testing.assert_allclose(np.logaddexp(*found.log_mass), np.log(mass.sum()), atol=1e-4)
    right = x > 0
    expected = (mass * x)[right].sum() / mass[right].sum()
    np.testing.assert_allclose(np.sort(found.mean[:, 0]), [-expected, expected], atol=1e-4)
    spread = np.sqrt((mass * (x - expected) ** 2)[right].sum() / mass[right].sum())
    np.testing.assert_allclose(np.abs(found.factor[:, 0, 0]), spread, rtol=1e-3)


def test_windows_of_one_mode_add_up_to_it():
    def density(w):
        return -0.5 * (w**2).sum(-1) - 0.3 * (w[..., 0] - w[..., 1] - 1) ** 4

    found = fit_windows(jax.tree_util.Partial(density), 1, 2, float)
    whole = fit(jax.tree_util.Partial(density), Frame(jnp.zeros((1, 2)), jnp.eye(2)[None]), SINGLE[2])
    weight = np.exp(found.log_mass - np.logaddexp(*found.log_mass))
    np.testing.assert_allclose(np.logaddexp(*found.log_mass), whole.log_mass[0], atol=1e-3)
    np.testing.assert_allclose(weight @ found.mean, whole.mean[0], atol=2e-3)


# ---- the family ------------------------------------------------------------------------------------------------------
def bent(x, u):
    return dist.Normal(jnp.sin(2 * x), 0.3).to_event(1)


def folded(x, u):
    return dist.Normal(jnp.abs(x), 0.4).to_event(1)


@pytest.mark.slow
def test_with_an_affine_transition_the_kernel_is_that_of_the_mixture():
    """q_{t-1|t}(x, ·) ∝ q_{t-1} m(·, x), at dense nodes."""
    p = Toy(folded)
    q = bs.GuidedMixture.from_model(p, components=3)
    before = q.update(p, q.init(p), jnp.array([0.9]))
    after = q.update(p, before, jnp.array([0.7]))
    nodes = jnp.linspace(-6, 6, 4001)[:, None]
    log_q = jax.vmap(q.marginal(before).log_prob)(nodes)
    for x in (-0.8, 0.1, 1.5):
        log_m = jax.vmap(lambda node, x=x: p.transition(node).log_prob(jnp.array([x])))(nodes)
        expected = jax.nn.softmax(log_q + log_m) / (nodes[1, 0] - nodes[0, 0])
        law = q.kernel(p, after).at(q.marginal(before), jnp.array([x]))
        np.testing.assert_allclose(np.exp(jax.vmap(law.log_prob)(nodes)), expected, atol=1e-6)


def test_a_linear_gaussian_model_is_filtered_exactly():
    p = bs.LinearGaussian.random(2, 3, key=jax.random.key(0))
    _, ys = p.simulate(30, key=jax.random.key(1))
    one, many = bs.Guided.from_model(p), bs.GuidedMixture.from_model(p, components=3)
    expected, found = bs.filter(p, one, ys), bs.filter(p, many, ys)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-7)
    np.testing.assert_allclose(found.cov, expected.cov, atol=1e-7)
    scores = [jax.vmap(q.log_score)(filter_states(p, q, ys)) for q in (one, many)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-7)


def two_groups(x, u):
    return dist.Poisson(jnp.exp(0.5 * x)).to_event(1)


def four_directions(x, u):
    return dist.MultivariateNormal(jnp.stack([(x**2).sum(), x[0]]), 0.5 * jnp.eye(2))


def turning(x, u):
    return dist.Normal(0.9 * jnp.sin(x + 0.3 * jnp.roll(x, 1)), 0.3).to_event(1)


@pytest.mark.slow
@pytest.mark.parametrize("emit", [two_groups, four_directions])
def test_models_whose_emission_reads_many_directions(emit):
    """No windows there, but cut components: the score is no worse than that of one component."""
    p = Toy(emit, turning, d=4)
    _, ys = p.simulate(60, key=jax.random.key(2))
    ys = ys.at[10].set(jnp.nan)
    scores = []
    for q in (bs.Guided.from_model(p), bs.GuidedMixture.from_model(p, components=2)):
        states = filter_states(p, q, ys)
        assert np.isfinite(jax.vmap(q.moments)(states)[0]).all() and not states.failed.any()
        scores.append(np.asarray(jax.vmap(q.log_score)(states)))
    assert scores[1][10] == 0.0
    assert scores[1].mean() > scores[0].mean() - 0.01


@pytest.mark.slow
def test_a_missing_row_is_predicted_only():
    p = Toy(folded)
    q = bs.GuidedMixture.from_model(p, components=2)
    before = q.update(p, q.init(p), jnp.array([0.9]))
    after = q.update(p, before, jnp.array([jnp.nan]))
    mean, cov = q.moments(before)
    np.testing.assert_allclose(q.moments(after)[0], 0.9 * mean, atol=1e-12)
    np.testing.assert_allclose(q.moments(after)[1], 0.81 * cov + 0.09, rtol=1e-9)
    assert float(q.log_score(after)) == 0.0


def impossible(x, u):
    return dist.Uniform(x - 1, x + 1).to_event(1)


@pytest.mark.slow
def test_a_row_that_is_not_possible_fails_and_leaves_the_prediction():
    p = Toy(impossible)
    q = bs.GuidedMixture.from_model(p, components=2)
    before = q.update(p, q.init(p), jnp.array([0.2]))
    after = q.update(p, before, jnp.array([1e6]))
    assert after.failed and float(q.log_score(after)) == -np.inf
    assert np.isfinite(q.moments(after)[0]).all()
    np.testing.assert_allclose(q.moments(after)[0], 0.9 * q.moments(before)[0], atol=1e-6)


@pytest.mark.slow
def test_the_log_score_has_the_derivative_of_the_likelihood():
    """Row by row, with respect to the noise: though windows and groups of pieces are found without derivatives, what is
    missing is 5 % at most."""
    p = absolute_value.AbsoluteValue(jnp.array(2.5))
    _, ys = p.simulate(60, key=jax.random.key(4))
    q = bs.GuidedMixture.from_model(p, components=4)
    nodes = jnp.linspace(-25, 25, 800)

    def scores(noise):
        return jax.vmap(q.log_score)(filter_states(absolute_value.AbsoluteValue(noise), q, ys))

    def exact(noise):
        return grid_smoother(absolute_value.AbsoluteValue(noise), nodes, ys, None)[0].log_score

    at, step = jnp.array(2.0), 1e-3
    expected = (exact(at + step) - exact(at - step)) / (2 * step)
    error = jax.jit(jax.jacfwd(scores))(at) - expected
    assert np.sqrt((error**2).mean()) < 0.05 * np.sqrt((expected**2).mean())


# ---- against the exact posterior -------------------------------------------------------------------------------------
CASES = {
    # rows, grid, bound on filtering and smoothing errors, bound on the log score
    "growth": (growth.CASE, 400, Grid(margin=15.0, nodes=600), 1.04, 0.01),
    "absolute_value": (absolute_value.CASE, 400, Grid(margin=20.0, nodes=500), 1.02, 0.001),
    "double_well": (double_well.CASE, 400, Grid(margin=6.0, nodes=500), 1.05, 0.01),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "absolute_value" else pytest.mark.slow) for name in CASES]
)
def test_several_modes(name):
    """Root mean squared errors and log scores with four components, nothing learned, next to those of the exact
    posterior. The seed is fixed. The smoother draws 2 000 trajectories: their noise adds 0.03 % to its error."""
    case, rows, grid, worst, nats = CASES[name]
    case = dataclasses.replace(case, rows=rows)
    data = case.simulate(0)
    exact, half, _ = grid.run(case.build(), data, 0)
    assert abs((exact.log_score - half.log_score).mean()) < 0.1 * nats

    p, inputs = case.build(), None if data.us is None else jnp.asarray(data.us)
    q = bs.GuidedMixture.from_model(p, jax.tree.map(lambda leaf: leaf[0], inputs), components=4)
    states = filter_states(p, q, jnp.asarray(data.ys), inputs)
    keys = jax.random.split(jax.random.key(1), 2000)
    drawn = jax.jit(jax.vmap(lambda key: sample_backward(p, q, states, key=key)[0]))(keys)

    def error(mean):
        return np.sqrt(((np.asarray(mean) - data.states) ** 2).mean())

    assert error(jax.vmap(q.moments)(states)[0]) < worst * error(exact.filtered_mean)
    assert error(drawn.mean(0)) < worst * error(exact.smoothed_mean)
    assert abs((exact.log_score - np.asarray(jax.vmap(q.log_score)(states))).mean()) < nats
