"""What is read of numpyro's laws: moments of laws of the state, log densities of the columns of an observation."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

Law = Any
"""A numpyro law. Which attributes it has depends on what it is."""

NORMALS = dist.MultivariateNormal, dist.LowRankMultivariateNormal
NUM_DRAWS = 256
"""For a law that does not know its own moments."""
REACH = 4.0
"""Draws further from the median than so many quartile distances are moved there: a Cauchy law has no variance."""


class Row(NamedTuple):
    """One observation as the laws need it."""

    y: Array
    """With a value of the support where one is missing, and integers where the law is one of integers."""
    seen: Bool[Array, " dy"]

    @classmethod
    def of(cls, y: Float[Array, " dy"], fill: np.ndarray) -> "Row":
        """`fill` is any draw of the emission: it says what type the law's values have."""
        seen = ~jnp.isnan(y)
        filled = jnp.where(seen, y, jnp.asarray(fill, y.dtype))
        if np.issubdtype(fill.dtype, np.floating):
            return cls(filled, seen)
        return cls(jnp.round(filled).astype(fill.dtype), seen)


def factorises(law: Law) -> bool:
    """Whether the log density is a sum over columns."""
    return isinstance(law, dist.Independent) and law.base_dist.event_shape == () and law.reinterpreted_batch_ndims == 1


def column_log_probs(law: Law, row: Row) -> Float[Array, " c"]:
    """Terms that add up to log p(y) of what is seen: one a column where the law factorises, or else one in all.

    A correlated normal law is split by the Cholesky factor of its covariance, each column given those before it.
    """
    if factorises(law):
        return jnp.where(row.seen, law.base_dist.log_prob(row.y), 0.0)
    if isinstance(law, NORMALS):
        factor = seen_factor(jnp.asarray(law.covariance_matrix), row.seen)
        residual = solve_triangular(factor, jnp.where(row.seen, row.y - law.loc, 0.0), lower=True)
        terms = -0.5 * residual**2 - jnp.log(jnp.diagonal(factor)) - 0.5 * math.log(2 * math.pi)
        return jnp.where(row.seen, terms, 0.0)
    return jnp.where(row.seen.all(), law.log_prob(row.y), 0.0)[None]


def seen_factor(cov: Float[Array, "c c"], seen: Bool[Array, " c"]) -> Float[Array, "c c"]:
    """The Cholesky factor of the covariance of the seen columns, with those of the others put at one."""
    return jnp.linalg.cholesky(jnp.where(seen[:, None] & seen, cov, jnp.eye(len(seen), dtype=cov.dtype)))


class StateMoments(NamedTuple):
    mean: Float[Array, " d"]
    cov: Float[Array, "d d"] | Float[Array, " d"]
    """A vector of variances where the coordinates are independent."""

    def dense(self) -> Float[Array, "d d"]:
        return jnp.diag(self.cov) if self.cov.ndim == 1 else self.cov


def knows_moments(law: Law) -> bool:
    """Whether mean and covariance can be read off the law. A mean or a variance that is infinite is known, too."""
    try:
        return law.mean is not None and (
            hasattr(law, "covariance_matrix") or (factorises(law) and law.variance is not None)
        )
    except (NotImplementedError, AttributeError):
        return False


def state_moments(law: Law, known: bool, dtype) -> StateMoments:
    """Mean and covariance of a law of the state; from fixed draws where it is not `known` to have finite ones."""
    if not known:
        return _drawn_moments(law, dtype)
    d = law.event_shape[0]
    mean = jnp.broadcast_to(law.mean, (d,)).astype(dtype)
    if hasattr(law, "covariance_matrix"):
        return StateMoments(mean, law.covariance_matrix.astype(dtype))
    return StateMoments(mean, jnp.broadcast_to(law.variance, (d,)).astype(dtype))


def _drawn_moments(law: Law, dtype) -> StateMoments:
    """The same draws at every call, so that the moments are a smooth function of the law's parameters."""
    draws = jnp.asarray(law.sample(jax.random.key(0), (NUM_DRAWS,)), dtype)
    low, median, high = jnp.quantile(draws, jnp.array([0.25, 0.5, 0.75], dtype), axis=0)
    draws = jnp.clip(draws, median - REACH * (high - low), median + REACH * (high - low))
    mean = draws.mean(0)
    return StateMoments(mean, (draws - mean).T @ (draws - mean) / NUM_DRAWS)
