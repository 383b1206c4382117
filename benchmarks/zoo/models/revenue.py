"""Business: daily revenue near a million, with a trend."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.kalman import Exact


class Revenue(StateSpaceModel):
    """A level and a damped slope, in euros."""

    level_noise: Array
    slope_noise: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.array([1e6, 0.0]), jnp.array([2e5, 1e3])).to_event(1)

    def transition(self, x, u=None):
        mean = jnp.stack([x[0] + x[1], 0.98 * x[1]])
        return dist.Normal(mean, jnp.stack([self.level_noise, self.slope_noise])).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x[:1], self.noise).to_event(1)


CASE = Case(
    name="revenue",
    field="business",
    about="trend near 10⁶",
    build=lambda: Revenue(jnp.array(2e3), jnp.array(200.0), jnp.array(2e4)),
    reference=Exact(),
    raw=seen_as(0, dim=2),
)
