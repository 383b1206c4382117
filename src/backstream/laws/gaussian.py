"""Gaussians in natural parameters: the exponential family P of the paper.

A `Gaussian` is exp(η · T(x) − A(η)) with η = (η1, η2) and T(x) = (x, {x_i x_j : i ≤ j}). Only the upper triangle of
the symmetric part is stored, so that η has d(d+3)/2 components, none of them redundant. The product of two Gaussians
is the sum of their η. A potential ψ is a `Gaussian` too: its η2 may be merely negative semi-definite, as only its
product with a proper Gaussian is ever normalized.

A `Frame` is the affine change of variables in which a given Gaussian is standard normal. Weights and scores are
computed there: products η · T(x) of coordinates far from the origin would cost float32 all its digits.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

LOG_2PI = float(np.log(2 * np.pi))


def pack(symmetric: Float[Array, "*b d d"]) -> Float[Array, "*b n"]:
    """The upper triangle of a symmetric matrix, row by row."""
    rows, columns = np.triu_indices(symmetric.shape[-1])
    return symmetric[..., rows, columns]


def unpack(packed: Float[Array, "*b n"], dim: int) -> Float[Array, "*b {dim} {dim}"]:
    """The symmetric matrix whose upper triangle is given: the inverse of `pack`."""
    position = np.zeros((dim, dim), dtype=int)
    position[np.triu_indices(dim)] = np.arange(dim * (dim + 1) // 2)
    return packed[..., np.maximum(position, position.T)]


def statistic(x: Float[Array, "*b d"]) -> Float[Array, "*b d*(d+3)//2"]:
    """T(x) = (x, {x_i x_j : i ≤ j}), the sufficient statistic."""
    rows, columns = np.triu_indices(x.shape[-1])
    return jnp.concatenate([x, x[..., rows] * x[..., columns]], axis=-1)


# JAX differentiates factors and triangular inverses by further triangular solves. Estimators pull many cotangents back
# through a family at once, and batches of small solves are slow. Here derivatives are products of matrices. A batch of
# factorizations is a call of LAPACK for each matrix; up to FEW rows they are written out, entry by entry, so that a
# batch is done at once.

FEW = 3


def _factor(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    d = matrix.shape[-1]
    if d > FEW:
        return jnp.linalg.cholesky(matrix)
    L = [[jnp.zeros((), matrix.dtype)] * d for _ in range(d)]
    for j in range(d):
        for i in range(j, d):
            rest = matrix[i, j] - sum(L[i][k] * L[j][k] for k in range(j))
            L[i][j] = jnp.sqrt(rest) if i == j else rest / L[j][j]
    return jnp.stack([jnp.stack(row) for row in L])


def _lower_inverse(factor: Float[Array, "d d"]) -> Float[Array, "d d"]:
    d = factor.shape[-1]
    if d > FEW:
        return solve_triangular(factor, jnp.eye(d, dtype=factor.dtype), lower=True)
    X = [[jnp.zeros((), factor.dtype)] * d for _ in range(d)]
    for j in range(d):
        X[j][j] = 1 / factor[j, j]
        for i in range(j + 1, d):
            X[i][j] = -sum(factor[i, k] * X[k][j] for k in range(j, i)) / factor[i, i]
    return jnp.stack([jnp.stack(row) for row in X])


@jax.custom_jvp
def inverse(factor: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """X = L⁻¹, for a lower-triangular L. dX = −X dL X."""
    return _lower_inverse(factor)


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    X = inverse(*primals)
    return X, -X @ tangents[0] @ X


@jax.custom_jvp
def cholesky(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The lower-triangular L with L Lᵀ = M. dL = L Φ(L⁻¹ dM L⁻ᵀ), Φ the lower triangle with half the diagonal."""
    return _factor(matrix)


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    L = cholesky(*primals)
    X = inverse(L)
    half = jnp.tril(jnp.ones_like(L)) - 0.5 * jnp.eye(len(L), dtype=L.dtype)
    return L, L @ (half * (X @ tangents[0] @ X.T))


def scaled_cholesky(cov: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """A lower factor that no units upset, and no singular covariance: the factor of the correlations, scaled back."""
    d, info = len(cov), jnp.finfo(cov.dtype)
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(cov), info.tiny * 1e4))
    correlation = cov / scale[:, None] / scale
    correlation = 0.5 * (correlation + correlation.T) + 4 * d * info.eps * jnp.eye(d, dtype=cov.dtype)
    return scale[:, None] * jnp.linalg.cholesky(correlation)


def invert(factor: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The inverse of L Lᵀ, for a lower-triangular L."""
    X = inverse(factor)
    return X.T @ X


@jax.custom_jvp
def inverse_root(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The lower-triangular W with Wᵀ W = M⁻¹, for a positive definite M.

    Its derivative, −Φ(W dM Wᵀ) W, with Φ the lower triangle and half the diagonal, needs no further factorization.
    """
    return _lower_inverse(_factor(matrix))


@inverse_root.defjvp
def _inverse_root_jvp(primals, tangents):
    W = inverse_root(*primals)
    whitened = W @ tangents[0] @ W.T
    half = jnp.tril(whitened) * (1 - 0.5 * jnp.eye(W.shape[-1], dtype=W.dtype))
    return W, -half @ W


class Frame(NamedTuple):
    """z = Lᵀ (x − μ): the coordinates in which N(μ, (L Lᵀ)⁻¹) is standard normal."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]

    def standardize(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return (x - self.mean) @ self.factor

    def restore(self, z: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return self.mean + z @ inverse(self.factor)

    @property
    def log_det(self) -> Float[Array, ""]:
        """log |∂z/∂x|."""
        return jnp.log(jnp.diag(self.factor)).sum()

    def log_prob(self, z: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        """log density, with respect to x, of the frame's own Gaussian at the point with coordinates z."""
        return self.log_det - 0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * LOG_2PI


class Gaussian(eqx.Module):
    """exp(η1 · x + η2 · {x_i x_j} − A(η)), normalized or not.

    >>> g = Gaussian.from_moments(jnp.array([1.0, 2.0]), jnp.eye(2))
    >>> (g * g).moments()[0].round(3)
    Array([1., 2.], dtype=float32)
    """

    eta1: Float[Array, " d"]
    eta2: Float[Array, " d*(d+1)//2"]

    @classmethod
    def from_precision(cls, eta1: Float[Array, " d"], precision: Float[Array, "d d"]) -> "Gaussian":
        """exp(η1 · x − ½ xᵀ Λ x)."""
        off_diagonal = 1.0 - 0.5 * jnp.eye(len(eta1), dtype=eta1.dtype)
        return cls(eta1, pack(-precision * off_diagonal))

    @classmethod
    def from_moments(cls, mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> "Gaussian":
        precision = invert(cholesky(cov))
        return cls.from_precision(precision @ mean, precision)

    @property
    def dim(self) -> int:
        return self.eta1.shape[-1]

    @property
    def eta(self) -> Float[Array, " n"]:
        """The natural parameter η as one vector, in the order of `statistic`."""
        return jnp.concatenate([self.eta1, self.eta2])

    @property
    def precision(self) -> Float[Array, "d d"]:
        return -unpack(self.eta2, self.dim) * (1.0 + jnp.eye(self.dim, dtype=self.eta2.dtype))

    def __mul__(self, other: "Gaussian") -> "Gaussian":
        return Gaussian(self.eta1 + other.eta1, self.eta2 + other.eta2)

    def frame(self) -> Frame:
        factor = cholesky(self.precision)
        return Frame(invert(factor) @ self.eta1, factor)

    def into(self, frame: Frame) -> "Gaussian":
        """The same function of x, up to a constant factor, in the coordinates of a frame."""
        X, precision = inverse(frame.factor), self.precision
        return Gaussian.from_precision(X @ (self.eta1 - precision @ frame.mean), X @ precision @ X.T)

    def moments(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean and covariance."""
        cov = invert(cholesky(self.precision))
        return cov @ self.eta1, cov

    def log_normalizer(self) -> Float[Array, ""]:
        """A(η)."""
        factor = cholesky(self.precision)
        half = inverse(factor) @ self.eta1
        return 0.5 * (half @ half) - jnp.log(jnp.diag(factor)).sum() + 0.5 * self.dim * LOG_2PI

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        frame = self.frame()
        return frame.log_prob(frame.standardize(x))

    def sample(self, shape: tuple[int, ...] = (), *, key: Array) -> Float[Array, "..."]:
        """Reparameterized draws, of shape (*shape, d)."""
        z = jax.random.normal(key, (*shape, self.dim), self.eta1.dtype)
        return self.frame().restore(z)
