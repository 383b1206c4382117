"""The univariate nonstationary growth model, a classical hard case: a bimodal posterior and a known input."""

import equinox as eqx
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from backstream.models.base import StateSpaceModel
from backstream.models.matrices import floating, require_positive


class Growth(StateSpaceModel):
    """X_t = X_{t-1}/2 + 25 X_{t-1} / (1 + X_{t-1}²) + 8 cos(1.2 u) + N(0, 10), Y_t = X_t²/20 + N(0, 1).

    The input `u` is the time t, and is required. X_0 ~ N(0, 10). The fields are the
    standard deviations of the two noises.

    >>> import jax
    >>> states, observations = Growth().simulate(100, jnp.arange(100.0), key=jax.random.key(0))
    >>> observations.shape
    (100, 1)
    """

    transition_scale: Float[Array, ""] = eqx.field(converter=floating, default=10**0.5)
    emission_scale: Float[Array, ""] = eqx.field(converter=floating, default=1.0)

    def __check_init__(self):
        require_positive("transition_scale", self.transition_scale)
        require_positive("emission_scale", self.emission_scale)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1, self.transition_scale.dtype), self.transition_scale).to_event(1)

    def transition(self, x, u=None):
        if u is None:
            raise ValueError("The growth model needs the time as its input: pass u=t, or inputs=jnp.arange(T).")
        time = jnp.asarray(u, x.dtype)
        mean = x / 2 + 25 * x / (1 + x**2) + 8 * jnp.cos(1.2 * time)
        return dist.Normal(mean, self.transition_scale).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x**2 / 20, self.emission_scale).to_event(1)
