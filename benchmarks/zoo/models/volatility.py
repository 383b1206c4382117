"""Finance: returns whose log variance is hidden."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid


class Volatility(StateSpaceModel):
    """The log variance is an autoregression of order one."""

    level: Array
    kept: Array
    scale: Array

    def prior(self, u=None):
        return dist.Normal(self.level[None], self.scale / jnp.sqrt(1 - self.kept**2)).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.level + self.kept * (x - self.level), self.scale).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.zeros(1), jnp.exp(x / 2)).to_event(1)


CASE = Case(
    name="volatility",
    field="finance",
    about="stochastic volatility, one series",
    build=lambda: Volatility(jnp.array(-1.0), jnp.array(0.97), jnp.array(0.25)),
    rows=2000,
    reference=Grid(margin=4.0),
)
