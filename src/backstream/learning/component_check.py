"""Whether a posterior needs several components: whether rows are predicted better with them than with one, or states
estimated elsewhere.

Two filters read the same rows from the same state, at the same θ, and nothing is learned meanwhile. Neither the
difference of their log scores nor the distance of their means needs a truth.
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


LEAST_SHIFT = 0.04
"""Or where the filtered means differ by so much of the variance, for any state, and several components predict no
worse: if theirs are right, the root mean square error with one is 2 % above theirs. Rows say little about which of two
modes is meant, so that log scores alone need thousands of them."""


class Gap(NamedTuple):
    """How several components compare with one."""

    mean: float
    """How much better they predict rows, in nats a row."""
    error: float
    """Its standard error."""
    rows: int
    """How many rows counted."""
    shift: float = 0.0
    """The mean square difference of the filtered means, as a share of the variance: the largest over the states."""

    def is_clear(self) -> bool:
        """Whether several components are needed."""
        return self._predicts_better() or self._is_elsewhere()

    def _predicts_better(self) -> bool:
        sure = self.mean > SURENESS * self.error or self.mean * self.rows > LEAST_NATS
        return self.mean > LEAST_GAP and sure

    def _is_elsewhere(self) -> bool:
        return self.shift > LEAST_SHIFT and self.mean > -SURENESS * self.error

    def advice(self) -> str:
        better = f"predict rows better than one, by {self.mean:.3f} ± {self.error:.3f} nats a row"
        elsewhere = f"estimate states {self.shift**0.5:.2f} standard deviations away from where one does"
        do = better if self._predicts_better() else elsewhere
        return f"{SEVERAL} components {do}: the posterior has several modes. Begin a run with components={SEVERAL}."


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
    found = _compared(p, q, state, jnp.asarray(ys, q.log_inflation.dtype), inputs)
    one, several, squares, variances = (np.asarray(part, float) for part in found)
    usable = ~np.isnan(ys).all(1) & np.isfinite(one) & np.isfinite(several)
    gaps = (several - one)[usable]
    batches = gaps[: len(gaps) // BATCH * BATCH].reshape(-1, BATCH).mean(1)
    if len(batches) < 2:
        return Gap(float(gaps.mean()) if len(gaps) else 0.0, np.inf, len(gaps))
    shift = squares[usable].sum(0) / np.maximum(variances[usable].sum(0), np.finfo(float).tiny)
    error = float(batches.std(ddof=1) / np.sqrt(len(batches)))
    return Gap(float(gaps.mean()), error, len(gaps), float(shift.max()))


@compiled(quickly=True)
def _compared(
    p: StateSpaceModel, q: Guided, state: Any, ys: Array, inputs: Any
) -> tuple[Float[Array, " t"], Float[Array, " t"], Float[Array, "t d"], Float[Array, "t d"]]:
    """Of each row: its log scores with one component and with several, the squared differences of the means of the
    states, and the variances of the states with several."""
    if state is None:
        state = q.init(p, jax.tree.map(lambda leaf: leaf[0], inputs))
    several, start = GuidedMixture.beside(q, p, state, SEVERAL)

    def read(states, row):
        after = q.update(p, states[0], *row), several.update(p, states[1], *row)
        (mean, _), (other, cov) = q.moments(after[0]), several.moments(after[1])
        scores = q.log_score(after[0]), several.log_score(after[1])
        return after, (*scores, (other - mean) ** 2, jnp.diagonal(cov))

    return jax.lax.scan(read, (state, start), (ys, inputs))[1]
