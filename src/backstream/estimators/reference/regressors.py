"""Functions fitted to samples: what `Regression` uses instead of importance weights.

Inputs are samples of a Gaussian in its own frame, i.e. standard normal; targets are centered.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, PyTree


class AbstractRegressor(eqx.Module):
    @abstractmethod
    def init(self, num_samples: int, dim: int, num_outputs: int, dtype, *, key: Array) -> PyTree:
        """A fit to nothing yet, with the shapes of those to come."""

    @abstractmethod
    def fit(
        self, previous: PyTree, z: Float[Array, "n d"], targets: Float[Array, "n k"]
    ) -> tuple[PyTree, Float[Array, "n k"]]:
        """A new fit, and what it says at each z, as if that sample had not been seen where that can be had."""

    @abstractmethod
    def predict(self, fit: PyTree, z: Float[Array, "m d"]) -> Float[Array, "m k"]: ...


class KernelFit(NamedTuple):
    centers: Float[Array, "n d"]
    coefficients: Float[Array, "n k"]


class KernelRidge(AbstractRegressor):
    """Ridge regression with the kernel exp(−|z − z'|² / (2 bandwidth² d)). Costs N³.

    `bandwidth` is in units of √d, the length of a typical z. `ridge` is the variance of the noise in the targets over
    that of the function.
    """

    bandwidth: float = eqx.field(static=True, default=2.0)
    ridge: float = eqx.field(static=True, default=1e-2)

    def __check_init__(self):
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, not {self.bandwidth}.")
        if not self.ridge > 0:
            raise ValueError(f"ridge must be positive, not {self.ridge}.")

    def _kernel(self, z: Float[Array, "m d"], centers: Float[Array, "n d"]) -> Float[Array, "m n"]:
        square = (z**2).sum(1)[:, None] - 2 * z @ centers.T + (centers**2).sum(1)[None]
        return jnp.exp(-0.5 * jnp.maximum(square, 0) / (self.bandwidth**2 * z.shape[1]))

    def init(self, num_samples, dim, num_outputs, dtype, *, key):
        return KernelFit(jnp.zeros((num_samples, dim), dtype), jnp.zeros((num_samples, num_outputs), dtype))

    def fit(self, previous, z, targets):
        eye = jnp.eye(len(z), dtype=z.dtype)
        factor = jnp.linalg.cholesky(self._kernel(z, z) + self.ridge * eye)
        coefficients = cho_solve((factor, True), targets)
        # Leaving sample k out moves its residual to α_k / [(K + ridge)⁻¹]_kk.
        precision = (solve_triangular(factor, eye, lower=True) ** 2).sum(0)
        return KernelFit(z, coefficients), targets - coefficients / precision[:, None]

    def predict(self, fit, z):
        return self._kernel(z, fit.centers) @ fit.coefficients


class NetworkFit(NamedTuple):
    weights: PyTree
    scale: Float[Array, " k"]
    """Of the targets: the network itself gives numbers of order one."""


class Network(AbstractRegressor):
    """One hidden layer of `width` tanh units, fitted by `steps` of Adam from where the last fit ended."""

    width: int = eqx.field(static=True, default=64)
    steps: int = eqx.field(static=True, default=200)
    rate: float = eqx.field(static=True, default=1e-2)

    def __check_init__(self):
        if self.width < 1:
            raise ValueError(f"width must be at least 1, not {self.width}.")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}.")
        if not self.rate > 0:
            raise ValueError(f"rate must be positive, not {self.rate}.")

    def init(self, num_samples, dim, num_outputs, dtype, *, key):
        key_in, key_bias = jax.random.split(key)
        hidden = jax.random.normal(key_in, (dim, self.width), dtype) / dim**0.5
        bias = jax.random.normal(key_bias, (self.width,), dtype)
        weights = (hidden, bias, jnp.zeros((self.width, num_outputs), dtype), jnp.zeros(num_outputs, dtype))
        return NetworkFit(weights, jnp.ones(num_outputs, dtype))

    def _network(self, weights, z):
        hidden, bias, out, out_bias = weights
        return jnp.tanh(z @ hidden + bias) @ out + out_bias

    def fit(self, previous, z, targets):
        scale = targets.std(0)
        scale = jnp.where(scale > 0, scale, 1)
        optimizer = optax.adam(self.rate)

        def loss(weights):
            return ((self._network(weights, z) - targets / scale) ** 2).mean()

        def descend(carry, _):
            weights, moments = carry
            updates, moments = optimizer.update(jax.grad(loss)(weights), moments)
            return (optax.apply_updates(weights, updates), moments), None

        start = (previous.weights, optimizer.init(previous.weights))
        (weights, _), _ = jax.lax.scan(descend, start, length=self.steps)
        fit = NetworkFit(weights, scale)
        return fit, self.predict(fit, z)

    def predict(self, fit, z):
        return self._network(fit.weights, z) * fit.scale
