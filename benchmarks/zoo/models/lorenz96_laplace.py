"""Weather: Lorenz-96 with forty states, every second one seen with Laplace noise."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.models.lorenz63_three import runge_kutta
from benchmarks.zoo.references.chains import Chains


def velocity(x):
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8


class Lorenz96(StateSpaceModel):
    """A row is 0.05 units of time. The start is known from an earlier analysis."""

    analysis: Array
    process_noise: Array
    noise: Array  # standard deviation

    def prior(self, u=None):
        return dist.Normal(self.analysis, 0.5).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(runge_kutta(velocity, x, 0.05), self.process_noise).to_event(1)

    def emission(self, x, u=None):
        return dist.Laplace(x[::2], self.noise / jnp.sqrt(2.0)).to_event(1)


@cache
def analysis() -> np.ndarray:
    """A state after twenty units of time, in float64: in another precision it would be quite another one."""

    def advance(x, _):
        return runge_kutta(velocity, x, 0.05), None

    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(jax.lax.scan(advance, 8 + jnp.sin(jnp.arange(40.0)), length=400)[0])


def build():
    return Lorenz96(jnp.asarray(analysis()), jnp.array(0.1), jnp.array(1.0))


CASE = Case(
    name="lorenz96_laplace",
    field="weather",
    about="Lorenz-96, 40 states, half seen, Laplace noise",
    build=build,
    reference=Chains(),
    rows=100,
    raw=seen_as(*range(0, 40, 2), dim=40),
)
