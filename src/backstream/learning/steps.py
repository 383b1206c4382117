"""Steps for θ that need no tuning: a robust search first, Newton steps with a falling gain once it has settled.

The search is Adam, in units of the information that a row has about each parameter, with the correlations of the
scores taken out: two noises whose sum alone is clear would be told apart too slowly otherwise. It ends when the mean
score of a block of rows is no larger than chance makes it, and the block says enough about each parameter. Scores are
bounded on the way: a filter far from the truth may be so sensitive to θ that a few of them are larger than all others
together, by many orders of magnitude, and would make up all of the information.

From then on the steps are those of recursive maximum likelihood, gain · J⁻¹ · score, with J the running mean of the
outer products of the scores before the row. The mean score is watched all the time: where it is larger than chance
makes it, the gain is raised again, and if that does not help the search starts again. So a jump of θ is followed too.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from backstream._jax.batched_cond import branch
from backstream.settings import LEAST_MODEL_HORIZON

from .information import WIDE, Block, Information

SEARCH_BLOCK, SCORES_PER_PARAMETER = 200, 25
"""Rows of the first blocks: so many, or so many for each parameter. A block has as many scores for each parameter too:
where a score is the mean of many rows, few of them would make a poor J."""
WATCH_BLOCK = LEAST_MODEL_HORIZON
"""Rows over which a jump is looked for."""
RECENT = 50
"""Scores over which the search averages."""
WIDEST_ERROR = 0.5
"""Largest standard error after one block, in the parameter's unit, with which the search may end."""
FAINTEST, FAINT_ROWS = 1e-24, 1600
"""A logarithm that a row says less about than LEAST_INFORMATION, but more than the first, may be that of a noise that
is far too small. The search goes on for at least a block of so many rows then: Adam moves such a parameter too."""
LENGTHENING = 64
"""Rows up to which a step of the search along the mean of n scores is √n times as long."""
NARROW, LAST, FASTER = 2.0, 16.0, 8.0
"""Where huge scores hide the others, the search bounds each score at so many times its typical size. The bound doubles
at each block that fits, and is narrow again at one that does not. From the second on the search may end, and the bound
grows by the third. Elsewhere it is the wide bound."""
TYPICAL_STEP = 0.05
"""Of the logarithm of that size, which is a running median."""
GAIN, MEAN_GAIN = 3.0, 3.0
"""Gains are GAIN/age for the steps and MEAN_GAIN/age for their running mean."""
INFLATION = 1.30
"""Of the variance of that mean, against maximum likelihood's: 2 (p + 1)² v / ((p + c)(2p + 1)), with c the gain of the
steps, p + 1 that of the mean, v = c² / (2c − 1)."""


class SettlingState(NamedTuple):
    """What the rule remembers. Vectors are θ as one, unconstrained."""

    rows: Float[Array, ""]
    scores: Float[Array, ""]
    """How many have been read: as many as rows, unless several rows come together."""
    first: Float[Array, " p"]
    second: Float[Array, " p"]
    """The moments of Adam."""
    typical: Float[Array, " p"]
    """Running median of the sizes of the scores that are not zero."""
    hidden: Bool[Array, ""]
    """Whether huge scores hid the others in the latest block of the search."""
    bound: Float[Array, ""]
    """Of a score in the search then, in typical sizes."""
    information: Float[Array, "p p"]
    """J: the running mean of the outer products of the scores."""
    settled: Bool[Array, ""]
    age: Float[Array, ""]
    """Rows that the gain counts, once the search has ended."""
    block: Block
    """Of the search; once that has ended, blocks that double in length."""
    block_length: Float[Array, ""]
    watch: Block
    mean: Float[Array, " p"]
    """The averaged iterate: the estimate."""
    misfit: Float[Array, ""]
    """Of the latest block that was complete."""
    restarts: Float[Array, ""]
    """How often the gain was raised again."""
    restarted_at: Float[Array, ""]
    """Rows read when that happened last."""


@dataclass(frozen=True)
class Settling:
    """Steps for θ that need no tuning, instead of an optax transformation.

    `rate` is Adam's in the search. `horizon` is the number of rows after which the past is forgotten: None for never
    (the estimate then becomes as good as maximum likelihood), a number to follow parameters that change.
    """

    rate: float = 1e-2
    horizon: int | None = None

    def __post_init__(self):
        if not self.rate > 0:
            raise ValueError(f"rate must be positive, not {self.rate}.")
        if self.horizon is not None and not self.horizon >= WATCH_BLOCK:
            raise ValueError(f"The horizon for θ must be at least {WATCH_BLOCK} rows, not {self.horizon}.")

    def init(self, theta: PyTree) -> SettlingState:
        vector, _ = ravel_pytree(theta)
        size, dtype = vector.size, vector.dtype
        zero, zeros, empty = jnp.zeros((), dtype), jnp.zeros(size, dtype), Block.empty(size, dtype)
        return SettlingState(
            rows=zero,
            scores=zero,
            first=zeros,
            second=zeros,
            typical=zeros,
            hidden=jnp.asarray(False),
            bound=jnp.asarray(NARROW, dtype),
            information=jnp.zeros((size, size), dtype),
            settled=jnp.asarray(False),
            age=zero,
            block=empty,
            block_length=jnp.asarray(_first_block(size), dtype),
            watch=empty,
            mean=vector,
            misfit=jnp.asarray(jnp.inf, dtype),
            restarts=zero,
            restarted_at=zero,
        )

    def update(
        self,
        gradient: PyTree,
        state: SettlingState,
        theta: PyTree,
        rows: Array | float = 1.0,
        bounded: PyTree | None = None,
    ) -> tuple[PyTree, SettlingState]:
        """The change of θ after one row with this score; `gradient` is minus the score, as optax has it. Of `rows` rows
        at once it is the mean. `bounded` says which numbers are logarithms or log odds."""
        vector, restore = ravel_pytree(theta)
        score, rows = -ravel_pytree(gradient)[0], jnp.asarray(rows, vector.dtype)
        bounded = None if bounded is None else ravel_pytree(bounded)[0].astype(bool)
        state = state._replace(typical=_typical(state, jnp.abs(score) * jnp.sqrt(rows)))
        state = branch(state.settled, lambda state, _: state, _within_bounds, state, rows)
        before = Information.of(state.information, _rows_of_information(state), vector, bounded)
        beyond = (jnp.abs(score) * jnp.sqrt(rows) > WIDE * state.typical).mean()
        score = self._bounded(state, score, before, rows)
        state = state._replace(first=0.9 * state.first + 0.1 * score, second=0.99 * state.second + 0.01 * score**2)
        moved = vector + branch(state.settled, self._newton, self._search, state, score, before, rows)
        state = self._remember(state, rows, score, moved, beyond)
        complete = _is_complete(state) | (state.watch.rows >= WATCH_BLOCK)
        moved, state = branch(complete, self._judge, lambda state, theta, _: (theta, state), state, moved, bounded)
        return restore(moved - vector), state

    def estimate(self, state: SettlingState, theta: PyTree) -> PyTree:
        """The averaged iterate, as a pytree like θ."""
        return ravel_pytree(theta)[1](state.mean)

    def covariance(self, state: SettlingState) -> Float[Array, "p p"]:
        """Of the estimate, in the unconstrained parameters: NaN as long as the search goes on."""
        information = Information.of(state.information, state.age, state.mean)
        spread = INFLATION / state.age
        if self.horizon is not None:
            spread = jnp.maximum(spread, 1 / (4 * self.horizon))
        return jnp.where(state.settled, spread * information.inverse(), jnp.nan)

    def _bounded(self, state: SettlingState, score: Array, before: Information, rows: Array) -> Array:
        """In the search, each number of a score by its typical size. Later the score as a whole, where it would more
        than double J: a bound that grows with the rows, so that it costs nothing in the end."""
        size = before.size(score * jnp.sqrt(rows)) * self._gain(state.age, GAIN, rows)
        most = jnp.where(state.hidden, state.bound, WIDE) * state.typical / jnp.sqrt(rows)
        return jnp.where(state.settled, score / jnp.sqrt(jnp.maximum(size, 1.0)), jnp.clip(score, -most, most))

    def _newton(self, state: SettlingState, score, before: Information, rows) -> Array:
        return before.within(self._gain(state.age, GAIN, rows) * before.solve(score), 0.1)

    def _search(self, state: SettlingState, score, before: Information, rows) -> Array:
        """Adam, whose step is in units of the parameters. With √n times the length for n rows it wanders as far around
        the optimum, in standard errors of a block, as it does with the rows one by one."""
        t = state.scores + 1
        direction = state.first / (1 - 0.9**t) / (jnp.sqrt(state.second / (1 - 0.99**t)) + 1e-12)
        length = self.rate * jnp.sqrt(jnp.minimum(rows, LENGTHENING))
        return length * before.unit * before.uncorrelated(direction)

    def _gain(self, age: Array, numerator: float, rows: Array) -> Array:
        """Of so many rows at once: about the sum of what each would have."""
        gain = numerator * rows / (age + numerator * rows)
        if self.horizon is None:
            return gain
        return jnp.maximum(gain, 1 - (1 - numerator / GAIN / self.horizon) ** rows)

    def _remember(self, state: SettlingState, rows, score, theta, beyond) -> SettlingState:
        """The row in the running means."""
        age = state.age + rows
        recent = jnp.maximum(1 / (state.scores + 1), 1 / RECENT)
        weight, slow = (jnp.where(state.settled, self._gain(age, gain, rows), recent) for gain in (GAIN, MEAN_GAIN))
        return state._replace(
            rows=state.rows + rows,
            scores=state.scores + 1,
            age=age,
            information=state.information + weight * (rows * jnp.outer(score, score) - state.information),
            mean=state.mean + slow * (theta - state.mean),
            block=state.block.add(rows, score, theta, beyond),
            watch=state.watch.add(rows, score, theta, beyond),
        )

    def _judge(self, state: SettlingState, theta: Array, bounded: Array | None) -> tuple[Array, SettlingState]:
        """At the end of a block: whether the search has settled, or a settled run has to be faster or search again."""
        block, watch, size = state.block, state.watch, theta.size
        over = _is_complete(state)
        watched = watch.rows >= WATCH_BLOCK
        J = jnp.where(state.settled, state.information, block.outer / block.count())
        now = Information.of(J, block.rows, theta, bounded)
        misfit = now.misfit(block.score, block)
        fits = ~state.settled & over & (misfit < 2.0)
        heavy, hidden = block.heavy(), state.hidden
        clear = ~_faint(block, now, bounded) | (block.rows >= FAINT_ROWS)
        clear = clear & (~heavy | (hidden & (state.bound >= LAST)))
        settles = fits & clear & (now.widest(block.count()) < WIDEST_ERROR)
        # About one run in a thousand has such a misfit by chance, and one block in a hundred such a smaller one.
        jumped = state.settled & watched & (now.misfit(watch.score, watch) > 1 + (7 * (2 * size) ** 0.5 + 10) / size)
        slow = state.settled & over & (misfit > 1 + 3 * (2 / size) ** 0.5)
        burst = state.settled & watched & watch.heavy() & ~hidden
        off = jumped | slow | burst
        again = burst | (off & (state.age < 3 * WATCH_BLOCK))
        start = block.theta / block.count() + now.within(now.solve(block.score / block.count()), 0.5)
        age = jnp.where(off, jnp.where(jumped, WATCH_BLOCK, jnp.maximum(block.rows / 4, WATCH_BLOCK)), state.age)
        length = jnp.where(over & (state.settled | fits), 2 * state.block_length, state.block_length)
        searched = over & ~state.settled
        bound = jnp.where(fits & hidden, jnp.where(state.bound < LAST, 2.0, FASTER) * state.bound, NARROW)
        return jnp.where(settles, start, theta), state._replace(
            settled=(state.settled | settles) & ~again,
            hidden=burst | jnp.where(searched, heavy, hidden),
            bound=jnp.where(again, NARROW, jnp.where(searched & ~settles, bound, state.bound)),
            age=jnp.where(settles, jnp.maximum(block.rows / 4, _first_block(size)), age),
            information=jnp.where(settles, J, state.information),
            block=block.clear_if(over | off),
            block_length=jnp.where(off | settles, _first_block(size), length),
            watch=watch.clear_if(watched | off | settles),
            mean=jnp.where(settles, start, state.mean),
            misfit=jnp.where(over, misfit, state.misfit),
            restarts=state.restarts + off,
            restarted_at=jnp.where(off, state.rows, state.restarted_at),
        )


def _typical(state: SettlingState, sizes: Array) -> Array:
    """The running medians after one more score: up or down by as much, whatever its size."""
    step = jnp.maximum(TYPICAL_STEP, 1 / jnp.sqrt(state.scores + 1))
    moved = state.typical * jnp.exp(step * jnp.sign(sizes - state.typical))
    return jnp.where(sizes > 0, jnp.where(state.typical > 0, moved, sizes), state.typical)


def _within_bounds(state: SettlingState, rows: Array) -> SettlingState:
    """What the search remembers of scores, within the bounds of today: the first ones may have been much larger."""
    most = jnp.maximum(WIDE, state.bound) * state.typical
    scale = jnp.sqrt(jnp.diag(state.information))
    share = jnp.where(scale > most, most / jnp.where(scale > 0, scale, 1.0), 1.0)
    return state._replace(
        first=jnp.clip(state.first, -most / jnp.sqrt(rows), most / jnp.sqrt(rows)),
        second=jnp.minimum(state.second, most**2 / rows),
        information=share[:, None] * state.information * share,
    )


def _is_complete(state: SettlingState) -> Bool[Array, ""]:
    """Whether the block is."""
    block = state.block
    return (block.rows >= state.block_length) & (block.scores >= SCORES_PER_PARAMETER * state.mean.size)


def _faint(block: Block, now: Information, bounded: Array | None) -> Bool[Array, ""]:
    """Whether there is a logarithm that rows say very little about, but not nothing."""
    if bounded is None:
        return jnp.asarray(False)
    return (bounded & ~now.active & (jnp.diag(block.outer) > FAINTEST)).any()


def _first_block(size: int) -> int:
    return max(SEARCH_BLOCK, SCORES_PER_PARAMETER * size)


def _rows_of_information(state: SettlingState) -> Array:
    return jnp.where(state.settled, state.age, jnp.minimum(state.scores, RECENT))
