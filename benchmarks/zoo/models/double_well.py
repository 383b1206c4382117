"""Chemistry: a particle that hops between two wells, weakly seen."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.grid import Grid


class DoubleWell(StateSpaceModel):
    """Motion downhill in (x² − 1)², with noise."""

    heat: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + 0.1 * 4 * x * (1 - x**2), self.heat).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.noise).to_event(1)


CASE = Case(
    name="double_well",
    field="chemistry",
    about="hops between two wells",
    build=lambda: DoubleWell(jnp.array(0.25), jnp.array(2.0)),
    reference=Grid(margin=2.0),
    raw=seen_as(0, dim=1),
)
