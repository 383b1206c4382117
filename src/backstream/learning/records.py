"""What a learner knows and says: records of arrays, and their shapes before any row."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from backstream.families.base import BackwardFamily

from .predictive import Predictive
from .tally import Tally
from .unlearned import Unlearned


class LearnerState(NamedTuple):
    """Everything a learner knows: one pytree, one checkpoint."""

    t: Array
    """How many observations have been read."""
    key: Array
    q: BackwardFamily
    """The current λ."""
    average: BackwardFamily
    """The running mean of λ: the result."""
    theta: PyTree
    """The current unconstrained θ, and its running mean; None where the model is not learned."""
    theta_average: PyTree
    optimizer: PyTree
    model_optimizer: PyTree
    carry: PyTree
    """The estimator's."""
    filtered: PyTree
    """a_t of the result, with the model at the averaged θ."""
    unlearned: Unlearned | None
    """The same family as it was before it learned, for families that score themselves; None for others."""
    tally: Tally
    """What the rows have shown of how good the result is."""
    refused: Array
    """How many observations have been refused, and how many of them just now, in a row."""
    refused_in_a_row: Array

    def result(self) -> BackwardFamily:
        """What is reported: q with the averaged λ, or as it was before it learned, whichever predicts the rows
        better."""
        if self.unlearned is None:
            return self.average
        return self.unlearned.reported(self.average)


class Info(NamedTuple):
    """What one observation told. `elbo` is its contribution to the objective; `mean` and `std` describe q_t of the
    result; `log_score` is the log density of the row given those before it, as the result predicted it, NaN where the
    family has none; `pit`, `residual` and `crps` compare the row with draws of that prediction, see `predictive`;
    `refused` says that the update was not finite and was not made."""

    t: Array
    elbo: Array
    gradient_norm: Array
    ess: Array
    acceptance: Array
    refused: Array
    mean: Float[Array, " d"]
    std: Float[Array, " d"]
    log_score: Array
    pit: Float[Array, " dy"]
    residual: Float[Array, " dy"]
    crps: Float[Array, " dy"]


class Filters(NamedTuple):
    """a_t of the result, and of the other of the learned and the unlearned family, where there are two; and how the
    row compares with its prediction."""

    reported: PyTree
    other: PyTree
    predicted: Predictive


class Moved(NamedTuple):
    """What an optimizer has changed."""

    lam: PyTree
    theta: PyTree
    optimizer: PyTree
    model_optimizer: PyTree


def blank_infos(length: int, q: BackwardFamily, dtype) -> Info:
    """Room for what a block of observations tells: known beforehand, so that nothing is traced twice."""
    number, state, row = (jnp.zeros(shape, dtype) for shape in (length, (length, q.state_dim), (length, q.obs_dim)))
    t, refused = jnp.zeros(length, jnp.uint32), jnp.zeros(length, bool)
    return Info(t, number, number, number, number, refused, state, state, number, row, row, row)


def all_finite(tree: PyTree) -> Array:
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.stack(leaves).all()


def like_family(q: BackwardFamily, y: Array | np.ndarray) -> np.ndarray:
    """Observations in the precision of λ."""
    with np.errstate(over="ignore"):
        return np.asarray(y, dtype_of(q))


def dtype_of(q: BackwardFamily) -> np.dtype:
    return next(leaf.dtype for leaf in jax.tree.leaves(q) if eqx.is_inexact_array(leaf))
