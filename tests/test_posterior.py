"""What a fitted q says, against Kalman smoothers, dense Gaussians and the binomial law.

Seeds are fixed. Each stochastic test states how often it would fail with another if the code were right.
"""

import cuthbert
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from cuthbert.gaussian import kalman
from scipy.stats import binom, norm

import dense
import quadrature
from backstream import posterior
from backstream.families import Conjugate, Kalman, PerStep, Recurrent
from backstream.models import ChaoticRNN, LinearGaussian

T = 6


def linear(num_steps=T):
    p = LinearGaussian.random(2, 2, key=jax.random.key(0))
    return p, Kalman.from_model(p), p.simulate(num_steps, key=jax.random.key(1))[1]


def recurrent():
    """A family whose kernels are not affine, with d = 1."""
    p = ChaoticRNN.random(1, key=jax.random.key(0))
    q = Recurrent.create(1, 1, width=4, key=jax.random.key(1), scales=(0.3, 0.3))
    return p, q, p.simulate(3, key=jax.random.key(2))[1]


@jax.jit
def cuthbert_smoother(p, ys):
    """cuthbert's filter has its prior one step before the first observation: that step stands still."""
    mean0, Q0, A, B, Q, R = p.dense()
    zero, chol_Q, chol_R = jnp.zeros_like(mean0), jnp.linalg.cholesky(Q), jnp.linalg.cholesky(R)

    def dynamics(inputs):
        t, _ = inputs
        return jnp.where(t == 0, jnp.eye(len(A)), A), zero, jnp.where(t == 0, 0.0, chol_Q)

    def emission(inputs):
        return B, jnp.zeros(len(B)), chol_R, inputs[1]

    engine = kalman.build_filter(mean0, jnp.linalg.cholesky(Q0), dynamics, emission)
    filtered = cuthbert.filter(engine, (jnp.arange(len(ys)), ys), engine.init_prepare())
    smoothed = cuthbert.smoother(kalman.build_smoother(dynamics), filtered)
    return [(s.mean[1:], s.chol_cov[1:] @ jnp.swapaxes(s.chol_cov[1:], -1, -2)) for s in (filtered, smoothed)]


def test_filter_and_smoother_are_cuthberts():
    p, q, ys = linear(40)
    filtered, smoothed = cuthbert_smoother(p, ys)
    for found, (mean, cov) in ((posterior.filter(p, q, ys), filtered), (posterior.smooth(p, q, ys), smoothed)):
        np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(found.cov, cov, rtol=1e-8, atol=1e-10)


def test_missing_observations_and_one_step_smoothing():
    p, q, ys = linear()
    ys = np.array(ys)
    ys[0, 1] = ys[3] = np.nan
    smoothed = posterior.smooth(p, q, ys)
    mean, cov = dense.posterior(p, ys)
    np.testing.assert_allclose(smoothed.mean, mean, atol=1e-10)
    np.testing.assert_allclose(smoothed.cov, cov, atol=1e-10)
    one_step = posterior.one_step_smooth(p, q, ys)
    for t in range(1, T):
        mean, cov = dense.posterior(p, ys[: t + 1])
        np.testing.assert_allclose(one_step.mean[t - 1], mean[t - 1], atol=1e-10)
        np.testing.assert_allclose(one_step.cov[t - 1], cov[t - 1], atol=1e-10)


def test_smoothing_of_a_q_that_is_no_model():
    """A family with networks in it: the closed form is the dense law of its own kernels."""
    p, _, ys = linear()
    q = Conjugate.create(*p.dense().B.shape[::-1], width=4, key=jax.random.key(3))
    mean, cov = dense.blocks(*dense.joint_family(p, q, ys), T)
    smoothed = posterior.smooth(p, q, ys)
    np.testing.assert_allclose(smoothed.mean, mean, atol=1e-10)
    np.testing.assert_allclose(smoothed.cov, cov, atol=1e-10)


def assert_moments(samples, mean, cov, rate=1e-4):
    """Sample means, and sample means of products, of draws [N, …, d] of a Gaussian: all z-scores, Bonferroni."""
    samples = np.asarray(samples).reshape(len(samples), -1)
    mean, cov = np.ravel(mean), np.asarray(cov)
    i, j = np.triu_indices(len(mean))
    z_mean = (samples.mean(0) - mean) / np.sqrt(np.diag(cov) / len(samples))
    products = ((samples - mean)[:, i] * (samples - mean)[:, j]).mean(0)
    z_cov = (products - cov[i, j]) / np.sqrt((cov[i, i] * cov[j, j] + cov[i, j] ** 2) / len(samples))
    z = np.concatenate([z_mean, z_cov])
    assert np.all(np.abs(z) < norm.isf(rate / 2 / z.size)), z


def test_trajectories_have_the_joint_smoothing_law():
    """20 000 draws: all means and covariances, across time too. Fails with probability 1e-4."""
    p, q, ys = linear(3)
    xs = posterior.sample_trajectories(p, q, ys, num_trajectories=20_000, key=jax.random.key(0))
    assert xs.shape == (20_000, 3, 2)
    assert_moments(xs, *dense.joint_family(p, q, ys))


def test_kernels_that_are_not_affine():
    """Means against quadrature, three standard errors and a half of 20 000 draws each: fails with probability 2e-3."""
    p, q, ys = recurrent()
    states = quadrature.filter_states(p, q, ys)

    def mean_before(t, x, s):
        """E[X_s | X_t = x] under q."""
        if t == s:
            return x
        law = q.marginal(states[t - 1]) * q.kernel(p, states[t]).potential(x)
        return quadrature.expectation(law, lambda x_prev: mean_before(t - 1, x_prev, s))

    def mean_of(s, t):
        """E[X_s] under q_{0:t}."""
        return quadrature.expectation(q.marginal(states[t]), lambda x: mean_before(t, x, s))

    smoothed = posterior.smooth(p, q, ys, num_trajectories=20_000, key=jax.random.key(0))
    expected = jax.jit(lambda: jnp.stack([mean_of(s, 2) for s in range(3)]))()
    assert np.all(np.abs(smoothed.mean - expected) < 3.5 * smoothed.std / np.sqrt(20_000))
    one_step = posterior.one_step_smooth(p, q, ys, num_samples=20_000, key=jax.random.key(0))
    expected = jax.jit(lambda: jnp.stack([mean_of(t - 1, t) for t in (1, 2)]))()
    assert np.all(np.abs(one_step.mean - expected) < 3.5 * one_step.std / np.sqrt(20_000))
    for function in (posterior.smooth, posterior.one_step_smooth):
        with pytest.raises(ValueError, match=f"Recurrent are not affine, so {function.__name__} draws samples"):
            function(p, q, ys)


def test_intervals_cover():
    """90 % intervals of the filter and the smoother over 2000 independent sequences, at one time of each.

    The number of states inside is binomial: the test fails with probability 1e-4.
    """
    p, q, _ = linear()
    keys = jax.random.split(jax.random.key(4), 2000)
    xs, ys = jax.jit(jax.vmap(lambda key: p.simulate(4, key=key)))(keys)

    def inside(which, t):
        lower, upper = jax.jit(jax.vmap(lambda ys: which(p, q, ys).interval(0.9)))(ys)
        return int(((lower < xs) & (xs < upper))[:, t, 0].sum())

    low, high = binom.interval(1 - 1e-4 / 2, len(keys), 0.9)
    assert low <= inside(posterior.filter, 3) <= high
    assert low <= inside(posterior.smooth, 1) <= high


def test_forecasts_have_the_moments_of_the_model():
    """States and observations up to three steps ahead, 20 000 draws. Fails with probability 2e-4."""
    p, q, ys = linear()
    filtered = posterior.filter(p, q, ys)
    ahead = posterior.forecast(p, filtered, 3, 20_000, key=jax.random.key(0))
    later = np.concatenate([ys, np.full((3, 2), np.nan)])
    mean, cov = dense.joint_states(p, T + 3)
    y, H, R = dense.observation(p, later)
    gain = np.linalg.solve(H @ cov @ H.T + R, H @ cov).T
    mean, cov = (mean + gain @ (y - H @ mean))[-6:], (cov - gain @ H @ cov)[-6:, -6:]
    B, R = (np.kron(np.eye(3), np.asarray(m)) for m in (p.dense().B, p.dense().R))
    assert_moments(ahead.states.values, mean, cov)
    assert_moments(ahead.observations.values, B @ mean, B @ cov @ B.T + R)
    np.testing.assert_allclose(ahead.states.mean, ahead.states.values.mean(0))
    np.testing.assert_allclose(ahead.observations.std, ahead.observations.values.std(0))
    lower, upper = ahead.observations.interval(0.8)
    between = (lower < ahead.observations.values) & (ahead.observations.values < upper)
    np.testing.assert_allclose(between.mean(0), 0.8, atol=1e-3)
    law = q.marginal(jax.tree.map(lambda leaf: leaf[-1], posterior.filter_states(p, q, ys)))
    again = posterior.forecast(p, law, 3, 20_000, key=jax.random.key(0))
    np.testing.assert_allclose(again.states.values, ahead.states.values, atol=1e-8)


def test_precision_follows_lambda():
    p, q, ys = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), linear())
    found = posterior.smooth(p, q, np.asarray(ys, dtype=np.float64)), posterior.filter(p, q, ys)
    xs = posterior.sample_trajectories(p, q, ys, key=jax.random.key(0))
    ahead = posterior.forecast(p, found[1], 2, 3, key=jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves((found, found[0].interval(), xs, ahead))} == {np.dtype("float32")}


def test_what_is_wrong_is_said():
    p, q, ys = linear()
    spoiled = np.array(ys)
    spoiled[2, 1] = np.inf
    marginals = posterior.Marginals(jnp.zeros((1, 2)), jnp.eye(2)[None])
    for wrong, message in (
        (lambda: posterior.filter(p, q, spoiled), "row 2, column 1 is infinite"),
        (lambda: posterior.filter(p, q, ys[:, :1]), r"ys must have shape \[T, 2\] .* not \(6, 1\)"),
        (lambda: posterior.smooth(p, q, ys[:0]), "at least 1"),
        (lambda: posterior.smooth(p, q, ys, np.zeros((5, 1))), r"leading axis of length 6, but one has shape \(5, 1\)"),
        (
            lambda: posterior.filter(LinearGaussian.random(3, 2, key=jax.random.key(0)), q, ys),
            "The model has 3 states, the family Kalman has 2",
        ),
        (lambda: posterior.one_step_smooth(p, q, ys[:1]), "needs at least 2 observations, not 1"),
        (lambda: posterior.sample_trajectories(p, q, ys, None, 0, key=jax.random.key(0)), "at least 1, not 0"),
        (lambda: posterior.forecast(p, marginals, 0, key=jax.random.key(0)), "horizon must be at least 1, not 0"),
        (lambda: marginals.interval(90.0), "strictly between 0 and 1, not at 90.0"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(TypeError, match="PerStep holds the parameters of one time only"):
        posterior.filter(p, PerStep.create(2, 2, width=2, key=jax.random.key(0)), ys)


def test_the_model_comes_first(monkeypatch):
    """As a user sees it, for whom no annotations are checked."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    p, q, ys = linear()
    for wrong in (lambda: posterior.filter(q, ys, ys), lambda: posterior.smooth(q, p, ys)):
        with pytest.raises(TypeError, match="The model comes first, then the family, then the observations"):
            wrong()
