"""The non-amortized scheme: parameters of their own for each time."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from backstream.families.base import BackwardFamily
from backstream.families.covariance import PositiveDefinite
from backstream.families.kernels import FreePotential
from backstream.families.networks import perceptron
from backstream.laws.gaussian import Gaussian
from backstream.models.matrices import require_positive


class PerStep(BackwardFamily):
    """λ^t: a diagonal Gaussian q_t, and ψ_t with η̃1 a network of x and a constant precision.

    The module holds the parameters of the current time alone. The state a_t is q_t itself, so that the state
    carried from t − 1 keeps q_{t-1} as it was when its own parameters were learned. y is read by the objective
    only, not by q.

    >>> from backstream.models import LinearGaussian
    >>> p, q = LinearGaussian.random(2, 3, key=jax.random.key(0)), PerStep.create(2, 3, key=jax.random.key(1))
    >>> q.marginal(q.init(p)).moments()[0]
    Array([0., 0.], dtype=float32)
    """

    affine: ClassVar[bool] = False
    amortized: ClassVar[bool] = False

    mean: Float[Array, " d"]
    log_std: Float[Array, " d"]
    net: eqx.nn.MLP
    precision: PositiveDefinite
    num_columns: int = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        state_dim: int,
        obs_dim: int,
        width: int = 100,
        *,
        key: Array,
        mean: ArrayLike = 0.0,
        std: ArrayLike = 1.0,
        full_precision: bool = False,
        dtype=None,
    ) -> "PerStep":
        """q_t starts as N(mean, std²), numbers or vectors, and the precision of ψ_t at 1/std².

        That precision is diagonal unless `full_precision`. The network of ψ_t has `width` ReLU units.
        """
        require_positive("std", std)
        dtype = jnp.result_type(float) if dtype is None else dtype
        log_std = jnp.broadcast_to(jnp.log(jnp.asarray(std, dtype)), (state_dim,))
        lower = jnp.zeros(state_dim * (state_dim - 1) // 2, dtype) if full_precision else None
        return cls(
            jnp.broadcast_to(jnp.asarray(mean, dtype), (state_dim,)),
            log_std,
            perceptron(state_dim, state_dim, width, jax.nn.relu, key=key, dtype=dtype),
            PositiveDefinite(-log_std, lower),
            obs_dim,
        )

    @property
    def state_dim(self) -> int:
        return self.mean.shape[-1]

    @property
    def obs_dim(self) -> int:
        return self.num_columns

    def init(self, p, u=None):
        precision = jnp.exp(-2 * self.log_std)
        return Gaussian.from_precision(precision * self.mean, jnp.diag(precision))

    def update(self, p, state, y, u=None):
        return self.init(p, u)

    def marginal(self, state):
        return state

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        return NetworkMean(self.net, self.precision)


class NetworkMean(FreePotential):
    """ψ_t with η̃1 a network of x and a constant precision."""

    net: eqx.nn.MLP
    precision: PositiveDefinite

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        return Gaussian.from_precision(self.net(x), self.precision.dense())
