"""Moment-corrected weights: regression on sufficient statistics, importance sampling on what it leaves.

For Gaussian kernels the expectations E_i[Φ] of linear and quadratic features Φ under q_{t-1|t}(ξ_t^i, ·) are known, and
self-normalized weights W get them wrong when few samples carry the weight. With Φ the features of the standardized
samples,

    W̃ = W + α (E − W Φ) (ΦᵀΦ + ridge)⁻¹ Φᵀ

gives Ê_i[Φ] = E_i[Φ] (up to ridge and α), whatever W is. Written for an integrand r it is r ≈ β_i · Φ by least squares,
β_i · E_i[Φ] in closed form, and W on the residual; so the gradient of the first goes through E_i exactly, and only the
residual's goes through the score. α_i = min(1, cap / ‖row‖²) keeps a row from amplifying noise.

In the linear-Gaussian case every integrand is quadratic: with all quadratic features the residual is zero, and value
and gradient are exact. With no correction (α = 0) these are the self-normalized weights.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.laws.gaussian import cholesky, invert, pack, unpack

from .weights import AbstractPairs, AbstractWeights, AllPairs, Kernels, SelfNormalized, centered_product


class Quadratic(eqx.Module):
    """The features (1, z_i, (z_i² − 1)/√2) and, with `cross`, z_i z_j: orthonormal under the standard normal law."""

    cross: bool = eqx.field(static=True, default=False)

    def count(self, dim: int) -> int:
        return 1 + dim + len(self._kept(dim))

    def at(self, z: Float[Array, "m d"]) -> Float[Array, "m f"]:
        return self.of_moments(z, z[:, :, None] * z[:, None, :])

    def expected(self, kernels: Kernels) -> Float[Array, "n f"]:
        """E_i[Φ]."""
        mean = kernels.mean
        return self.of_moments(mean, kernels.cov + mean[:, :, None] * mean[:, None, :])

    def expected_pullback(self, beta: Float[Array, "n f"], kernels: Kernels) -> Float[Array, "n s"]:
        """∇_η (β_i · E_i[Φ]) = Cov_i(β_i · Φ, T), for the natural parameter η of kernel i.

        For f(z) = b · z + zᵀBz and Z ~ N(m, V): Cov(f, Z) = V (b + 2Bm) =: g, and
        Cov(f, Z Zᵀ) = 2VBV + g mᵀ + m gᵀ.
        """
        dim = kernels.mean.shape[1]
        m, V = kernels.mean, kernels.cov
        packed = jnp.zeros((len(beta), dim * (dim + 1) // 2), beta.dtype)
        packed = packed.at[:, self._kept(dim)].set(beta[:, 1 + dim :] * self._scale(dim, beta.dtype))
        B = 0.5 * unpack(packed, dim) * (1 + jnp.eye(dim, dtype=beta.dtype))
        g = jnp.einsum("nij,nj->ni", V, beta[:, 1 : 1 + dim] + 2 * jnp.einsum("nij,nj->ni", B, m))
        gm = g[:, :, None] * m[:, None, :]
        return jnp.concatenate([g, pack(2 * V @ B @ V + gm + jnp.swapaxes(gm, 1, 2))], axis=1)

    def of_moments(self, first: Float[Array, "n d"], second: Float[Array, "n d d"]) -> Float[Array, "n f"]:
        """E[Φ], given E[Z] and E[Z Zᵀ]."""
        dim = first.shape[1]
        centered = pack(second - jnp.eye(dim, dtype=first.dtype))[:, self._kept(dim)]
        return jnp.concatenate([jnp.ones_like(first[:, :1]), first, centered * self._scale(dim, first.dtype)], axis=1)

    def _kept(self, dim: int) -> np.ndarray:
        rows, columns = np.triu_indices(dim)
        return np.arange(len(rows)) if self.cross else np.flatnonzero(rows == columns)

    def _scale(self, dim: int, dtype) -> np.ndarray:
        rows, columns = np.triu_indices(dim)
        return np.where(rows == columns, np.sqrt(0.5), 1.0)[self._kept(dim)].astype(dtype)


class CorrectedPairs(AbstractPairs):
    log_potential: Float[Array, "n m"]
    plain: AllPairs
    w: Float[Array, "n m"]
    """W̃."""
    alpha: Float[Array, "n 1"]
    features: Float[Array, "m f"]
    least_squares: Float[Array, "f m"]
    """(ΦᵀΦ + ridge)⁻¹ Φᵀ."""
    basis: Quadratic

    def gather(self, values):
        return values[None]

    def average(self, values):
        return jnp.tensordot(self.w, values, 1)

    def centered_average(self, values, row, factor):
        return centered_product(factor * self.w, values, row)

    def coefficients(self):
        return self.w

    def value_and_score(self, r, baseline):
        beta = self.alpha * (r @ self.least_squares.T)
        _, S = self.plain.value_and_score(r - beta @ self.features.T, baseline)
        return (self.w * r).sum(1), S + self.basis.expected_pullback(beta, self.plain.kernels)

    def ess(self):
        return self.plain.ess()

    def acceptance(self):
        return self.plain.acceptance()


class MomentCorrected(AbstractWeights):
    """Self-normalized weights, corrected so that the moments of the kernels come out right.

    `features` chooses which moments, `ridge` regularizes the regression (relative to N), `cap` bounds the squared norm
    of a corrected row.
    """

    features: Quadratic = Quadratic()
    ridge: float = eqx.field(static=True, default=1e-2)
    cap: float = eqx.field(static=True, default=0.5)

    def __check_init__(self):
        if not self.ridge >= 0:
            raise ValueError(f"ridge must not be negative, but it is {self.ridge}.")
        if not self.cap > 0:
            raise ValueError(f"cap must be positive, not {self.cap}.")

    def pairs(self, kernels, z, *, key):
        return self._correct(SelfNormalized().pairs(kernels, z, key=key), z)

    def marginal(self, z):
        return self._correct(SelfNormalized().marginal(z), z)

    def num_draws(self, num_particles):
        return num_particles

    def _correct(self, plain: AllPairs, z: Float[Array, "m d"]) -> CorrectedPairs:
        Phi = self.features.at(z)
        m, f = Phi.shape
        if self.ridge == 0 and m < f:
            raise ValueError(f"{m} particles cannot be regressed on {f} features without a ridge: give one, or more.")
        penalty = self.ridge * jnp.eye(f, dtype=z.dtype).at[0, 0].set(0.0)
        least_squares = invert(cholesky(Phi.T @ Phi / m + penalty)) @ Phi.T / m
        correction = (self.features.expected(plain.kernels) - plain.w @ Phi) @ least_squares
        norm = ((plain.w + correction) ** 2).sum(1, keepdims=True)
        alpha = jnp.minimum(1.0, self.cap / norm)
        w = plain.w + alpha * correction
        return CorrectedPairs(plain.log_potential, plain, w, alpha, Phi, least_squares, self.features)
