"""Electrophysiology: a FitzHugh–Nagumo neuron with correlated process noise, its voltage seen."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.particles import Particles


class Membrane(StateSpaceModel):
    """States: voltage and recovery."""

    noise_factor: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.array([-1.0, -0.5]), jnp.array([1.0, 0.5])).to_event(1)

    def transition(self, x, u=None):
        voltage, recovery = x
        change = jnp.stack([voltage - voltage**3 / 3 - recovery + 0.5, 0.08 * (voltage + 0.7 - 0.8 * recovery)])
        return dist.MultivariateNormal(x + 0.2 * change, scale_tril=self.noise_factor)

    def emission(self, x, u=None):
        return dist.Normal(x[:1], self.noise).to_event(1)


def build():
    scales = jnp.array([0.1, 0.03])
    covariance = jnp.outer(scales, scales) * jnp.array([[1.0, -0.7], [-0.7, 1.0]])
    return Membrane(jnp.linalg.cholesky(covariance), jnp.array(0.3))


CASE = Case(
    name="membrane",
    field="electrophysiology",
    about="FitzHugh–Nagumo, correlated process noise",
    build=build,
    reference=Particles(),
    raw=seen_as(0, dim=2),
)
