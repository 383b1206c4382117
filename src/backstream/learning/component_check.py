"""Whether a posterior needs several components: how much better the rows are predicted with them than with one.

Two filters read the same rows from the same state, at the same θ, and nothing is learned meanwhile. The difference of
their log scores needs no truth.
"""

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream._jax.compiling import compiled
from backstream.families import BackwardFamily, Guided, GuidedMixture
from backstream.models.base import StateSpaceModel

SEVERAL = 4
"""Components that are tried, and taken where they are needed."""
CHECKED_ROWS = 256
"""Rows that one check reads: the first of a run, and some of a window now and then."""
EVERY = 25
"""Windows of the monitor between two checks. They read 2 % of the rows of windows of 500."""
MOST_STATES = 10
"""Beyond it several components cost too much to be tried without being asked for."""
BATCH = 16
"""Differences of neighboring rows are not independent: the standard error is that of the means of so many."""
LEAST_GAP, SURENESS = 1e-3, 3.0
"""Several components are needed where the gap is above so many nats a row, and so many standard errors."""
LEAST_NATS = 10.0
"""Or where it is so many nats in all, however uneven over the rows: a ratio of predictive densities is that large with
a probability of e⁻¹⁰ at most where those below it are right."""


class Gap(NamedTuple):
    """How much better several components predict rows than one, in nats a row."""

    mean: float
    error: float
    """Its standard error."""
    rows: int
    """How many rows counted."""

    def is_clear(self) -> bool:
        """Whether several components are needed."""
        sure = self.mean > SURENESS * self.error or self.mean * self.rows > LEAST_NATS
        return self.mean > LEAST_GAP and sure

    def advice(self) -> str:
        return (
            f"{SEVERAL} components predict rows better than one, by {self.mean:.3f} ± {self.error:.3f} nats a row: the "
            f"posterior has several modes. Begin a run with components={SEVERAL}."
        )


def can_be_checked(q: BackwardFamily) -> TypeGuard[Guided]:
    """Whether more components could help, and are cheap enough to be tried."""
    return isinstance(q, Guided) and not q.exact and q.state_dim <= MOST_STATES


def log_score_gap(p: StateSpaceModel, q: Guided, state: Any, ys: Any, inputs: Any = None) -> Gap:
    """The gap on the first `CHECKED_ROWS` of some rows.

    Args:
        p: The model.
        q: The posterior with one component.
        state: Its state before these rows; None before the first.
        ys: The rows, [T, dy].
        inputs: Their inputs, where the model has any.
    """
    ys, inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[:CHECKED_ROWS], (ys, inputs))
    one, several = map(np.asarray, _log_scores(p, q, state, jnp.asarray(ys, q.log_inflation.dtype), inputs))
    gaps = (several - one)[~np.isnan(ys).all(1) & np.isfinite(one) & np.isfinite(several)].astype(float)
    batches = gaps[: len(gaps) // BATCH * BATCH].reshape(-1, BATCH).mean(1)
    if len(batches) < 2:
        return Gap(float(gaps.mean()) if len(gaps) else 0.0, np.inf, len(gaps))
    return Gap(float(gaps.mean()), float(batches.std(ddof=1) / np.sqrt(len(batches))), len(gaps))


@compiled(quickly=True)
def _log_scores(
    p: StateSpaceModel, q: Guided, state: Any, ys: Array, inputs: Any
) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """Of each row, with one component and with several."""
    if state is None:
        state = q.init(p, jax.tree.map(lambda leaf: leaf[0], inputs))
    several, start = GuidedMixture.beside(q, p, state, SEVERAL)

    def read(states, row):
        after = q.update(p, states[0], *row), several.update(p, states[1], *row)
        return after, (q.log_score(after[0]), several.log_score(after[1]))

    return jax.lax.scan(read, (state, start), (ys, inputs))[1]
