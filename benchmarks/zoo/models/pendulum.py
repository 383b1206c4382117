"""Mechanics: a pendulum that is pushed at random, seen from the side."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Pendulum(StateSpaceModel):
    """States: angle and angular velocity. Seen: the sine of the angle."""

    push: Array
    noise: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), jnp.array([0.6, 2.0])).to_event(1)

    def transition(self, x, u=None):
        step = 0.05
        angle, speed = x
        speed = speed - step * (9.81 * jnp.sin(angle) + 0.1 * speed)
        mean = jnp.stack([angle + step * speed, speed])
        return dist.Normal(mean, jnp.stack([0.1 * self.push, self.push])).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.sin(x[:1]), self.noise).to_event(1)


CASE = Case(
    name="pendulum",
    field="mechanics",
    about="pendulum seen from the side",
    build=lambda: Pendulum(jnp.array(0.2), jnp.array(0.1)),
    reference=Particles(),
)
