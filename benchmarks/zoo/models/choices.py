"""Psychology: right and wrong answers of a learner whose skill wanders."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid


class Choices(StateSpaceModel):
    """The log odds of a right answer are a random walk."""

    drift: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, self.drift).to_event(1)

    def emission(self, x, u=None):
        return dist.Bernoulli(logits=x).to_event(1)


CASE = Case(
    name="choices",
    field="psychology",
    about="binary answers, random walk",
    build=lambda: Choices(jnp.array(0.05)),
    rows=2000,
    reference=Grid(margin=6.0),
)
