"""Solar physics: a cycle as an autoregression of order two in companion form, whose process noise is singular."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.kalman import Exact


class Sunspots(StateSpaceModel):
    """States: this year's activity and last year's."""

    coefficients: Array
    shock: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 30.0).to_event(1)

    def transition(self, x, u=None):
        mean = jnp.stack([self.coefficients @ x, x[0]])
        return dist.Normal(mean, jnp.stack([self.shock, jnp.zeros(())])).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x[:1], self.noise).to_event(1)


CASE = Case(
    name="sunspots",
    field="solar physics",
    about="AR(2) in companion form, singular noise",
    build=lambda: Sunspots(jnp.array([1.6, -0.9]), jnp.array(8.0), jnp.array(10.0)),
    reference=Exact(),
    raw=seen_as(0, dim=2),
)
