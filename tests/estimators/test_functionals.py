"""Additive functionals ride on the same weights: exact in the linear-Gaussian case, and the user's own work too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.estimators import (
    AdditiveFunctional,
    AdditiveSmoother,
    BackwardSampling,
    MomentCorrected,
    Quadratic,
    RecursiveScore,
    linear_gaussian_statistics,
    moments,
)
from backstream.posterior import sample_trajectories, smooth
from linear_gaussian import D, T, family, model, observations

EXACT = MomentCorrected(Quadratic(cross=True), ridge=0.0, cap=1e6)


def run(smoother, q, ys, key):
    @jax.jit
    def whole(ys):
        def step(carry, scanned):
            t, y = scanned
            return smoother.step(model(), q, carry, y, key=jax.random.fold_in(key, t))

        carry, values = jax.lax.scan(step, smoother.init(model(), q), (jnp.arange(len(ys)), ys))
        return carry, jax.tree.map(lambda v: v[-1], values)

    return whole(ys)


def test_moments_are_those_of_the_smoother():
    """Σ E[x_s] and Σ E[x_s x_sᵀ] under q_{0:t}, in closed form, against one run with corrected weights."""
    q, ys = family(), observations()
    law = smooth(model(), q, ys)
    _, found = run(AdditiveSmoother(moments(), 12, EXACT), q, ys, jax.random.key(0))
    np.testing.assert_allclose(found["x"], law.mean.sum(0), rtol=1e-7, atol=1e-9)
    second = law.cov + law.mean[:, :, None] * law.mean[:, None, :]
    np.testing.assert_allclose(found["xx"], second.sum(0), rtol=1e-7, atol=1e-9)


def test_sufficient_statistics_agree_with_trajectories():
    """The pair statistics against 20 000 sampled trajectories: z-scores below 5 for 24 numbers, error rate 1e-5."""
    q, ys = family(), observations()
    _, found = run(AdditiveSmoother(linear_gaussian_statistics(), 12, EXACT), q, ys, jax.random.key(0))
    xs = np.asarray(sample_trajectories(model(), q, ys, num_trajectories=20_000, key=jax.random.key(1)))
    ys = np.asarray(ys)
    pairs = {
        "pp": np.einsum("nti,ntj->nij", xs[:, :-1], xs[:, :-1]),
        "xp": np.einsum("nti,ntj->nij", xs[:, 1:], xs[:, :-1]),
        "xx": np.einsum("nti,ntj->nij", xs[:, 1:], xs[:, 1:]),
        "xx_seen": np.einsum("nti,ntj->nij", xs, xs),
        "yx": np.einsum("ti,ntj->nij", ys, xs),
    }
    for name, values in pairs.items():
        z = (values.mean(0) - np.asarray(found[name])) / (values.std(0) / np.sqrt(len(values)))
        assert np.abs(z).max() < 5, (name, z)
    np.testing.assert_allclose(found["yy"], ys.T @ ys, rtol=1e-10)


@pytest.mark.slow
def test_users_own_functional_with_plain_and_sampled_weights():
    """A nonlinear functional, inside RecursiveScore and alone, approaches its value from trajectories: within 5 %."""
    distance = AdditiveFunctional(
        first=lambda x, y: {"far": jnp.zeros(())},
        increment=lambda x_previous, x, y: {"far": jnp.sqrt(jnp.sum((x - x_previous) ** 2))},
    )
    q, ys = family(), observations()
    xs = sample_trajectories(model(), q, ys, num_trajectories=5000, key=jax.random.key(1))
    expected = float(jnp.linalg.norm(jnp.diff(xs, axis=1), axis=-1).sum(1).mean())
    for weights in (BackwardSampling(2), EXACT):
        _, found = run(AdditiveSmoother(distance, 500, weights), q, ys, jax.random.key(0))
        assert abs(float(found["far"]) - expected) < 0.05 * expected
    estimator = RecursiveScore(500, functional=distance)
    carry, step = estimator.init(model(), q), jax.jit(estimator.step)
    for t in range(T):
        carry, estimate = step(model(), q, carry, ys[t], key=jax.random.fold_in(jax.random.key(0), t))
    assert abs(float(estimate.functional["far"]) - expected) < 0.05 * expected


def test_carry_does_not_grow():
    q, ys = family(), model().simulate(400, key=jax.random.key(9))[1]
    for length in (100, 400):
        carry, _ = run(AdditiveSmoother(moments(), 10), q, ys[:length], jax.random.key(0))
        assert carry.F.at_samples.shape == (10, D + D * D)
        assert jnp.abs(carry.F.at_samples).max() < 100
