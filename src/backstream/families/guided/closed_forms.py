"""Conditioning a standard normal law on columns that are normal around an affine function of it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_2PI = math.log(2 * math.pi)
FEW = 4
"""Up to so many columns are written out; more are taken in by a loop."""
LEAST = 16.0
"""A column is left out that, in roundings of its own size, says no more than this."""


class Tilted(NamedTuple):
    """N(0, I) times a likelihood, as a normal law N(mean, factor factorᵀ) with a log mass: that of the row."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    log_mass: Float[Array, ""]


def condition(slope: Float[Array, "c d"], residual: Float[Array, " c"]) -> Tilted:
    """z ~ N(0, I) given residual = slope z + N(0, I), one column after the other.

    Nothing is subtracted that could cancel: where the noise is a millionth of the spread, single precision still has
    the directions that are not seen, however many columns read the others.
    """
    d, dtype = slope.shape[1], slope.dtype
    law = Tilted(jnp.zeros(d, dtype), jnp.eye(d, dtype=dtype), jnp.zeros((), dtype))
    if len(residual) > FEW:
        return jax.lax.scan(lambda law, column: (_taken_in(law, *column), None), law, (slope, residual))[0]
    for column in zip(slope, residual, strict=True):
        law = _taken_in(law, *column)
    return law


def _taken_in(law: Tilted, a: Float[Array, " d"], value: Float[Array, ""]) -> Tilted:
    """Potter's square-root update with one column: F (I − b bᵀ / (v + √v)), b = Fᵀ a and v = 1 + b·b.

    A column that says no more than rounding is left out. What it seems to say of directions that no column reads is
    made of rounding alone, and would add up over columns and rows.
    """
    mean, factor, log_mass = law
    b = factor.T @ a
    b = jnp.where(b @ b > (LEAST * jnp.finfo(a.dtype).eps) ** 2 * (a @ a), b, 0.0)
    variance = 1 + b @ b
    innovation = value - a @ mean
    along = factor @ b
    return Tilted(
        mean + along * (innovation / variance),
        factor - jnp.outer(along, b / (variance + jnp.sqrt(variance))),
        log_mass - 0.5 * (innovation**2 / variance + jnp.log(variance) + LOG_2PI),
    )
