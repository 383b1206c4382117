"""Hydrology: the level of a river, which changes slowly and, at times, at once."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.grid import Grid


class River(StateSpaceModel):
    """An autoregression with Student-t steps of 2.5 degrees of freedom."""

    step: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.StudentT(2.5, 0.98 * x, self.step).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.noise).to_event(1)


CASE = Case(
    name="river",
    field="hydrology",
    about="Student-t level shifts",
    build=lambda: River(jnp.array(0.05), jnp.array(0.5)),
    reference=Grid(margin=4.0),
    raw=seen_as(0, dim=1),
)
