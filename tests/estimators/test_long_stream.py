"""Nothing in the carry grows with t, and float32 holds over a long stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.estimators import RecursiveScore
from backstream.estimators.recursive import particles
from backstream.families import Kalman
from backstream.models import LinearGaussian

STEPS = 200_000


def _model(dtype):
    one = np.ones(1)
    return LinearGaussian(*(jnp.asarray(v, dtype) for v in (0 * one, one, 0.9 * one, one, 0.5 * one, 0.7 * one)))


def _family(dtype):
    one = np.ones(1)
    return Kalman.create(*(jnp.asarray(v, dtype) for v in (0 * one, one, 0.8 * one, one, 0.6 * one, 0.6 * one)))


@pytest.mark.slow
def test_float32_over_a_long_stream(monkeypatch):
    """At fixed λ, fed the same draws, the ELBO per step of float32 is that of float64 to 1e-4, and the carry is
    bounded.

    Observations and draws are made in float32 and cast, so that both precisions see the same numbers.
    """
    monkeypatch.setattr(
        particles,
        "standard_draws",
        lambda key, shape, dtype: jax.random.normal(key, shape, jnp.float32).astype(dtype),
    )
    ys = _model(jnp.float32).simulate(STEPS, key=jax.random.key(0))[1]
    key = jax.random.key(1)
    per_step, size = {}, {}
    for dtype in (jnp.float32, jnp.float64):
        p, q, estimator = _model(dtype), _family(dtype), RecursiveScore(4)

        @jax.jit
        def run(ys, p=p, q=q, estimator=estimator):
            def step(loop, scanned):
                carry, _, largest = loop
                t, y = scanned
                carry, estimate = estimator.step(p, q, carry, y, key=jax.random.fold_in(key, t))
                late = jnp.where(t > len(ys) // 2, 1, 0)
                size = jnp.maximum(jnp.abs(carry.H.at_samples).max(), jnp.abs(carry.G.at_samples).max())
                return (carry, estimate.total.elbo, largest.at[late].max(size)), None

            start = (estimator.init(p, q), jnp.zeros((), ys.dtype), jnp.zeros(2, ys.dtype))
            (_, elbo, largest), _ = jax.lax.scan(step, start, (jnp.arange(len(ys)), ys))
            return elbo / len(ys), largest

        elbo, largest = run(ys.astype(dtype))
        assert elbo.dtype == dtype
        per_step[dtype], size[dtype] = float(elbo), np.asarray(largest)
    assert abs(per_step[jnp.float32] / per_step[jnp.float64] - 1) < 1e-4, per_step
    # The largest entry of H and G in the second half of the stream is no larger than twice that of the first half.
    for largest in size.values():
        assert np.isfinite(largest).all()
        assert largest[1] < 2 * largest[0], size
