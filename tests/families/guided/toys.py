"""Models made of two functions, for tests."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from backstream.models import StateSpaceModel


def drift(x, u):
    return dist.Normal(0.9 * x, 0.3).to_event(1)


class Toy(StateSpaceModel):
    """X_0 ~ N(mean, scale² I), with the transition and the emission that it is given."""

    emit: Callable[..., Any] = eqx.field(static=True)
    move: Callable[..., Any] = eqx.field(static=True, default=drift)
    d: int = eqx.field(static=True, default=1)
    mean: float = 0.0
    scale: float = 1.0

    def prior(self, u=None):
        return dist.Normal(jnp.full(self.d, self.mean), self.scale).to_event(1)

    def transition(self, x, u=None):
        return self.move(x, u)

    def emission(self, x, u=None):
        return self.emit(x, u)


class Censored(dist.Distribution):
    """max(0, N(loc, scale²)): a law as a user writes it, with a density and draws only. numpyro does not know its
    parameters."""

    support = dist.constraints.real

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale
        super().__init__(jnp.shape(loc), ())

    def sample(self, key, sample_shape=()):
        shape = (*sample_shape, *self.batch_shape)
        return jnp.maximum(self.loc + self.scale * jax.random.normal(key, shape), 0.0)

    def log_prob(self, value):
        above = jax.scipy.stats.norm.logpdf(value, self.loc, self.scale)
        return jnp.where(value > 0, above, jax.scipy.stats.norm.logcdf(-self.loc / self.scale))
