"""Conditioning a standard normal law on columns that are normal around an affine function of it."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

LOG_2PI = math.log(2 * math.pi)
FEW = 4
"""Up to so many columns are taken in one after the other."""


class Tilted(NamedTuple):
    """N(0, I) times a likelihood, as a normal law N(mean, factor factorᵀ) with a log mass: that of the row."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    log_mass: Float[Array, ""]


def condition(slope: Float[Array, "c d"], residual: Float[Array, " c"]) -> Tilted:
    """z ~ N(0, I) given residual = slope z + N(0, I).

    Up to four columns nothing is subtracted that could cancel: where the noise is a millionth of the spread, single
    precision still has the directions that are not seen. With more columns it loses them there.
    """
    if len(residual) <= FEW:
        return _one_by_one(slope, residual)
    d = slope.shape[1]
    # With Q R = (slope; I), RᵀR = I + slopeᵀ slope is the posterior precision. The residual as one more column of the
    # same decomposition becomes R · mean, and a last pivot: the root of one plus the squares that the mean leaves.
    columns = jnp.concatenate([slope, residual[:, None]], 1)
    R = jnp.linalg.qr(jnp.concatenate([columns, jnp.eye(d + 1, dtype=slope.dtype)]), mode="r")
    R = jnp.sign(jnp.diagonal(R))[:, None] * R
    factor = solve_triangular(R[:d, :d], jnp.eye(d, dtype=slope.dtype), lower=False)
    log_mass = 0.5 * (1 - R[d, d] ** 2) - jnp.log(jnp.diagonal(R)[:d]).sum()
    return Tilted(factor @ R[:d, d], factor, log_mass - 0.5 * len(residual) * LOG_2PI)


def _one_by_one(slope: Float[Array, "c d"], residual: Float[Array, " c"]) -> Tilted:
    """Potter's square-root update, a column at a time: F (I − b bᵀ / (v + √v)), b = Fᵀ a and v = 1 + b·b."""
    d = slope.shape[1]
    mean, factor = jnp.zeros(d, slope.dtype), jnp.eye(d, dtype=slope.dtype)
    log_mass = jnp.zeros((), slope.dtype)
    for a, value in zip(slope, residual, strict=True):
        b = factor.T @ a
        variance = 1 + b @ b
        innovation = value - a @ mean
        along = factor @ b
        mean = mean + along * (innovation / variance)
        factor = factor - jnp.outer(along, b / (variance + jnp.sqrt(variance)))
        log_mass = log_mass - 0.5 * (innovation**2 / variance + jnp.log(variance) + LOG_2PI)
    return Tilted(mean, factor, log_mass)
