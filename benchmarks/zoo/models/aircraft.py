"""Navigation: constant velocity with one noise on position and velocity, so that the process noise is singular."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.kalman import Exact


class Aircraft(StateSpaceModel):
    """States: east, north and their velocities, in m and m/s. One random acceleration a row in each direction."""

    acceleration: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(4), jnp.array([1e3, 1e3, 50.0, 50.0])).to_event(1)

    def transition(self, x, u=None):
        mean = jnp.concatenate([x[:2] + x[2:], x[2:]])
        factor = jnp.kron(jnp.array([[0.5, 0.0], [1.0, 0.0]]), jnp.eye(2))
        return dist.MultivariateNormal(mean, scale_tril=self.acceleration * factor)

    def emission(self, x, u=None):
        return dist.Normal(x[:2], self.noise).to_event(1)


CASE = Case(
    name="aircraft",
    field="navigation",
    about="constant velocity, singular noise",
    build=lambda: Aircraft(jnp.array(0.5), jnp.array(15.0)),
    reference=Exact(),
    raw=seen_as(0, 1, dim=4),
)
