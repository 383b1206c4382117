"""States that the observations cannot tell from their mirror images."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid
from benchmarks.zoo.references.plane import Plane

SENSORS = np.array([-3.0, 3.0])
"""On the east axis."""


class Walk(StateSpaceModel):
    """A random walk seen as its absolute value: the setting of the Wasserstein flow filter, but for a start off zero.
    With a start around zero the exact mean is zero for ever, and tells nothing."""

    def prior(self, u=None):
        return dist.Normal(jnp.ones(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, 1.0).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.abs(x), 2.5).to_event(1)


class Mirrored(StateSpaceModel):
    """Tracking with two sensors on a line. States: east and north. They wander around the origin."""

    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 2.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.97 * x, 0.5).to_event(1)


class Ranges(Mirrored):
    def emission(self, x, u=None):
        return dist.Normal(
            jnp.sqrt((x[0] - jnp.asarray(SENSORS, x.dtype)) ** 2 + x[1] ** 2 + 1e-6), self.noise
        ).to_event(1)


class Bearings(Mirrored):
    """Of hydrophones that hear an angle with the axis and no side."""

    def emission(self, x, u=None):
        return dist.Normal(jnp.arctan2(jnp.abs(x[1]), x[0] - jnp.asarray(SENSORS, x.dtype)), self.noise).to_event(1)


WALK = Case(
    name="mirrored_walk",
    field="benchmark",
    about="random walk seen as |x|",
    build=Walk,
    reference=Grid(margin=20.0, nodes=400),
    rows=500,
)
RANGES = Case(
    name="mirrored_ranges",
    field="tracking",
    about="ranges from two sensors on a line",
    build=lambda: Ranges(jnp.array(0.5)),
    reference=Plane(reach=12.0),
    rows=300,
)
BEARINGS = Case(
    name="mirrored_bearings",
    field="tracking",
    about="bearings without a side",
    build=lambda: Bearings(jnp.array(0.1)),
    reference=Plane(reach=12.0),
    rows=300,
)
