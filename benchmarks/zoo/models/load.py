"""Energy: electric load with a level and a weekly pattern, whose process noise is singular."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.kalman import Exact


class Load(StateSpaceModel):
    """States: a level and six seasonal effects; the seven effects of a week sum to noise."""

    level_noise: Array
    season_noise: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.array([50.0, *[0.0] * 6]), jnp.array([10.0, *[5.0] * 6])).to_event(1)

    def transition(self, x, u=None):
        mean = jnp.concatenate([x[:1], -x[1:].sum()[None], x[1:6]])
        scale = jnp.concatenate([self.level_noise[None], self.season_noise[None], jnp.zeros(5)])
        return dist.Normal(mean, scale).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal((x[0] + x[1])[None], self.noise).to_event(1)


CASE = Case(
    name="load",
    field="energy",
    about="level and weekly season, singular noise",
    build=lambda: Load(jnp.array(0.5), jnp.array(0.3), jnp.array(2.0)),
    reference=Exact(),
)
