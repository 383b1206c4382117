"""Finance: the logarithm of a price that drifts and, now and then, jumps; quotes with noise."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.grid import Grid


class Price(StateSpaceModel):
    """A random walk whose steps are a mixture of two normal laws: a jump with a probability of 0.03."""

    scales: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 0.1).to_event(1)

    def transition(self, x, u=None):
        rare = dist.CategoricalProbs(jnp.array([0.97, 0.03]))
        return dist.MixtureSameFamily(rare, dist.Normal(x[:, None], self.scales)).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.noise).to_event(1)


CASE = Case(
    name="price",
    field="finance",
    about="random walk with jumps",
    build=lambda: Price(jnp.array([0.01, 0.15]), jnp.array(0.03)),
    reference=Grid(margin=0.3),
    raw=seen_as(0, dim=1),
)
