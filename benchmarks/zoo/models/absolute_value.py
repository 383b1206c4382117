"""An autoregression seen as its absolute value: two modes of opposite signs."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid


class AbsoluteValue(StateSpaceModel):
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(1 + 0.95 * (x - 1), 1.0).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.abs(x), self.noise).to_event(1)


CASE = Case(
    name="absolute_value",
    field="benchmark",
    about="autoregression around 1 seen as |x|",
    build=lambda: AbsoluteValue(jnp.array(2.5)),
    reference=Grid(margin=20.0),
)
