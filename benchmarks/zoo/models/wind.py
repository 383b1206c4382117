"""Meteorology: the direction of the wind, seen as an angle between −π and π."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.grid import Grid


class Wind(StateSpaceModel):
    """The direction wanders around a prevailing one; the vane's errors have a von Mises law."""

    prevailing: Array
    concentration: Array

    def prior(self, u=None):
        return dist.Normal(self.prevailing[None], 0.75).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.prevailing + 0.98 * (x - self.prevailing), 0.15).to_event(1)

    def emission(self, x, u=None):
        return dist.VonMises(x, self.concentration).to_event(1)


CASE = Case(
    name="wind",
    field="meteorology",
    about="wrapped wind directions (VonMises)",
    build=lambda: Wind(jnp.array(2.0), jnp.array(4.0)),
    reference=Grid(margin=3.0),
    rows=2000,
    raw=seen_as(0, dim=1),
)
