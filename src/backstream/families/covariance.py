"""Positive definite matrices that stay so whatever their parameters, and in the face of rounding."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.laws.gaussian import inverse
from backstream.models.matrices import Scale

ULPS = 2


def guard(symmetric: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Raises the diagonal by as many units in the last place as forming and factorizing the matrix may lose.

    A sum of Gram matrices is positive definite up to errors of size d ε √(M_ii M_jj). With a multiple of d ε M_ii added
    to its diagonal it outweighs them, so that a Cholesky factor exists however ill-conditioned M is.
    """
    slack = ULPS * (len(symmetric) + 1) * float(jnp.finfo(symmetric.dtype).eps)
    return symmetric * (1.0 + slack * jnp.eye(len(symmetric), dtype=symmetric.dtype))


class PositiveDefinite(eqx.Module):
    """S Sᵀ with S = diag(exp(log_scale)) U, and U lower triangular with unit diagonal.

    `lower` holds the d(d−1)/2 entries of U below the diagonal, row by row; they have no unit, whatever the scale.
    With `lower=None` the matrix is diagonal.

    >>> PositiveDefinite.from_scale(jnp.array([1.0, 2.0])).dense()
    Array([[1., 0.],
           [0., 4.]], dtype=float32)
    """

    log_scale: Float[Array, " d"]
    lower: Float[Array, " n"] | None = None

    def __check_init__(self):
        d = len(self.log_scale)
        if self.lower is not None and self.lower.shape != (d * (d - 1) // 2,):
            raise ValueError(f"lower must have shape ({d * (d - 1) // 2},), not {self.lower.shape}.")

    @classmethod
    def from_scale(cls, scale: Scale) -> "PositiveDefinite":
        """From standard deviations (1-d) or a lower-triangular factor (2-d). The signs of its columns do not matter."""
        if scale.ndim == 1:
            return cls(jnp.log(jnp.abs(scale)))
        diagonal = jnp.diag(scale)
        rows, columns = np.tril_indices(len(scale), -1)
        unit = scale * jnp.sign(diagonal) / jnp.abs(diagonal)[:, None]
        return cls(jnp.log(jnp.abs(diagonal)), unit[rows, columns])

    @property
    def dim(self) -> int:
        return self.log_scale.shape[-1]

    @property
    def diagonal(self) -> bool:
        return self.lower is None

    @property
    def scale(self) -> Float[Array, " d"]:
        """The diagonal of S."""
        return jnp.exp(self.log_scale)

    def unit(self) -> Float[Array, "d d"]:
        """U."""
        eye = jnp.eye(self.dim, dtype=self.log_scale.dtype)
        if self.lower is None:
            return eye
        return eye.at[np.tril_indices(self.dim, -1)].set(self.lower)

    def factor(self) -> Float[Array, "d d"]:
        """S."""
        return self.scale[:, None] * self.unit()

    def variance(self) -> Float[Array, " d"]:
        """The diagonal of S Sᵀ."""
        return (self.factor() ** 2).sum(1)

    def dense(self) -> Float[Array, "d d"]:
        """S Sᵀ."""
        if self.lower is None:
            return jnp.diag(self.scale**2)
        factor = self.factor()
        return factor @ factor.T

    def whiten(self, matrix: Float[Array, "d m"]) -> Float[Array, "d m"]:
        """S⁻¹ M."""
        scaled = matrix / self.scale[:, None]
        if self.lower is None:
            return scaled
        return inverse(self.unit()) @ scaled

    def inverse(self) -> Float[Array, "d d"]:
        """(S Sᵀ)⁻¹."""
        if self.lower is None:
            return jnp.diag(jnp.exp(-2 * self.log_scale))
        root = self.whiten(jnp.eye(self.dim, dtype=self.log_scale.dtype))
        return root.T @ root
