"""The general amortized family: a recurrent network for a_t, and networks that read q_t and ψ_t off it."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.families.base import BackwardFamily
from backstream.families.covariance import PositiveDefinite, guard
from backstream.families.kernels import FreePotential
from backstream.families.networks import perceptron
from backstream.laws.gaussian import Gaussian
from backstream.models.matrices import require_positive


class TanhCell(eqx.Module):
    """a ← V tanh(W (input, a) + b) + c, with a hidden layer as wide as a. Made and called like `eqx.nn.GRUCell`."""

    net: eqx.nn.MLP

    def __init__(self, input_size: int, hidden_size: int, *, dtype=None, key: Array):
        dtype = jnp.result_type(float) if dtype is None else dtype
        self.net = perceptron(input_size + hidden_size, hidden_size, hidden_size, key=key, dtype=dtype)

    def __call__(self, input: Float[Array, " i"], hidden: Float[Array, " h"]) -> Float[Array, " h"]:
        return self.net(jnp.concatenate([input, hidden]))


class Recurrent(BackwardFamily):
    """a_t = cell(y_t, a_{t-1}), η_t = network(a_t), η̃_t(x) = network(x): nothing linear is assumed.

    a_{-1} is learned. y_t enters as arcsinh(y_t / scale), missing values as zeros, with a mask. η_t
    has a full precision matrix, or a diagonal one; ψ_t(·, x) has a diagonal precision that depends on x, as η̃1
    does.

    >>> from backstream.models import LinearGaussian
    >>> p = LinearGaussian.random(2, 3, key=jax.random.key(0))
    >>> q = Recurrent.create(2, 3, width=16, key=jax.random.key(1))
    >>> state = q.update(p, q.init(p), jnp.array([1.0, jnp.nan, 2.0]))
    >>> q.kernel(p, state).potential(jnp.zeros(2)).dim
    2
    """

    affine: ClassVar[bool] = False
    amortized: ClassVar[bool] = True

    cell: Callable[[Array, Array], Array]
    first: Float[Array, " a"]
    marginal_net: eqx.nn.MLP
    potential_net: eqx.nn.MLP
    log_state_scale: Float[Array, " d"]
    log_obs_scale: Float[Array, " dy"]

    @classmethod
    def create(
        cls,
        state_dim: int,
        obs_dim: int,
        width: int = 32,
        *,
        key: Array,
        cell: Callable[..., Callable[[Array, Array], Array]] = eqx.nn.GRUCell,
        diagonal: bool = False,
        scales: tuple[float, float] = (1.0, 1.0),
        dtype=None,
    ) -> "Recurrent":
        """`width` is the number of units in a_t and in the networks.

        `cell` makes the recurrent cell: `eqx.nn.GRUCell`, `TanhCell` or anything that is called like them. The `scales`
        are first guesses of the size of x and y. They are learned too.
        """
        for scale in scales:
            require_positive("Each of the scales", scale)
        dtype = jnp.result_type(float) if dtype is None else dtype
        d = state_dim
        key_cell, key_first, key_marginal, key_potential = jax.random.split(key, 4)
        outputs = 2 * d if diagonal else 2 * d + d * (d - 1) // 2
        return cls(
            cell(2 * obs_dim, width, dtype=dtype, key=key_cell),
            0.1 * jax.random.normal(key_first, (width,), dtype),
            perceptron(width, outputs, width, key=key_marginal, dtype=dtype),
            perceptron(d, 2 * d, width, key=key_potential, dtype=dtype),
            jnp.full(d, jnp.log(scales[0]), dtype),
            jnp.full(obs_dim, jnp.log(scales[1]), dtype),
        )

    @property
    def state_dim(self) -> int:
        return self.log_state_scale.shape[-1]

    @property
    def obs_dim(self) -> int:
        return self.log_obs_scale.shape[-1]

    def init(self, p, u=None):
        return self.first

    def update(self, p, state, y, u=None):
        missing = jnp.isnan(y)
        squashed = jnp.arcsinh(jnp.where(missing, 0.0, y) * jnp.exp(-self.log_obs_scale))
        return self.cell(jnp.concatenate([squashed, missing.astype(y.dtype)]), state)

    def marginal(self, state):
        d = self.state_dim
        out = self.marginal_net(state)
        mean = jnp.exp(self.log_state_scale) * out[:d]
        precision = PositiveDefinite(out[d : 2 * d] - self.log_state_scale, out[2 * d :] if len(out) > 2 * d else None)
        matrix = guard(precision.dense())
        return Gaussian.from_precision(matrix @ mean, matrix)

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        return NetworkPotential(self.potential_net, self.log_state_scale)


class NetworkPotential(FreePotential):
    """ψ_t(·, x) with η̃1 and a diagonal precision that are both a network of x."""

    net: eqx.nn.MLP
    log_state_scale: Float[Array, " d"]

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        scale = jnp.exp(self.log_state_scale)
        eta1, raw = jnp.split(self.net(x / scale), 2)
        return Gaussian.from_precision(eta1 / scale, jnp.diag(jax.nn.softplus(raw) / scale**2))
