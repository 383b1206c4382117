"""The recursion for five samples, by hand: weights, H, the score in θ, discounts, inputs and effective sample sizes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from backstream.estimators import BackwardSampling, FixedLag, NoBaseline, RecursiveScore, Renewal, SelfNormalized
from backstream.estimators.base import flatten
from backstream.estimators.fixed_lag import Window, _replay
from backstream.estimators.recursive.particles import backward_kernels
from backstream.families import Guided, Recurrent
from backstream.families.backward import backward_chain
from backstream.models import StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition

N, T, KEY = 5, 4, jax.random.key(2)


class Driven(StateSpaceModel):
    """A level that a known input pushes, and that is seen with a share of it."""

    push: jax.Array
    scale: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.8 * x + self.push * u, 0.5).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x - 0.4 * self.push * u, self.scale).to_event(1)


P = Driven(jnp.array([1.5]), jnp.array([0.4]))
US = jnp.array([[0.3], [-1.0], [2.0], [0.5]])
YS = P.simulate(T, US, key=KEY)[1]


THETA, REBUILD = flatten(P)


def first(v, x):
    return log_prior(REBUILD(v), x, US[0]) + log_emission(REBUILD(v), x, YS[0], US[0])


def joint(v, x0, x, y, u):
    return log_transition(REBUILD(v), x0, x, u) + log_emission(REBUILD(v), x, y, u)


@jax.jit
def all_pairs(before, xi, y, u):
    """log ℓ_t and its gradient in θ, for each of the samples at t and each before it."""
    rows = jax.vmap(jax.value_and_grad(joint), (None, 0, None, None, None))
    return jax.vmap(rows, (None, None, 0, None, None))(THETA, before, xi, y, u)


def by_hand(states, samples, gamma):
    """ELBO, gradient in θ and effective sample size, with plain self-normalized weights."""
    laws = [stats.norm(*(float(np.ravel(part)[0]) for part in (state.mean, state.factor))) for state in states]
    H, S = map(np.asarray, jax.vmap(jax.value_and_grad(first), (None, 0))(THETA, samples[0]))
    ess = np.nan
    for t in range(1, T):
        xi, before, log_q = samples[t], samples[t - 1], laws[t - 1].logpdf(samples[t - 1][:, 0])
        back, gain, cov = (float(np.ravel(part)[0]) for part in states[t].kernel)
        log_kernel = stats.norm(back + gain * np.asarray(xi), np.sqrt(cov)).logpdf(before[:, 0])
        w = np.exp(log_kernel - log_q)
        w /= w.sum(1, keepdims=True)
        f, s = map(np.asarray, all_pairs(before, xi, YS[t], US[t]))
        renewed = gamma * H + (1 - gamma) * log_q
        H, S = (w * (renewed + f - log_kernel)).sum(1), np.einsum("ij,ijk->ik", w, gamma * S + s)
        ess = (1 / (w**2).sum(1)).mean()
    return (H - laws[-1].logpdf(samples[-1][:, 0])).mean(), S.mean(0), ess


@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_elbo_score_and_sample_size_are_those_of_the_recursion(gamma):
    estimator = RecursiveScore(N, SelfNormalized(), baseline=NoBaseline(), objective=Renewal(gamma), learn_model=True)
    q = Guided.from_model(P, US[0])
    carry, step, carries = estimator.init(P, q, US[0]), jax.jit(estimator.step), []
    for t in range(T):
        carry, estimate = step(P, q, carry, YS[t], US[t], key=jax.random.fold_in(KEY, t))
        carries.append(carry)
    states, samples = zip(*((one.particles.state, one.particles.xi) for one in carries), strict=True)
    state = q.init(P, US[0])
    for t, found in enumerate(states):
        state = q.update(P, state, YS[t], US[t])
        np.testing.assert_allclose(found.mean, state.mean, rtol=1e-8)
    elbo, score, ess = by_hand(states, samples, gamma)
    np.testing.assert_allclose(estimate.total.elbo, elbo, rtol=1e-8)
    np.testing.assert_allclose(flatten(estimate.total.model_gradient)[0], score, rtol=1e-7)
    np.testing.assert_allclose(estimate.ess, ess, rtol=1e-8)


def test_averages_over_sampled_pairs_are_discounted():
    """Against the mean of the gathered values, row by row."""
    q = Guided.from_model(P, US[0])
    estimator = RecursiveScore(N, BackwardSampling(3))
    carry, _ = jax.jit(estimator.step)(P, q, estimator.init(P, q, US[0]), YS[0], US[0], key=KEY)
    state = q.update(P, carry.particles.state, YS[1], US[1])
    kernels = backward_kernels(q.kernel(P, state), carry.particles, carry.particles.xi)
    pairs = BackwardSampling(3).pairs(kernels, carry.particles.z, key=KEY)
    values, row = jax.random.normal(KEY, (N, 2)), jnp.full(N, 1 / N)
    gathered = 0.7 * np.asarray(pairs.gather(values)).mean(1)
    centered, mean = pairs.centered_average(values, row, 0.7)
    np.testing.assert_allclose(mean, gathered.mean(0), rtol=1e-8)
    np.testing.assert_allclose(centered, gathered - gathered.mean(0), atol=1e-8)


@pytest.mark.slow
def test_the_prior_of_a_window_is_frozen():
    """The marginal of a recurrent family has a λ of its own: the gradient does not go through the window's prior."""
    q = Recurrent.create(1, 1, 3, key=KEY)
    estimator = FixedLag(2, 3)
    carry, step = estimator.init(P, q, US[0]), eqx.filter_jit(estimator.step)
    for t in range(3):
        carry, _ = step(P, q, carry, YS[t], US[t], key=jax.random.fold_in(KEY, t))
    key = jax.random.fold_in(KEY, 9)
    _, estimate = step(P, q, carry, YS[3], US[3], key=key)
    (lam, rebuild), (ys, us), anchor = flatten(q), (YS[2:], US[2:]), carry.anchor
    noise = jax.random.normal(key, (3, 3, 1), lam.dtype)

    def elbo(lam, prior):
        q = rebuild(lam)
        chain = backward_chain(P, q, _replay(P, q, anchor, ys, us))
        return Window(chain, ys, us, prior(q), jnp.arange(2, 4)).elbos(P, q, noise).mean() / 2

    frozen, moving = (
        jax.grad(elbo)(lam, prior) for prior in (lambda _: q.marginal(anchor), lambda q: q.marginal(anchor))
    )
    np.testing.assert_allclose(flatten(estimate.increment.gradient)[0], frozen, rtol=1e-7, atol=1e-10)
    assert np.abs(moving - frozen).max() > 1e-3
