"""The paper's amortized family: a Kalman predict step, and a network that turns y_t into a natural parameter."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.families.base import BackwardFamily
from backstream.families.linear import LinearDynamics, LinearKernel, LinearState, Prediction
from backstream.families.networks import apart, perceptron, positive


class Conjugate(BackwardFamily):
    """η_t = predict(η_{t-1}) + η̄(y_t), with η̄ a network of one tanh layer; ψ_t(x_prev, x) = N(x; A x_prev, Q).

    A and Q are shared by the predict step and by ψ (the paper's appendix on conjugacy). The network reads y_t
    alone, in its own units, and returns η1 and a diagonal precision. A missing row means: predict only; a missing
    coordinate is read as zero.

    >>> from backstream.models import ChaoticRNN
    >>> p, q = ChaoticRNN.random(2, key=jax.random.key(0)), Conjugate.create(2, 2, width=8, key=jax.random.key(1))
    >>> q.marginal(q.update(p, q.init(p), jnp.array([0.1, jnp.nan]))).precision.shape
    (2, 2)
    """

    affine: ClassVar[bool] = True
    amortized: ClassVar[bool] = True

    dynamics: LinearDynamics
    net: eqx.nn.MLP

    @classmethod
    def create(
        cls,
        state_dim: int,
        obs_dim: int,
        width: int = 100,
        *,
        key: Array,
        full_transition: bool = False,
        entries: tuple[float, float] = (0.9, 1.0),
        scale: float = 0.1,
        dtype=None,
    ) -> "Conjugate":
        """The paper's start: A diagonal with uniform `entries`, prior N(0, scale²), noise N(0, scale²).

        With `full_transition` the other entries of A, at first zero, are learned as well.
        """
        if not scale > 0:
            raise ValueError(f"scale must be positive, not {scale}.")
        dtype = jnp.result_type(float) if dtype is None else dtype
        key_a, key_net = jax.random.split(key)
        A = jax.random.uniform(key_a, (state_dim,), dtype, minval=entries[0], maxval=entries[1])
        scales = jnp.full(state_dim, scale, dtype)
        dynamics = LinearDynamics.create(
            jnp.zeros(state_dim, dtype), scales, jnp.diag(A) if full_transition else A, scales
        )
        return cls(dynamics, perceptron(obs_dim, 2 * state_dim, width, key=key_net, dtype=dtype))

    @property
    def state_dim(self) -> int:
        return self.dynamics.dim

    @property
    def obs_dim(self) -> int:
        return int(self.net.in_size)

    def init(self, p, u=None):
        return self.dynamics.start()

    def update(self, p, state, y, u=None):
        return self._assimilate(self.dynamics.predict(state), y)

    def marginal(self, state):
        return state.gaussian()

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        return LinearKernel(self.dynamics)

    def _assimilate(self, prediction: Prediction, y: Float[Array, " dy"]) -> LinearState:
        missing = jnp.isnan(y)
        eta1, raw = jnp.split(apart(self.net(jnp.where(missing, 0.0, y))), 2)
        present = jnp.where(missing.all(), 0.0, 1.0).astype(raw.dtype)
        # exp(η1 · x − ½ x · λ x) is a site with W = √λ and e = (η1 − λ m)/√λ.
        precision = positive(raw)
        root = present * jnp.sqrt(precision)
        return prediction.add_site(jnp.diag(root), present * (eta1 - precision * prediction.mean) / jnp.sqrt(precision))
