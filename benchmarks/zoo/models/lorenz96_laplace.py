"""Weather: Lorenz-96 with forty states, every second one seen with Laplace noise."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.models.lorenz63_three import runge_kutta


def velocity(x):
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8


class Lorenz96(StateSpaceModel):
    """A row is 0.05 units of time."""

    dim: int
    process_noise: Array
    noise: Array  # standard deviation

    def prior(self, u=None):
        return dist.Normal(jnp.full(self.dim, 2.3), 3.6).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(runge_kutta(velocity, x, 0.05), self.process_noise).to_event(1)

    def emission(self, x, u=None):
        return dist.Laplace(x[::2], self.noise / jnp.sqrt(2.0)).to_event(1)


CASE = Case(
    name="lorenz96_laplace",
    field="weather",
    about="Lorenz-96, 40 states, half seen, Laplace noise",
    build=lambda: Lorenz96(40, jnp.array(0.1), jnp.array(1.0)),
    reference=None,
    raw=seen_as(*range(0, 40, 2), dim=40),
)
