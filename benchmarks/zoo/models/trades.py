"""Market microstructure: seconds between trades, with a hidden pace."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid


class Trades(StateSpaceModel):
    """The log of the mean wait is an autoregression; waits have a gamma law."""

    level: Array
    shape: Array

    def prior(self, u=None):
        return dist.Normal(self.level[None], 0.7).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.level + 0.96 * (x - self.level), 0.2).to_event(1)

    def emission(self, x, u=None):
        return dist.Gamma(self.shape, self.shape * jnp.exp(-x)).to_event(1)


CASE = Case(
    name="trades",
    field="market microstructure",
    about="gamma waits between trades",
    build=lambda: Trades(jnp.array(2.0), jnp.array(0.8)),
    rows=2000,
    reference=Grid(margin=3.0),
)
