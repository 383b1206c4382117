"""The recursive score estimator against a loop-by-loop reading of the paper's equations."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from backstream.estimators import (
    AcceptReject,
    BackwardSampling,
    Forward,
    Increment,
    LeaveOneOut,
    MomentCorrected,
    NoBaseline,
    Quadratic,
    RecursiveScore,
    Renewal,
    SameSample,
    SelfNormalised,
    Truncated,
)
from backstream.families import Kalman
from backstream.models import LinearGaussian

D, DY, T, N = 2, 2, 5, 6


def model():
    return LinearGaussian.random(D, DY, key=jax.random.key(3))


def family():
    return Kalman.random(model(), key=jax.random.key(4))


def observations(num_steps=T):
    return model().simulate(num_steps, key=jax.random.key(5))[1]


def oracle_lambda(q):
    """λ, or a gradient like it, in the oracle's order."""
    own = q.dynamics
    parts = [own.A, q.B.ravel(), own.noise.log_scale, q.emission_noise.log_scale, own.mean0, own.prior.log_scale]
    return np.concatenate([np.asarray(part) for part in parts])


def oracle_model():
    m = model().dense()
    return oracle.LinearGaussian(*(np.asarray(part) for part in (m.A, m.B, m.Q, m.R, m.mean0, m.Q0)))


def draws(key, num_steps, num_particles):
    """The standard normal draws that the estimator makes at each step from the keys fold_in(key, t)."""
    keys = [jax.random.fold_in(key, t) for t in range(num_steps)]
    keys = [keys[0]] + [jax.random.split(k)[0] for k in keys[1:]]
    return [np.asarray(jax.random.normal(k, (num_particles, D))) for k in keys]


def run(estimator, ys, key=jax.random.key(6)):
    p, q = model(), family()
    carry, estimate = estimator.init(p, q, ys[0], key=jax.random.fold_in(key, 0))
    carries, estimates = [carry], [estimate]
    for t in range(1, len(ys)):
        carry, estimate = jax.jit(estimator.step)(p, q, carry, ys[t], key=jax.random.fold_in(key, t))
        carries.append(carry)
        estimates.append(estimate)
    return carries, estimates


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("baseline", [LeaveOneOut(), SameSample(), NoBaseline()], ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("depth", [None, 1, 2, 3])
def test_equals_the_loops(gamma, baseline, depth):
    key = jax.random.key(6)
    sensitivity = Forward() if depth is None else Truncated(depth)
    estimator = RecursiveScore(N, SelfNormalised(), sensitivity, baseline, Renewal(gamma))
    ys = observations()
    _, estimates = run(estimator, ys, key)
    name = {LeaveOneOut: "leave-one-out", SameSample: "same", NoBaseline: "none"}[type(baseline)]
    expected = oracle.recursive_score(
        oracle_model(),
        oracle.kalman_family(D, DY),
        oracle_lambda(family()),
        np.asarray(ys),
        draws(key, T, N),
        baseline=name,
        depth=depth,
        gamma=gamma,
    )
    for t, estimate in enumerate(estimates):
        np.testing.assert_allclose(estimate.total.elbo, expected.elbos[t], rtol=1e-8)
        np.testing.assert_allclose(oracle_lambda(estimate.total.gradient), expected.gradients[t], rtol=1e-6, atol=1e-7)
    change = np.diff(expected.gradients, axis=0, prepend=0) if gamma == 1 else (1 - gamma) * expected.gradients
    for t, estimate in enumerate(estimates):
        np.testing.assert_allclose(oracle_lambda(estimate.increment.gradient), change[t], rtol=1e-6, atol=1e-7)
