"""Stochastic volatility: the state is the logarithm of the variance of what is seen."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from backstream.models.base import StateSpaceModel
from backstream.models.matrices import floating, known, require_positive


class StochasticVolatility(StateSpaceModel):
    """X_t = mu + phi (X_{t-1} − mu) + N(0, sigma²), Y_t ~ N(0, exp(X_t)), independently over d coordinates.

    `mu`, `phi` and `sigma` have one entry for each coordinate, |phi| < 1, and X_0 has the stationary law.

    >>> model = StochasticVolatility(mu=jnp.array([-1.0]), phi=jnp.array([0.95]), sigma=jnp.array([0.3]))
    >>> model.emission(jnp.array([0.0])).event_shape
    (1,)
    """

    constraints: ClassVar = {"phi": constraints.interval(-1.0, 1.0), "sigma": constraints.positive}

    mu: Float[Array, " d"] = eqx.field(converter=floating)
    phi: Float[Array, " dim"] = eqx.field(converter=floating)
    sigma: Float[Array, " size"] = eqx.field(converter=floating)

    def __check_init__(self):
        shapes = self.mu.shape, self.phi.shape, self.sigma.shape
        if self.mu.ndim != 1 or len(set(shapes)) > 1:
            raise ValueError(
                "mu, phi and sigma must be vectors of one length, but have shapes {}, {} and {}.".format(*shapes)
            )
        require_positive("sigma", self.sigma)
        if known(self.phi) and not np.all(np.abs(self.phi) < 1):
            raise ValueError(f"phi must lie strictly between -1 and 1, but is {np.asarray(self.phi).tolist()}.")

    def prior(self, u=None):
        return dist.Normal(self.mu, self.sigma / jnp.sqrt(1 - self.phi**2)).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.mu + self.phi * (x - self.mu), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.zeros_like(x), jnp.exp(x / 2)).to_event(1)
