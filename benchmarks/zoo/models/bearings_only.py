"""Sonar: bearings of a vessel from an observer who sails to and fro; the observer's position is a known input."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.paths import Paths


class BearingsOnly(StateSpaceModel):
    """States: east and north in km, and their velocities. Input: the observer's position."""

    acceleration: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.array([0.0, 10.0, 0.0, 0.0]), jnp.array([3.0, 3.0, 0.2, 0.2])).to_event(1)

    def transition(self, x, u=None):
        position, velocity = x[:2], x[2:]
        pull = 0.004 * (jnp.array([0.0, 10.0]) - position) - 0.03 * velocity
        mean = jnp.concatenate([position + velocity + pull / 2, velocity + pull])
        in_time = jnp.linalg.cholesky(jnp.array([[1 / 3, 1 / 2], [1 / 2, 1.0]]))
        return dist.MultivariateNormal(mean, scale_tril=self.acceleration * jnp.kron(in_time, jnp.eye(2)))

    def emission(self, x, u=None):
        east, north = x[0] - u[0], x[1] - u[1]
        return dist.Normal(jnp.arctan2(east, north)[None], self.noise).to_event(1)


def observer(seed, rows):
    """Along a line 20 km south of the vessel, 15 km to each side in 30 rows."""
    east = 15 * (2 / np.pi) * np.arcsin(np.sin(2 * np.pi * np.arange(rows) / 60))
    return np.stack([east, np.full(rows, -10.0)], 1)


CASE = Case(
    name="bearings_only",
    field="sonar",
    about="vessel by bearings from a moving observer",
    build=lambda: BearingsOnly(jnp.array(0.04), jnp.array(0.02)),
    reference=Paths(),
    rows=300,
    inputs=observer,
)
