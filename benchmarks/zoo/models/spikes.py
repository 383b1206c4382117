"""Neuroscience: spikes of thirty neurons that follow a rhythm of two states and a slow third one."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Spikes(StateSpaceModel):
    """Counts in bins: log rate = base + loadings x."""

    loadings: Array  # (30, 3)
    base: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

    def transition(self, x, u=None):
        angle, kept = 0.2, 0.98
        rhythm = kept * jnp.stack(
            [jnp.cos(angle) * x[0] - jnp.sin(angle) * x[1], jnp.sin(angle) * x[0] + jnp.cos(angle) * x[1]]
        )
        mean = jnp.concatenate([rhythm, 0.99 * x[2:]])
        return dist.Normal(mean, jnp.array([0.2, 0.2, 0.14])).to_event(1)

    def emission(self, x, u=None):
        return dist.Poisson(jnp.exp(self.base + self.loadings @ x)).to_event(1)


CASE = Case(
    name="spikes",
    field="neuroscience",
    about="Poisson spikes of 30 neurons",
    build=lambda: Spikes(0.5 * jax.random.normal(jax.random.key(7), (30, 3), float), jnp.array(-1.5)),
    reference=Particles(),
)
