"""Health: a diary with a number, a count and a yes or no in each row; the joint law has only a density and draws."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Day(dist.Distribution):
    """Hours of sleep, messages sent, and whether the person went out."""

    support = constraints.real_vector

    def __init__(self, sleep, messages, out):
        self.sleep = dist.Normal(sleep, 1.0)
        self.messages = dist.Poisson(messages)
        self.out = dist.Bernoulli(logits=out)
        super().__init__(batch_shape=(), event_shape=(3,))

    def sample(self, key, sample_shape=()):
        keys = jax.random.split(key, 3)
        parts = zip((self.sleep, self.messages, self.out), keys, strict=True)
        return jnp.stack([law.sample(key, sample_shape).astype(float) for law, key in parts], -1)

    def log_prob(self, value):
        sleep, messages, out = value[..., 0], value[..., 1], value[..., 2]
        return self.sleep.log_prob(sleep) + self.messages.log_prob(messages) + self.out.log_prob(out)


class Diary(StateSpaceModel):
    """Two slow states: energy and mood."""

    mixing: Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.mixing @ x, 0.3).to_event(1)

    def emission(self, x, u=None):
        energy, mood = x
        return Day(7 - 0.8 * energy, 3 * jnp.exp(0.6 * mood), 0.5 + energy + mood)


CASE = Case(
    name="diary",
    field="health",
    about="normal, Poisson and binary column in one custom law",
    build=lambda: Diary(jnp.array([[0.93, 0.05], [-0.05, 0.95]])),
    reference=Particles(),
)
