"""Radar: an aircraft that circles a holding point, seen in range and bearing."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.paths import Paths

HOLDING_POINT = (0.0, 30.0)


class RangeBearing(StateSpaceModel):
    """States: east and north in km and their velocities; white acceleration, drag and a pull to the holding point."""

    acceleration: Array
    noise: Array  # of range and bearing

    def prior(self, u=None):
        return dist.Normal(jnp.array([*HOLDING_POINT, 0.0, 0.0]), jnp.array([5.0, 5.0, 0.25, 0.25])).to_event(1)

    def transition(self, x, u=None):
        position, velocity = x[:2], x[2:]
        pull = 0.002 * (jnp.array(HOLDING_POINT) - position) - 0.02 * velocity
        mean = jnp.concatenate([position + velocity + pull / 2, velocity + pull])
        in_time = jnp.linalg.cholesky(jnp.array([[1 / 3, 1 / 2], [1 / 2, 1.0]]))
        return dist.MultivariateNormal(mean, scale_tril=self.acceleration * jnp.kron(in_time, jnp.eye(2)))

    def emission(self, x, u=None):
        east, north = x[0], x[1]
        mean = jnp.stack([jnp.hypot(east, north), jnp.arctan2(east, north)])
        return dist.Normal(mean, self.noise).to_event(1)


def shown(ys, us):
    none = np.full(len(ys), np.nan)
    return np.stack([ys[:, 0] * np.sin(ys[:, 1]), ys[:, 0] * np.cos(ys[:, 1]), none, none], 1)


CASE = Case(
    name="range_bearing",
    field="radar",
    about="aircraft in range and bearing",
    build=lambda: RangeBearing(jnp.array(0.05), jnp.array([0.5, 0.02])),
    reference=Paths(),
    rows=300,
    raw=shown,
)
