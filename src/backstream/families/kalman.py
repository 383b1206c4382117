"""The smoothing law of a linear-Gaussian model, as a variational family."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from backstream.families.base import BackwardFamily
from backstream.families.covariance import PositiveDefinite
from backstream.families.linear import LinearDynamics, LinearKernel, LinearState, Prediction
from backstream.laws.gaussian import cholesky, inverse
from backstream.models.linear_gaussian import LinearGaussian, Matrices
from backstream.models.matrices import Matrix, dense, multiply


class Kalman(BackwardFamily):
    """q is the law of X_{0:t} given y_{0:t} in the linear-Gaussian model with parameters λ, which need not be p's.

    The state a_t is the Kalman filter and ψ_t(x_prev, x) = N(x; A x_prev, Q). Missing rows and
    missing coordinates are exact, whatever the emission noise. `Kalman.create` takes the arguments of
    `LinearGaussian`.

    >>> model = LinearGaussian.random(3, 2, key=jax.random.key(0))
    >>> q = Kalman.from_model(model)
    >>> state = q.update(model, q.init(model), jnp.array([0.1, jnp.nan]))
    >>> q.marginal(state).moments()[0].shape
    (3,)
    """

    affine: ClassVar[bool] = True
    amortized: ClassVar[bool] = True

    dynamics: LinearDynamics
    B: Matrix
    emission_noise: PositiveDefinite

    @classmethod
    def create(
        cls, mean0: ArrayLike, Q0: ArrayLike, A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike
    ) -> "Kalman":
        """`A`, `B` dense or (1-d) diagonal; `Q0`, `Q`, `R` covariances or (1-d) standard deviations."""
        return cls.from_model(LinearGaussian(mean0, Q0, A, B, Q, R))

    @classmethod
    def from_model(cls, p: LinearGaussian) -> "Kalman":
        """λ = θ: the exact smoothing law of p."""
        dynamics = LinearDynamics.create(p.mean0, p.prior_scale, p.A, p.transition_scale)
        return cls(dynamics, p.B, PositiveDefinite.from_scale(p.emission_scale))

    @classmethod
    def random(cls, p: LinearGaussian, low: float = -0.9, high: float = 0.9, *, key: Array) -> "Kalman":
        """The paper's start: A diagonal with entries U[low, high], B full with entries U(0, 1), the rest from p."""
        key_a, key_b = jax.random.split(key)
        dtype = p.mean0.dtype
        A = jax.random.uniform(key_a, p.mean0.shape, dtype, minval=low, maxval=high)
        B = jax.random.uniform(key_b, dense(p.B).shape, dtype)
        dynamics = LinearDynamics.create(p.mean0, p.prior_scale, A, p.transition_scale)
        return cls(dynamics, B, PositiveDefinite.from_scale(p.emission_scale))

    @property
    def state_dim(self) -> int:
        return self.dynamics.dim

    @property
    def obs_dim(self) -> int:
        return self.emission_noise.dim

    def dense(self) -> Matrices:
        """λ as dense matrices."""
        own = self.dynamics
        return Matrices(
            own.mean0,
            own.prior.dense(),
            dense(own.A),
            dense(self.B),
            own.noise.dense(),
            self.emission_noise.dense(),
        )

    def init(self, p, u=None):
        return self.dynamics.start()

    def update(self, p, state, y, u=None):
        return self._condition(self.dynamics.predict(state), y)

    def marginal(self, state):
        return state.gaussian()

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        return LinearKernel(self.dynamics)

    def _condition(self, prediction: Prediction, y: Float[Array, " dy"]) -> LinearState:
        """The site of the observed coordinates: B and y − B m, whitened by R."""
        seen = ~jnp.isnan(y)
        residual = jnp.where(seen, y, 0.0) - multiply(self.B, prediction.mean)
        # In the rows that are missing, B and y − B m are zero and R is the identity: they drop out of every product.
        rows = jnp.where(seen[:, None], jnp.column_stack([dense(self.B), residual]), 0.0)
        if self.emission_noise.diagonal:
            whitened = self.emission_noise.whiten(rows)
        else:
            both = seen[:, None] & seen
            R = jnp.where(both, self.emission_noise.dense(), jnp.eye(self.obs_dim, dtype=rows.dtype))
            whitened = inverse(cholesky(R)) @ rows
        return prediction.add_site(whitened[:, :-1], whitened[:, -1])
