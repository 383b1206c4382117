"""Families: exact where they can be, positive definite always, and alike behind the four methods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from backstream.families import Conjugate, Kalman, PerStep, Recurrent, TanhCell
from backstream.families.backward import filter_states, first_state
from backstream.families.covariance import PositiveDefinite
from backstream.families.linear import LinearDynamics
from backstream.laws.gaussian import cholesky, inverse, inverse_root
from backstream.models import ChaoticRNN, LinearGaussian, StateSpaceModel
from small_models import linear_model, random_covariance, single

KEY = jax.random.key(0)
CHAOTIC = ChaoticRNN.random(3, key=KEY)


def with_gaps(ys, seed=1):
    """Some rows and some coordinates missing, the first row among the latter."""
    ys = np.array(ys)
    rng = np.random.default_rng(seed)
    ys[rng.random(ys.shape) < 0.2] = np.nan
    ys[4:7] = np.nan
    ys[0, 0] = np.nan
    return jnp.asarray(ys)


def kalman_filter(model, ys):
    """Plain NumPy, in moments, one observed coordinate set at a time: means and covariances of the filter."""
    mean0, Q0, A, B, Q, R = (np.asarray(value) for value in model.dense())
    mean, cov, out = mean0, Q0, []
    for t, y in enumerate(np.asarray(ys)):
        if t > 0:
            mean, cov = A @ mean, A @ cov @ A.T + Q
        seen = ~np.isnan(y)
        if seen.any():
            H = B[seen]
            gain = cov @ H.T @ np.linalg.inv(H @ cov @ H.T + R[np.ix_(seen, seen)])
            mean, cov = mean + gain @ (y[seen] - H @ mean), cov - gain @ H @ cov
        out.append((mean, cov))
    return [np.array(values) for values in zip(*out, strict=True)]


def moments_of(p, q, ys):
    return jax.jit(lambda ys: jax.vmap(lambda state: q.marginal(state).moments())(filter_states(p, q, ys)))(ys)


# ---- Kalman -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_kalman_states_are_the_kalman_filter(full, gaps):
    model = linear_model(full)
    ys = model.simulate(30, key=KEY)[1]
    ys = with_gaps(ys) if gaps else ys
    means, covs = moments_of(model, Kalman.from_model(model), ys)
    expected_means, expected_covs = kalman_filter(model, ys)
    np.testing.assert_allclose(means, expected_means, atol=1e-10)
    np.testing.assert_allclose(covs, expected_covs, atol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_kalman_kernels_are_the_rts_kernels(full):
    """q_{t-1|t}(x, ·) = N(μ + G (x − A μ), Σ − G A Σ) with G = Σ Aᵀ (A Σ Aᵀ + Q)⁻¹."""
    model = linear_model(full)
    q = Kalman.from_model(model)
    ys = with_gaps(model.simulate(8, key=KEY)[1])
    states = filter_states(model, q, ys)
    means, covs = kalman_filter(model, ys)
    A, Q = np.asarray(model.dense().A), np.asarray(model.dense().Q)
    x = jnp.array([0.3, -2.0, 1.0])
    for t in (1, 5, 7):
        before, state = (jax.tree.map(lambda leaf, s=s: leaf[s], states) for s in (t - 1, t))
        mean, cov = (q.marginal(before) * q.kernel(model, state).potential(x)).moments()
        mu, Sigma = means[t - 1], covs[t - 1]
        G = Sigma @ A.T @ np.linalg.inv(A @ Sigma @ A.T + Q)
        np.testing.assert_allclose(mean, mu + G @ (np.asarray(x) - A @ mu), atol=1e-10)
        np.testing.assert_allclose(cov, Sigma - G @ A @ Sigma, atol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_kalman_parameters_are_those_of_the_model(full):
    model = linear_model(full)
    for own, given in zip(Kalman.from_model(model).dense(), model.dense(), strict=True):
        np.testing.assert_allclose(own, given, atol=1e-12)


def test_kalman_start_of_the_paper():
    model = LinearGaussian.random(10, 10, key=KEY)
    q = Kalman.random(model, key=jax.random.key(1))
    assert q.dynamics.A.shape == (10,) and np.abs(q.dynamics.A).max() <= 0.9 and q.dynamics.A.min() < 0
    assert not np.allclose(q.B, model.B)
    for name in ("mean0", "Q0", "Q", "R"):
        np.testing.assert_allclose(getattr(q.dense(), name), getattr(model.dense(), name), atol=1e-12)


# ---- float32 ----------------------------------------------------------------------------------------------------


def random_family(kind, seed, q_scale, r_scale, full):
    """d = 5 states seen through 2 columns, with noise scales of any ratio."""
    rng = np.random.default_rng(seed)
    A = 0.98 * np.linalg.qr(rng.normal(size=(5, 5)))[0] if full else rng.uniform(-0.99, 0.99, 5)
    B = rng.normal(size=(2, 5))
    if kind is Kalman:
        Q = q_scale**2 * random_covariance(rng, 5) if full else np.full(5, q_scale)
        R = r_scale**2 * random_covariance(rng, 2) if full else np.full(2, r_scale)
        return single(Kalman.create(np.zeros(5), np.full(5, q_scale), A, B, Q, R))
    dynamics = LinearDynamics.create(np.zeros(5), np.full(5, q_scale), A, np.full(5, q_scale))
    return single(eqx.tree_at(lambda q: q.dynamics, Conjugate.create(5, 2, 16, key=KEY), dynamics))


@pytest.mark.parametrize("kind", [Kalman, Conjugate])
@pytest.mark.parametrize("full", [False, True])
def test_float32_states_stay_positive_definite(kind, full):
    """10 000 steps, runs of 500 missing rows, noise scales from 1e-3 to 1e3: all Cholesky factors exist, and the
    diagonal of the covariance is positive."""
    T = 10_000
    rng = np.random.default_rng(5)
    ys = rng.standard_t(3, size=(T, 2)).astype(np.float32)
    ys[1000:1500] = np.nan
    ys[rng.random((T, 2)) < 0.1] = np.nan
    scales = [(a, b) for a in (1e-3, 1.0, 1e3) for b in (1e-3, 1.0, 1e3)]
    families = [random_family(kind, seed, a, b, full) for seed, (a, b) in enumerate(scales)]
    arrays = [eqx.filter(q, eqx.is_inexact_array) for q in families]
    static = eqx.filter(families[0], eqx.is_inexact_array, inverse=True)
    observations = jnp.stack([jnp.asarray(ys) * np.float32(max(scale)) for scale in scales])

    @jax.jit
    @jax.vmap
    def run(arrays, ys):
        q = eqx.combine(arrays, static)

        def look(state):
            frame = q.marginal(state).frame()
            kernel = (q.marginal(state) * q.kernel(CHAOTIC, state).potential(frame.mean)).frame()
            return jnp.isfinite(frame.mean).all() & jnp.isfinite(frame.factor).all() & jnp.isfinite(kernel.factor).all()

        def step(state, y):
            state = q.update(CHAOTIC, state, y)  # these families do not read the model
            return state, look(state)

        return jax.lax.scan(step, q.init(CHAOTIC), ys)

    last, fine = run(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), observations)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(eqx.filter(last, eqx.is_inexact_array)))
    assert fine.all(), [scales[i] for i in np.flatnonzero(~fine.all(axis=1))]


def test_float32_filter_is_the_float64_filter():
    model = linear_model(full=True)
    ys = with_gaps(model.simulate(200, key=KEY)[1])
    exact = moments_of(model, Kalman.from_model(model), ys)
    rough = moments_of(model, single(Kalman.from_model(model)), ys.astype(jnp.float32))
    for value, reference in zip(rough, exact, strict=True):
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, reference, atol=2e-5)


@pytest.mark.parametrize("full", [False, True])
def test_positive_definite_goes_back_and_forth(full):
    cov = random_covariance(np.random.default_rng(0), 4)
    scale = jnp.linalg.cholesky(cov) if full else jnp.sqrt(jnp.diag(jnp.asarray(cov)))
    expected = cov if full else np.diag(np.diag(cov))
    matrix = PositiveDefinite.from_scale(scale)
    np.testing.assert_allclose(matrix.dense(), expected, atol=1e-13)
    np.testing.assert_allclose(matrix.inverse(), np.linalg.inv(expected), atol=1e-11)
    np.testing.assert_allclose(matrix.factor() @ matrix.whiten(jnp.eye(4)), np.eye(4), atol=1e-13)
    assert sum(leaf.size for leaf in jax.tree.leaves(matrix)) == (10 if full else 4)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_factors_and_their_derivatives_are_those_of_jax(dim):
    """Written out up to three rows, LAPACK's beyond; what is not positive definite has no factor."""
    matrix = jnp.asarray(random_covariance(np.random.default_rng(0), dim))
    probe = jnp.asarray(np.random.default_rng(1).normal(size=(dim, dim)))
    assert jnp.isnan(cholesky(matrix.at[-1, -1].set(-1.0))).any()
    for own, theirs in (
        (cholesky, jnp.linalg.cholesky),
        (lambda m: inverse(cholesky(m)), lambda m: jnp.linalg.inv(jnp.linalg.cholesky(m))),
        (inverse_root, lambda m: jnp.linalg.inv(jnp.linalg.cholesky(m))),
    ):
        np.testing.assert_allclose(own(matrix), theirs(matrix), rtol=1e-10, atol=1e-12)
        ours, reference = (
            jax.grad(lambda m, function=function: (probe * function((m + m.T) / 2)).sum())(matrix)
            for function in (own, theirs)
        )
        np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-12)


# ---- Conjugate --------------------------------------------------------------------------------------------------


def count(q):
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(q, eqx.is_inexact_array)))


def test_conjugate_has_the_authors_3160_parameters():
    q = Conjugate.create(10, 10, 100, key=KEY)
    assert count(q) == 3160
    assert q.dynamics.A.min() >= 0.9 and q.dynamics.A.max() <= 1.0
    np.testing.assert_allclose(q.dynamics.noise.scale, 0.1, rtol=1e-12)
    assert count(Conjugate.create(10, 10, 100, full_transition=True, key=KEY)) == 3160 + 90


def test_conjugate_adds_the_networks_natural_parameter():
    p, q = linear_model(False, d=2, dy=3), Conjugate.create(2, 3, 8, key=KEY)
    y = jnp.array([0.5, jnp.nan, -1.0])
    out = q.net(jnp.array([0.5, 0.0, -1.0]))
    state = first_state(p, q, y)
    law = q.marginal(state)
    np.testing.assert_allclose(law.eta1, out[:2], rtol=1e-12)
    np.testing.assert_allclose(law.precision, np.diag(100 + np.log1p(np.exp(out[2:]))), rtol=1e-12)
    mean, cov = q.marginal(q.update(p, state, jnp.full(3, jnp.nan))).moments()
    before, spread = law.moments()
    A = np.asarray(q.dynamics.A)
    np.testing.assert_allclose(mean, A * before, rtol=1e-10)
    np.testing.assert_allclose(cov, A[:, None] * spread * A + 0.01 * np.eye(2), rtol=1e-10, atol=1e-15)
    # The second row adds to a prediction whose mean is not zero.
    second = q.marginal(q.update(p, state, y))
    np.testing.assert_allclose(second.eta1, np.linalg.solve(cov, mean) + out[:2], rtol=1e-9)


def silence(q):
    """The network's output set to zero, the pull to one."""
    last = lambda q: (q.net.layers[-1].weight, q.net.layers[-1].bias)  # noqa: E731
    weight, bias = last(q)
    return eqx.tree_at(last, q, (0 * weight, jnp.concatenate([0 * bias[: q.obs_dim], jnp.full(q.obs_dim, 1e3)])))


class Driven(StateSpaceModel):
    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.5 * x + u, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.2).to_event(1)


class Untold(StateSpaceModel):
    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, 1.0).to_event(1)

    def emission(self, x, u=None):
        return dist.InverseGamma(0.5, jnp.exp(x)).to_event(1)


# ---- Recurrent and PerStep ----------------------------------------------------------------------------------------


def test_recurrent_potential_is_nonlinear():
    """Neither component is affine: second differences along a line do not vanish."""
    p, q = linear_model(False), Recurrent.create(3, 2, key=KEY)
    line = jnp.linspace(-2, 2, 5)[:, None] * jnp.array([1.0, -0.5, 2.0])
    potential = jax.jit(jax.vmap(q.kernel(p, first_state(p, q, jnp.zeros(2))).potential))(line)
    assert np.abs(np.diff(potential.eta1, n=2, axis=0)).max() > 1e-2
    assert np.abs(np.diff(potential.eta2, n=2, axis=0)).max() > 1e-2
    assert np.linalg.eigvalsh(jax.vmap(lambda g: g.precision)(potential)).min() > 0


def test_recurrent_remembers_and_tells_missing_from_zero():
    p = linear_model(False, d=2)
    for cell in (eqx.nn.GRUCell, TanhCell):
        q = Recurrent.create(2, 2, cell=cell, key=KEY)
        first = [first_state(p, q, jnp.full(2, value)) for value in (0.0, jnp.nan, 3.0)]
        assert not np.allclose(first[0], first[1]) and not np.allclose(first[0], first[2])
        later = [q.update(p, state, jnp.zeros(2)) for state in first]
        assert not np.allclose(later[0], later[2])
        huge = q.update(p, first[0], jnp.array([1e30, -1e30]))
        assert all(np.isfinite(value).all() for value in q.marginal(huge).moments())
    diagonal = Recurrent.create(3, 2, diagonal=True, key=KEY)
    precision = diagonal.marginal(first_state(linear_model(False), diagonal, jnp.ones(2))).precision
    np.testing.assert_allclose(precision, np.diag(np.diag(precision)))


@pytest.mark.parametrize("full", [False, True])
def test_per_step_ignores_y_and_keeps_what_was(full):
    p, q = linear_model(False), PerStep.create(3, 2, key=KEY, mean=1.0, std=0.5, full_precision=full)
    state = first_state(p, q, jnp.zeros(2))
    np.testing.assert_allclose(state.moments()[0], 1.0)
    np.testing.assert_allclose(state.moments()[1], 0.25 * np.eye(3), atol=1e-14)
    moved = eqx.tree_at(lambda q: q.mean, q, q.mean + 1)
    for y in (jnp.ones(2), jnp.full(2, jnp.nan)):
        np.testing.assert_allclose(moved.update(p, state, y).moments()[0], 2.0)
    np.testing.assert_allclose(moved.marginal(state).moments()[0], 1.0)
    np.testing.assert_allclose(q.kernel(p, state).potential(jnp.ones(3)).eta1, q.net(jnp.ones(3)))
    # d → 100 → d with biases, mean and log std, d or d(d+1)/2 for the precision
    assert count(q) == 3 * 100 + 100 + 100 * 3 + 3 + 6 + (6 if full else 3)


# ---- errors -------------------------------------------------------------------------------------------------------

ONES = jnp.ones(2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LinearDynamics.create(ONES, ONES, jnp.ones(3), ONES), r"A must have shape \(2,\) or \(2, 2\)"),
        (lambda: LinearDynamics.create(ONES, 0 * ONES, ONES, ONES), "prior_scale must be positive"),
        (lambda: LinearDynamics.create(ONES, ONES, ONES, ONES, jnp.ones(1)), r"drift must have shape \(2,\)"),
        (lambda: PositiveDefinite(ONES, ONES), r"lower must have shape \(1,\), not \(2,\)"),
        (lambda: Kalman.create(ONES, ONES, ONES, jnp.eye(2), ONES, -ONES), "R, a vector of standard deviations,"),
        (lambda: Conjugate.create(2, 2, 0, key=KEY), "width, the number of hidden units, must be at least 1, not 0"),
        (lambda: Conjugate.create(2, 2, scale=-1.0, key=KEY), "scale must be positive, not -1.0"),
        (lambda: Recurrent.create(2, 2, scales=(1.0, 0.0), key=KEY), "Each of the scales must be positive, but is 0.0"),
        (lambda: PerStep.create(2, 2, std=-1.0, key=KEY), "std must be positive, but is -1.0"),
    ],
)
def test_bad_values_are_named_at_construction(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
