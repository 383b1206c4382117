"""Ecology: counted tracks of a predator and its prey."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class LynxAndHare(StateSpaceModel):
    """Logarithms of both populations, in units of their balance."""

    tracks: Array  # counted in balance: of prey and predator

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 0.5).to_event(1)

    def transition(self, x, u=None):
        hare, lynx = jnp.exp(x)
        change = jnp.stack([0.3 * (1.5 - 0.5 * hare - lynx), 0.2 * (hare - 1)])
        return dist.Normal(x + change, 0.08).to_event(1)

    def emission(self, x, u=None):
        return dist.Poisson(self.tracks * jnp.exp(x)).to_event(1)


CASE = Case(
    name="lynx_and_hare",
    field="ecology",
    about="predator and prey, Poisson counts",
    build=lambda: LynxAndHare(jnp.array([10.0, 4.0])),
    reference=Particles(),
)
