"""An observation as the laws need it, and the moments of laws of the state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from backstream.models.laws import Law, covariance_of, factorizes, filled, log_columns, mean_of, variance_of

NUM_DRAWS = 1024
"""For a law that does not know its own moments. They are the same at every row, so that their error adds up."""
REACH = 4.0
"""Draws further from the median than so many quartile distances are moved there: a Cauchy law has no variance."""


class Row(NamedTuple):
    """One observation as the laws need it."""

    y: Array
    """With a value of the support where one is missing, and integers where the law is one of integers."""
    seen: Bool[Array, " dy"]

    @classmethod
    def of(cls, law: Law, y: Float[Array, " dy"], fill: np.ndarray) -> "Row":
        """For a law of this kind. `fill` is any value it can have."""
        return cls(filled(law, y, fill), ~jnp.isnan(y))


def column_log_probs(law: Law, row: Row) -> Float[Array, " c"]:
    """Terms that add up to log p(y) of what is seen."""
    return log_columns(law, row.y, row.seen)


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
            hasattr(law, "covariance_matrix") or (factorizes(law) and law.variance is not None)
        )
    except (NotImplementedError, AttributeError):
        return False


def state_moments(law: Law, known: bool, dtype) -> StateMoments:
    """Mean and covariance of a law of the state; from fixed draws where it is not `known` to have finite ones."""
    if not known:
        return _drawn_moments(law, dtype)
    spread = covariance_of(law) if hasattr(law, "covariance_matrix") else variance_of(law)
    return StateMoments(mean_of(law).astype(dtype), spread.astype(dtype))


def _drawn_moments(law: Law, dtype) -> StateMoments:
    """The same draws at every call, so that the moments are a smooth function of the law's parameters."""
    draws = jnp.asarray(law.sample(jax.random.key(0), (NUM_DRAWS,)), dtype)
    low, median, high = jnp.quantile(draws, jnp.array([0.25, 0.5, 0.75], dtype), axis=0)
    draws = jnp.clip(draws, median - REACH * (high - low), median + REACH * (high - low))
    mean = draws.mean(0)
    return StateMoments(mean, (draws - mean).T @ (draws - mean) / NUM_DRAWS)
