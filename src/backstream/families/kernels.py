"""Backward kernels q_{t-1|t}(x, ·) ∝ q_{t-1} ψ_t(·, x)."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.laws.gaussian import Gaussian, inverse_root


class AffineKernel(NamedTuple):
    """q_{t-1|t}(x, ·) = N(mean + gain x, rootᵀ root), for a family whose kernels are affine."""

    mean: Float[Array, " d"]
    gain: Float[Array, "d d"]
    root: Float[Array, "d d"]

    @classmethod
    def independent(cls, law: Gaussian) -> "AffineKernel":
        """The kernel that is a law itself, whatever x is: that of ψ = 1."""
        root = inverse_root(law.precision)
        return cls(root.T @ (root @ law.eta1), jnp.zeros_like(root), root)

    @property
    def cov(self) -> Float[Array, "d d"]:
        return self.root.T @ self.root

    @property
    def log_det(self) -> Float[Array, ""]:
        """log of the determinant of the inverse root: minus half that of the covariance."""
        return -jnp.log(jnp.diag(self.root)).sum()

    def mean_at(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.mean + self.gain @ x


class Kernel(eqx.Module):
    """What of q_{t-1|t} comes from a_t: all but q_{t-1} itself.

    A family returns one of its own, or one of those below it, from `BackwardFamily.kernel`.
    """

    @abstractmethod
    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        """ψ_t(·, x), a function of x_{t-1}, with natural parameter η̃_t(x)."""

    def at(self, before: Gaussian, x: Float[Array, " d"]) -> Any:
        """q_{t-1|t}(x, ·), a law that can be sampled and evaluated. `before` is q_{t-1}."""
        return before * self.potential(x)

    @abstractmethod
    def affine(self, before: Gaussian) -> AffineKernel:
        """q_{t-1|t}, where the family is affine. `before` is q_{t-1}."""


class AffinePotential(Kernel):
    """A kernel that its potential describes, with η̃1(x) = F x + f and η̃2 the same for all x."""

    def affine(self, before: Gaussian) -> AffineKernel:
        origin = jnp.zeros_like(before.eta1)
        kernel = before * self.potential(origin)
        F = jax.jacfwd(lambda x: self.potential(x).eta1)(origin)
        root = inverse_root(kernel.precision)
        return AffineKernel(root.T @ (root @ kernel.eta1), root.T @ (root @ F), root)


class FreePotential(Kernel):
    """A kernel that its potential describes, with η̃ any function of x."""

    def affine(self, before: Gaussian) -> AffineKernel:
        raise TypeError(f"{type(self).__name__} is not affine in x: its potential is all that is known of it.")
