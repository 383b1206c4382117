"""Convection: the Lorenz-63 flow, all three coordinates seen."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.references.particles import Particles


def velocity(x):
    return jnp.stack([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])


def runge_kutta(velocity, x, step):
    """One step of the classical fourth order."""
    k1 = velocity(x)
    k2 = velocity(x + step / 2 * k1)
    k3 = velocity(x + step / 2 * k2)
    k4 = velocity(x + step * k3)
    return x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Lorenz63(StateSpaceModel):
    """A row is 0.05 units of time. The first `columns` coordinates are seen."""

    columns: int
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.array([0.0, 0.0, 25.0]), jnp.array([8.0, 9.0, 8.0])).to_event(1)

    def transition(self, x, u=None):
        for _ in range(2):
            x = runge_kutta(velocity, x, 0.025)
        return dist.Normal(x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x[: self.columns], self.noise).to_event(1)


CASE = Case(
    name="lorenz63_three",
    field="convection",
    about="Lorenz-63, three coordinates seen",
    build=lambda: Lorenz63(3, jnp.array(1.5)),
    reference=Particles(),
    raw=seen_as(0, 1, 2, dim=3),
)
