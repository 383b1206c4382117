"""Ecology: one of four behaviors of an animal, labeled every minute."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Labels(StateSpaceModel):
    """Two slow drives; the four behaviors are most likely in four directions of them."""

    directions: Array  # (4, 2)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.97 * x, 0.25).to_event(1)

    def emission(self, x, u=None):
        return dist.Categorical(logits=self.directions @ x).expand([1]).to_event(1)


CASE = Case(
    name="labels",
    field="ecology",
    about="four behavior labels (Categorical)",
    build=lambda: Labels(1.5 * jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])),
    reference=Particles(),
)
