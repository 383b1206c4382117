"""Neuroscience: spikes of thirty neurons that follow a rhythm of two states and a slow third one."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles

LOADINGS = 0.5 * np.random.default_rng(7).normal(size=(30, 3))  # JAX draws other numbers in another precision


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
    build=lambda: Spikes(jnp.asarray(LOADINGS), jnp.array(-1.5)),
    reference=Particles(),
    rows=500,
)
