"""The chaotic recurrent neural network of the paper's experiments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from backstream.models.base import StateSpaceModel
from backstream.models.matrices import floating, require_positive

Number = float | int | Float[Array, "..."]


class ChaoticRNN(StateSpaceModel):
    """A network of d units in noise: X_t = X_{t-1} + (step/tau) (gamma W tanh(X_{t-1}) − X_{t-1}) + ν, Y_t = X_t + ε.

    ν ~ N(0, transition_scale²) and ε, Student-t with `df` degrees of freedom and scale `emission_scale`, are
    independent over coordinates, and X_0 ~ N(0, transition_scale²). Only the arrays among the fields are θ: with the
    numbers left as they are, that is `W`, of shape (d, d). Pass an array, a scalar or one entry for each coordinate,
    for a number that shall be learned too.

    >>> model = ChaoticRNN.random(5, key=jax.random.key(0))
    >>> states, observations = model.simulate(100, key=jax.random.key(1))
    """

    W: Float[Array, "rows columns"] = eqx.field(converter=floating)
    step: Number = 0.001
    tau: Number = 0.025
    gamma: Number = 2.5
    transition_scale: Number = 0.1
    emission_scale: Number = 0.1
    df: Number = 2.0

    def __check_init__(self):
        if self.W.ndim != 2 or self.W.shape[0] != self.W.shape[1]:
            raise ValueError(f"W must be a square matrix, but has shape {self.W.shape}.")
        for name in ("step", "tau", "transition_scale", "emission_scale", "df"):
            require_positive(name, getattr(self, name))

    @classmethod
    def random(cls, dim: int, *, key: Array) -> "ChaoticRNN":
        """W_ij ~ N(0, 1/dim), and the numbers of the paper."""
        return cls(jax.random.normal(key, (dim, dim)) / dim**0.5)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros_like(self.W[0]), self.transition_scale).to_event(1)

    def transition(self, x, u=None):
        mean = x + (self.step / self.tau) * (self.gamma * (self.W @ jnp.tanh(x)) - x)
        return dist.Normal(mean, self.transition_scale).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(self.df, x, self.emission_scale).to_event(1)
