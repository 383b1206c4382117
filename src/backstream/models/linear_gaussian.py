"""The linear-Gaussian model, whose smoothing law is known exactly."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from numpyro.distributions import constraints

from backstream.models.base import StateSpaceModel
from backstream.models.matrices import (
    Matrix,
    Scale,
    covariance_of,
    dense,
    floating,
    multiply,
    normal,
    require_matrix,
    require_noise,
    scale_of,
)


class Matrices(NamedTuple):
    """X_0 ~ N(mean0, Q0), X_t = A X_{t-1} + N(0, Q), Y_t = B X_t + N(0, R), all as dense arrays."""

    mean0: Float[Array, " d"]
    Q0: Float[Array, "d d"]
    A: Float[Array, "d d"]
    B: Float[Array, "dy d"]
    Q: Float[Array, "d d"]
    R: Float[Array, "dy dy"]


class LinearGaussian(StateSpaceModel):
    """X_0 ~ N(mean0, Q0), X_t = A X_{t-1} + N(0, Q), Y_t = B X_t + N(0, R).

    `A` and `B` are 2-d arrays, or 1-d arrays standing for diagonal matrices. `Q0`, `Q` and `R` are 1-d arrays of
    *standard deviations*, or 2-d *covariances*; they are kept as `prior_scale`, `transition_scale` and
    `emission_scale`: the standard deviations, or the lower Cholesky factor.

    Single coordinates of y may be missing.

    >>> model = LinearGaussian(mean0=jnp.zeros(2), Q0=jnp.ones(2), A=jnp.array([0.9, 0.8]), B=jnp.eye(2),
    ...                        Q=0.1 * jnp.ones(2), R=jnp.array([[0.2, 0.1], [0.1, 0.2]]))
    >>> states, observations = model.simulate(50, key=jax.random.key(0))
    >>> observations.shape
    (50, 2)
    """

    constraints: ClassVar = dict.fromkeys(("prior_scale", "transition_scale", "emission_scale"), constraints.positive)

    mean0: Float[Array, " d"]
    prior_scale: Scale
    A: Matrix
    B: Matrix
    transition_scale: Scale
    emission_scale: Scale

    def __init__(
        self,
        mean0: ArrayLike,
        Q0: ArrayLike,
        A: ArrayLike,
        B: ArrayLike,
        Q: ArrayLike,
        R: ArrayLike,
    ):
        mean0, Q0, A, B, Q, R = (floating(value) for value in (mean0, Q0, A, B, Q, R))
        if mean0.ndim != 1:
            raise ValueError(f"mean0 must be a vector, one number for each state, but has shape {mean0.shape}.")
        if B.ndim not in (1, 2):
            raise ValueError(f"B must be a matrix or the diagonal of one, but has shape {B.shape}.")
        d, dy = len(mean0), len(B)
        require_matrix("A", A, d, d)
        require_matrix("B", B, dy, d)
        require_noise("Q0", Q0, d)
        require_noise("Q", Q, d)
        require_noise("R", R, dy)
        self.mean0 = mean0
        self.prior_scale = scale_of(Q0)
        self.A = A
        self.B = B
        self.transition_scale = scale_of(Q)
        self.emission_scale = scale_of(R)

    @classmethod
    def random(
        cls,
        state_dim: int,
        obs_dim: int,
        low: float = 0.8,
        high: float = 0.97,
        variance: float = 0.1,
        *,
        key: Array,
    ) -> "LinearGaussian":
        """The paper's: A diagonal with entries U[low, high], B full with entries U(0, 1), Q0, Q, R `variance` · I.

        >>> LinearGaussian.random(10, 10, key=jax.random.key(0)).A.shape
        (10,)
        """
        if not low <= high:
            raise ValueError(f"low must be at most high, but low is {low} and high is {high}.")
        if not variance > 0:
            raise ValueError(f"variance must be positive, not {variance}.")
        key_a, key_b = jax.random.split(key)
        A = jax.random.uniform(key_a, (state_dim,), minval=low, maxval=high)
        B = jax.random.uniform(key_b, (obs_dim, state_dim))
        states, observations = jnp.full(state_dim, variance**0.5), jnp.full(obs_dim, variance**0.5)
        return cls(jnp.zeros(state_dim), states, A, B, states, observations)

    def prior(self, u=None):
        return normal(self.mean0, self.prior_scale)

    def transition(self, x, u=None):
        return normal(multiply(self.A, x), self.transition_scale)

    def emission(self, x, u=None):
        return normal(multiply(self.B, x), self.emission_scale)

    def dense(self) -> Matrices:
        """The parameters as dense arrays, covariances as covariances, whatever their shapes here."""
        return Matrices(
            self.mean0,
            covariance_of(self.prior_scale),
            dense(self.A),
            dense(self.B),
            covariance_of(self.transition_scale),
            covariance_of(self.emission_scale),
        )
