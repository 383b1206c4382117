"""Chemistry: two substances seen by three saturating sensors whose errors are correlated."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Sensors(StateSpaceModel):
    """States: log concentrations. A sensor's response to each substance saturates."""

    response: Array  # (3, 2)
    noise_factor: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.95 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.MultivariateNormal(self.response @ jax.nn.sigmoid(x), scale_tril=self.noise_factor)


def build():
    correlations = jnp.eye(3) + 0.6 * (1 - jnp.eye(3))
    return Sensors(jnp.array([[1.0, 0.2], [0.3, 1.0], [0.7, 0.7]]), 0.15 * jnp.linalg.cholesky(correlations))


CASE = Case(
    name="sensors",
    field="chemistry",
    about="saturating sensors, correlated errors",
    build=build,
    reference=Particles(),
)
