"""Cholesky factors and inverses of many matrices of at most three rows at once, written out entry by entry.

A batch of tiny LAPACK calls is slow; a few fused multiplications are not.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def cholesky(matrix: Float[Array, "*b r r"], floor: float) -> Float[Array, "*b r r"]:
    """Lower factors whose squared pivots are at least `floor`, so that rounding never makes one imaginary."""
    r = matrix.shape[-1]
    zero = jnp.zeros(matrix.shape[:-2], matrix.dtype)
    L = [[zero] * r for _ in range(r)]
    for j in range(r):
        pivot = matrix[..., j, j] - sum(L[j][k] ** 2 for k in range(j))
        L[j][j] = jnp.sqrt(jnp.maximum(pivot, floor))
        for i in range(j + 1, r):
            L[i][j] = (matrix[..., i, j] - sum(L[i][k] * L[j][k] for k in range(j))) / L[j][j]
    return jnp.stack([jnp.stack(row, -1) for row in L], -2)


def inverse(factor: Float[Array, "*b r r"]) -> Float[Array, "*b r r"]:
    """Inverses of lower-triangular matrices."""
    r = factor.shape[-1]
    zero = jnp.zeros(factor.shape[:-2], factor.dtype)
    X = [[zero] * r for _ in range(r)]
    for j in range(r):
        X[j][j] = 1 / factor[..., j, j]
        for i in range(j + 1, r):
            X[i][j] = -sum(factor[..., i, k] * X[k][j] for k in range(j, i)) / factor[..., i, i]
    return jnp.stack([jnp.stack(row, -1) for row in X], -2)


def transpose(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b n m"]:
    return jnp.swapaxes(matrix, -1, -2)


def apply(matrix: Float[Array, "*b m n"], vector: Float[Array, "*b n"]) -> Float[Array, "*b m"]:
    """A v for each matrix and its vector."""
    return jnp.einsum("...ij,...j->...i", matrix, vector)


def log_det(factor: Float[Array, "*b r r"]) -> Float[Array, "*b"]:
    """log of the determinant of triangular matrices."""
    return jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)


def orthonormal_rows(matrix: Float[Array, "*b r d"]) -> Float[Array, "*b r d"]:
    """Rows that span the same space, of unit length and orthogonal (Gram–Schmidt, twice); a zero row stays zero."""
    rows: list[Array] = []
    for i in range(matrix.shape[-2]):
        row = matrix[..., i, :]
        row = row / jnp.maximum(jnp.abs(row).max(-1, keepdims=True), jnp.finfo(row.dtype).tiny * 1e4)
        for _ in range(2):
            for other in rows:
                row = row - (row * other).sum(-1, keepdims=True) * other
        rows.append(row / jnp.maximum(jnp.sqrt((row**2).sum(-1, keepdims=True)), 1e-6))
    return jnp.stack(rows, -2)
