"""Industry: a thermometer with outliers."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.grid import Grid


class Thermometer(StateSpaceModel):
    """A local level with Student-t errors of three degrees of freedom."""

    drift: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.full(1, 20.0), 2.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, self.drift).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(3.0, x, self.noise).to_event(1)


CASE = Case(
    name="thermometer",
    field="industry",
    about="local level, Student-t outliers",
    build=lambda: Thermometer(jnp.array(0.1), jnp.array(0.4)),
    reference=Grid(margin=3.0),
    rows=2000,
    raw=seen_as(0, dim=1),
)
