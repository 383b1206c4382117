"""The gradient of the log score reaches the prior too."""

import jax
import jax.numpy as jnp
import numpy as np

from backstream.estimators import LogScore, Scan
from backstream.estimators.base import flatten
from backstream.families import Guided
from backstream.models import LinearGaussian


def test_the_gradient_in_theta_has_the_priors_part():
    """Against central differences, in all numbers of a linear Gaussian model: the first two are those of its prior."""
    one = jnp.ones(1)
    p = LinearGaussian(0.5 * one, 1.3 * one, 0.8 * one, one, 0.5 * one, 0.7 * one)
    q, ys = Guided.from_model(p), p.simulate(4, key=jax.random.key(1))[1]
    theta, rebuild = flatten(p)
    run = jax.jit(lambda theta: Scan(LogScore(learn_model=True))(rebuild(theta), q, ys, key=jax.random.key(0)))
    found = flatten(run(theta).model_gradient)[0]
    ends = [[float(run(theta.at[i].add(sign * 1e-5)).elbo) for sign in (-1, 1)] for i in range(theta.size)]
    np.testing.assert_allclose(found, [(high - low) / 2e-5 for low, high in ends], rtol=1e-4, atol=1e-7)
    assert np.count_nonzero(np.abs(found) > 1e-3) >= 5
