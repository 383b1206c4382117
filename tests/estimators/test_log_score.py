"""The gradient of the log score, carried forward: that of the sum of the log scores of all rows."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

from backstream.estimators import LogScore
from backstream.families import Guided
from backstream.models import StateSpaceModel

KEY = jax.random.key(0)


class Learned(StateSpaceModel):
    """A flow that is a network, with as many units as wished."""

    net: Any
    sigma: Any

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + self.net(x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)


@pytest.mark.parametrize("width", [1, 16], ids=["fewer parameters than numbers of the state", "more"])
def test_the_gradient_is_that_of_the_sum_of_log_scores(width):
    p = Learned(eqx.nn.MLP(1, 1, width, 1, activation=jnp.tanh, key=KEY), jnp.array(0.3))
    q, ys = Guided.from_model(p), jnp.array([[1.0], [0.0], [3.0]])
    theta, rebuild = ravel_pytree(eqx.filter(p, eqx.is_inexact_array))
    static = eqx.filter(p, eqx.is_inexact_array, inverse=True)
    sizes = theta.size, ravel_pytree(eqx.filter(q.init(p), eqx.is_inexact_array))[0].size
    assert (sizes[0] > sizes[1]) == (width == 16)

    @jax.jit
    def total(theta):
        p = eqx.combine(rebuild(theta), static)
        state, score = q.init(p), 0.0
        for y in ys:
            state = q.update(p, state, y)
            score = score + q.log_score(state)
        return score

    @eqx.filter_jit
    def carried(p):
        estimator = LogScore(learn_model=True, learn_family=False)
        carry, estimate = estimator.init(p, q, ys[0], key=KEY)
        for y in ys[1:]:
            carry, estimate = estimator.step(p, q, carry, y, key=KEY)
        return estimate.total

    found = carried(p)
    np.testing.assert_allclose(found.elbo, total(theta), rtol=1e-10)
    gradient = ravel_pytree(found.model_gradient)[0]
    for direction in jax.random.normal(KEY, (2, theta.size)):
        step = 1e-5 * direction
        slope = (total(theta + step) - total(theta - step)) / 2e-5
        np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-6)
