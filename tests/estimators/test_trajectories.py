"""Backward trajectories: unbiased over a sequence, and over a sliding window what they are said to be.

Seeds are fixed, so that a test passes or fails for good. Each compares k averages of independent replicates with
their exact values, and would fail with probability 1e-4 (Bonferroni) if the estimator were right and its seed
another; a failure is therefore a finding, not a reason to try another seed.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import t as student

import quadrature
from backstream.estimators.backward_trajectories import BackwardTrajectories
from backstream.estimators.base import Estimate, Scan, flatten
from backstream.estimators.fixed_lag import FixedLag, WindowAverage, WindowIncrement, window_elbo
from backstream.estimators.reference.exact import Exact
from backstream.families import AffinePotential, BackwardFamily, Kalman, Kernel, Recurrent
from backstream.families.backward import filter_states
from backstream.families.linear import LinearDynamics
from backstream.laws.gaussian import Gaussian
from backstream.models import ChaoticRNN, LinearGaussian, StateSpaceModel

T, REPLICATES = 6, 1000


def linear():
    p = LinearGaussian.random(2, 2, key=jax.random.key(0))
    vector, rebuild = flatten(Kalman.from_model(p))
    q = rebuild(vector + 0.2 * jax.random.normal(jax.random.key(1), vector.shape))
    return p, q, p.simulate(T, key=jax.random.key(2))[1]


exact = eqx.filter_jit(Exact(learn_model=True))


def projected(estimate, directions=3):
    """ELBO, and gradients in λ and (if any) θ along random directions: 1 + k numbers."""
    parts = [jnp.ravel(estimate.elbo)]
    for gradient in estimate[1:]:
        if gradient is not None:
            vector = flatten(gradient)[0]
            parts.append(jax.random.normal(jax.random.key(7), (directions, vector.size)) @ vector)
    return jnp.concatenate(parts)


def keys(num):
    return jax.random.split(jax.random.key(3), num)


def replicates(run, num=REPLICATES):
    return np.asarray(jax.jit(jax.vmap(run))(keys(num)))


def assert_unbiased(samples, expected, rate=1e-4):
    samples, expected = np.reshape(samples, (len(samples), -1)), np.ravel(expected)
    random = samples.std(0) > 0
    np.testing.assert_allclose(samples[0, ~random], expected[~random], atol=1e-12)
    samples, expected = samples[:, random], expected[random]
    z = (samples.mean(0) - expected) / (samples.std(0, ddof=1) / np.sqrt(len(samples)))
    assert np.all(np.abs(z) < student.isf(rate / 2 / z.size, len(samples) - 1)), z


def test_backward_trajectories_are_unbiased():
    p, q, ys = linear()
    ys = ys.at[2].set(jnp.nan).at[4, 0].set(jnp.nan)
    estimator = BackwardTrajectories(30, learn_model=True)
    samples = replicates(lambda key: projected(estimator(p, q, ys, key=key)))
    assert_unbiased(samples, projected(exact(p, q, ys)))


def test_kernels_that_are_not_affine():
    """A family of networks, whose kernels' precisions depend on x, against quadrature."""
    p = ChaoticRNN.random(1, key=jax.random.key(0))
    q = Recurrent.create(1, 1, width=4, key=jax.random.key(1), scales=(0.3, 0.3))
    ys = p.simulate(3, key=jax.random.key(2))[1]
    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda q: quadrature.elbo(p, q, ys)))(q)
    estimator = BackwardTrajectories(1)
    samples = replicates(lambda key: projected(estimator(p, q, ys, key=key)), 8000)
    assert_unbiased(samples, projected(Estimate(value, gradient)))


# ---- the sliding window ----------------------------------------------------------------------------------------------


def stream(estimator, p, q, ys, key):
    """What the estimator says at each t."""

    def step(carry, scanned):
        t, y = scanned
        return estimator.step(p, q, carry, y, key=jax.random.fold_in(key, t))

    return jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))[1]


def at(tree, t):
    return jax.tree.map(lambda leaf: leaf[t], tree)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [WindowAverage(), WindowIncrement()], ids=["average", "increment"])
def test_the_window_is_the_stream_and_then_has_the_filter_as_its_prior(objective):
    """Up to t = lag − 1 the total is L_t with its gradients: the window's own value, or the sum of increments.

    At t ≥ lag the window is that of a model whose first state, not observed, has the law q_{t-lag}: for the first full
    window, and for a later one. The prior of the stream has no gradient then.
    """
    p, q, ys = linear()
    lag, starting, full = 3, (0, 2), (3, T - 1)
    expected = [learned(exact(p, q, ys[: t + 1])) for t in starting]
    states, nothing = jax.jit(lambda q: filter_states(p, q, ys))(q), jnp.full_like(ys[:1], jnp.nan)
    for t in full:
        model, family = started_at(p, q, q.marginal(at(states, t - lag)))
        window = jnp.concatenate([nothing, ys[t - lag + 1 : t + 1]])
        value = learned(exact(model, family, window))
        if isinstance(objective, WindowAverage):
            expected.append(value / lag)
        else:
            expected.append(value - learned(exact(model, family, window[:-1])))

    def run(key):
        estimates = stream(FixedLag(lag, 30, objective, learn_model=True), p, q, ys, key)
        totals = [learned(at(estimates.total, t)) for t in starting]
        prior = estimates.increment.gradient.dynamics
        silent = jnp.concatenate([prior.mean0[lag:], prior.prior.log_scale[lag:]])
        return jnp.stack(totals + [learned(at(estimates.increment, t)) for t in full]), silent

    samples, silent = jax.jit(jax.vmap(run))(keys(REPLICATES))
    assert_unbiased(samples, np.array(expected))
    assert not np.any(silent)


def started_at(p, q, law):
    """p and q with the given law in the place of their priors."""
    mean, cov = law.moments()
    dynamics = LinearDynamics.create(mean, jnp.linalg.cholesky(cov), q.dynamics.A, q.dynamics.noise.scale)
    model = LinearGaussian(mean, cov, p.A, p.B, p.transition_scale, p.emission_scale)
    return model, Kalman(dynamics, q.B, q.emission_noise)


def learned(estimate):
    """The ELBO, and the gradients of all but the priors."""
    g, m = estimate.gradient, estimate.model_gradient
    parts = [estimate.elbo, g.dynamics.A, g.dynamics.noise.log_scale, g.B, g.emission_noise.log_scale]
    return jnp.concatenate([jnp.ravel(part) for part in (*parts, m.A, m.B, m.transition_scale, m.emission_scale)])


def test_window_elbo_is_that_of_the_observations_after_the_anchor():
    p, q, ys = linear()
    lag = 3
    anchor = at(jax.jit(lambda q: filter_states(p, q, ys))(q), T - 1 - lag)
    model, family = started_at(p, q, q.marginal(anchor))
    window = jnp.concatenate([jnp.full_like(ys[:1], jnp.nan), ys[-lag:]])
    values = jax.jit(lambda key: window_elbo(p, q, anchor, ys[-lag:], num_trajectories=REPLICATES, key=key))(keys(1)[0])
    assert_unbiased(values, exact(model, family, window).elbo)


def test_one_compilation_and_a_carry_of_constant_size():
    """Before the window is full, when it is, and with missing rows: one compiled step, whose precision is that of λ."""
    p, q, ys = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), linear())
    ys = jnp.concatenate([ys, ys]).at[5].set(jnp.nan)
    estimator = FixedLag(3, 2, WindowIncrement())
    traces = []

    @jax.jit
    def step(q, carry, y, key):
        traces.append(None)
        return estimator.step(p, q, carry, y, key=key)

    carry, increments = estimator.init(p, q), []
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry)
    for t in range(len(ys)):
        carry, estimate = step(q, carry, ys[t], jax.random.key(t))
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry) == shapes
        assert {leaf.dtype for leaf in jax.tree.leaves(estimate)} == {np.dtype("float32")}
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((estimate.total, estimate.increment)))
        increments.append(estimate.increment.elbo)
    assert len(traces) == 1
    np.testing.assert_allclose(estimate.total.elbo, np.sum(np.array(increments, dtype=float)), rtol=1e-6)


class Driven(StateSpaceModel):
    """A walk pushed by its input."""

    scale: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1) + u, self.scale).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + u, self.scale).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.scale).to_event(1)


def test_inputs_reach_the_step_that_they_belong_to():
    """The ELBO of a pushed walk is that of one without pushes whose observations, and q, have them taken out.

    Both are computed from the same noise; q differs by the shift of its states alone.
    """
    half, one = jnp.full(1, 0.5), jnp.ones(1)
    still = LinearGaussian(jnp.zeros(1), half, one, one, half, half)
    ys, us = still.simulate(4, key=jax.random.key(0))[1], jnp.array([0.3, -1.0, 0.5, 2.0])[:, None]

    class Pushed(BackwardFamily):
        """q about the cumulated pushes: the state carries their sum."""

        base: Kalman
        affine: ClassVar[bool] = True
        amortized: ClassVar[bool] = True
        state_dim: ClassVar[int] = 1
        obs_dim: ClassVar[int] = 1

        def init(self, p, u=None):
            return self.base.init(p), jnp.zeros_like(u), jnp.zeros_like(u)

        def update(self, p, state, y, u=None):
            inner, total, _ = state
            return self.base.update(p, inner, y - total - u), total + u, total

        def marginal(self, state):
            mean, cov = self.base.marginal(state[0]).moments()
            return Gaussian.from_moments(mean + state[1], cov)

        def moments(self, state):
            return self.marginal(state).moments()

        def kernel(self, p, state):
            return Shifted(self.base.kernel(p, state[0]), *state[1:])

    class Shifted(AffinePotential):
        base: Kernel
        now: jax.Array
        before: jax.Array

        def potential(self, x):
            flat = self.base.potential(x - self.now)
            return Gaussian(flat.eta1 + flat.precision @ self.before, flat.eta2)

    p, q, run = Driven(half), Pushed(Kalman.from_model(still)), jax.jit(Scan(FixedLag(2, 2, WindowIncrement())))
    pushed = run(p, q, ys + jnp.cumsum(us, axis=0), us, key=jax.random.key(1))
    np.testing.assert_allclose(pushed.elbo, run(p, q, ys, 0 * us, key=jax.random.key(1)).elbo)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="lag must be at least 1, not 0"):
        FixedLag(0, 4)
    with pytest.raises(ValueError, match="num_trajectories must be at least 1, not 0"):
        FixedLag(4, 0)
    with pytest.raises(ValueError, match="num_trajectories must be at least 1, not -1"):
        BackwardTrajectories(-1)


def test_a_family_of_one_time_is_refused():
    """One λ for all times would run, and mean nothing."""
    from backstream.families import PerStep

    p, _, ys = linear()
    q = PerStep.create(p.mean0.size, ys.shape[1], 4, key=jax.random.key(0))
    with pytest.raises(TypeError, match="PerStep holds the parameters of one time only"):
        FixedLag(2, 2).init(p, q)
