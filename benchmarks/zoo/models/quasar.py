"""Astronomy: the brightness of a quasar, measured at irregular times with known errors."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.kalman import Exact


class Quasar(StateSpaceModel):
    """An Ornstein–Uhlenbeck process. Inputs: days since the row before, 0 in the first, and the measurement's error."""

    mean: Array
    spread: Array
    days: Array  # of memory

    def prior(self, u=None):
        return dist.Normal(self.mean[None], self.spread).to_event(1)

    def transition(self, x, u=None):
        kept = jnp.exp(-u[0] / self.days)
        return dist.Normal(self.mean + kept * (x - self.mean), self.spread * jnp.sqrt(1 - kept**2)).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, u[1]).to_event(1)


def nights(seed, rows):
    random = np.random.default_rng([23, seed])
    waits = np.where(random.random(rows) < 0.02, 60.0, random.exponential(2.0, rows) + 0.01)
    waits[0] = 0.0
    return np.stack([waits, random.uniform(0.05, 0.3, rows)], 1)


CASE = Case(
    name="quasar",
    field="astronomy",
    about="irregular steps as input",
    build=lambda: Quasar(jnp.array(18.0), jnp.array(0.3), jnp.array(40.0)),
    reference=Exact(),
    inputs=nights,
    raw=seen_as(0, dim=1),
)
