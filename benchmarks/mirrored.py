"""States that the observations cannot tell from their mirror images."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, Data, Posterior
from benchmarks.zoo.models.lorenz63_three import Lorenz63
from benchmarks.zoo.references.grid import Grid
from benchmarks.zoo.references.particles import average, particle_filter
from benchmarks.zoo.references.plane import Plane

SENSORS = np.array([-3.0, 3.0])
"""On the east axis."""


class Walk(StateSpaceModel):
    """A random walk seen as its absolute value: the setting of the Wasserstein flow filter, except that the walk
    does not start at zero. If it did, the exact mean would be zero at every row, and its errors would say nothing."""

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


class Convection(Lorenz63):
    """Lorenz-63 seen in its third coordinate. The flow does not change when the signs of the first two do."""

    def emission(self, x, u=None):
        return dist.Normal(x[2:], self.noise).to_event(1)


@dataclass(frozen=True)
class Scores:
    """The log score by `runs` particle filters of `number` particles; the proof has half of these each."""

    number: int
    runs: int
    name: str = "particle filters"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        ys, us = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)

        def scored(number: int, runs: int) -> Posterior:
            keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), run) for run in range(runs)]
            found = [particle_filter(model, ys, us, number, key) for key in keys]
            return average([Posterior(mean, cov, mean, cov, score) for mean, cov, score in found])

        full, half = scored(self.number, self.runs), scored(self.number // 2, self.runs)
        return full, half, f"{self.runs} × {self.number} particles"


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
    reference=Plane(reach=12.0, nodes=320),
    rows=300,
)
LORENZ = Case(
    name="mirrored_lorenz",
    field="convection",
    about="Lorenz-63 seen in z",
    build=lambda: Convection(1, jnp.array(1.0)),
    reference=Scores(number=16384, runs=4),
    rows=300,
)
