"""What learning θ has gained: the log score of the result beside that of the filter at the θ that a run began with.

The filter at the starting θ reads some rows of the monitor's first window, of every fourth and of the last. It starts
from the result's own state there, and its first rows, which still have that state in them, do not count.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from backstream.families.base import ScoringFamily

from .online import OnlineLearner
from .records import Info, LearnerState, dtype_of

UNCOUNTED, COUNTED = 32, 128
"""Rows of a window that the filter reads: the first do not count."""
BATCH = 16
"""Gains of neighboring rows are not independent: the standard error is that of the means of so many."""
EVERY = 4
"""Windows from one of which some rows are read to the next."""
FORGOTTEN = 0.2
"""The share of what the windows before have said that is forgotten with each."""


class ThetaGain(NamedTuple):
    """How much better the rows are predicted with the learned θ than with the one at the start, in nats per row."""

    mean: float
    error: float
    """Its standard error."""


class Gained(NamedTuple):
    """Sums over the means of batches of rows: how many, of them and of their squares. Old ones count less."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def next(self, means: Float[np.ndarray, " b"]) -> "Gained":
        """With those of one more window."""
        if not len(means):
            return self
        kept = 1 - FORGOTTEN
        return Gained(
            kept * self.count + len(means),
            kept * self.total + float(means.sum()),
            kept * self.squares + float((means**2).sum()),
        )

    def gain(self) -> ThetaGain | None:
        """None where too little is known."""
        if self.count < 2:
            return None
        mean = float(self.total / self.count)
        variance = max(float(self.squares / self.count) - mean**2, 0.0) * self.count / (self.count - 1)
        return ThetaGain(mean, float((variance / self.count) ** 0.5))


def theta_gains(
    learner: OnlineLearner, anchor: Any, state: LearnerState, infos: Info, ys: Any, inputs: Any
) -> Float[np.ndarray, " b"]:
    """Means over batches of rows that follow `anchor`; none where θ is not learned, or the family has no log score."""
    q = state.average if state.unlearned is None else state.unlearned.q
    if state.theta is None or not isinstance(q, ScoringFamily):
        return np.zeros(0)
    length, count = UNCOUNTED + COUNTED, min(len(ys), UNCOUNTED + COUNTED)

    def padded(leaf):  # one program for all lengths
        leaf = np.asarray(leaf)[:count]
        return np.concatenate([leaf, np.repeat(leaf[-1:], length - count, 0)])

    if count <= UNCOUNTED + BATCH:
        return np.zeros(0)
    rows, inputs = jax.tree.map(padded, (np.asarray(ys, dtype_of(q)), inputs))
    found = np.asarray(_scores(learner.model, q, anchor, rows, inputs), float)[:count]
    gains = np.asarray(infos.log_score, float)[:count] - found
    known = np.isfinite(gains) & ~np.isnan(np.asarray(ys)[:count]).all(1)
    gains = gains[UNCOUNTED:][known[UNCOUNTED:]]
    return gains[: len(gains) // BATCH * BATCH].reshape(-1, BATCH).mean(1)


@eqx.filter_jit
def _scores(p: Any, q: ScoringFamily, anchor: Any, ys: Array, inputs: Any) -> Float[Array, " t"]:
    def read(state, row):
        state = q.update(p, state, *row)
        return state, q.log_score(state)

    return jax.lax.scan(read, anchor, (ys, inputs))[1]
