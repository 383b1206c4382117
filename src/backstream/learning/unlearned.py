"""The family that a learner started from, compared with the learned one: the better of the two is reported.

The one that is reported reads every row. The other reads along for the first rows of a stream, and then for some rows
of each thousand, from the state of the reported one on: over all rows it would cost as much as the reported one.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from backstream.families.base import ScoringFamily

HORIZON = 4000
"""Rows over which the two are compared."""
LEAST = 1 / HORIZON
"""The advantage that counts, in nats per row: one nat over all of them. Where rows say nothing about λ, the steps of an
optimizer move it all the same, and the bands with it."""
FIRST = 512
"""Rows of a stream that both read."""
PERIOD, UNCOUNTED, COUNTED = 1024, 16, 48
"""Later, both read the first rows of each PERIOD: some that do not count, which still have the state in them that the
other began with, and some that do."""


class Turn(NamedTuple):
    """What the other family does with a row."""

    reads: Bool[Array, ""]
    begins: Bool[Array, ""]
    """From the state of the one that is reported."""
    counts: Bool[Array, ""]
    weight: Array
    """For how many rows it stands, if it counts."""

    @classmethod
    def of(cls, t: Array) -> "Turn":
        """By the number of the row."""
        first, k = t < FIRST, t % PERIOD
        reads = first | (k < UNCOUNTED + COUNTED)
        weight = jnp.where(first, 1.0, PERIOD / COUNTED)
        return cls(reads, ~first & (k == 0), first | (reads & (k >= UNCOUNTED)), weight)


class Unlearned(NamedTuple):
    """The family that a learner started from, and the state of the one that is not reported."""

    q: ScoringFamily
    state: PyTree
    """a_t of the other family, learned or unlearned, at the latest row that it read."""
    advantage: Array
    """By how much the learned family's log score is better, in nats per row: a running mean over the latest HORIZON."""
    least: Array
    """The advantage above which the learned family is reported: LEAST, or −∞ where it is reported in any case."""

    @classmethod
    def begin(cls, q: ScoringFamily, state: PyTree, fallback: bool, dtype) -> "Unlearned":
        """Before any row. `fallback` says whether the unlearned family is reported where it is better."""
        return cls(q, state, jnp.zeros((), dtype), jnp.asarray(LEAST if fallback else -jnp.inf, dtype))

    @property
    def pays(self) -> Bool[Array, ""]:
        """Whether the learned family is reported."""
        return self.advantage > self.least

    def reported(self, learned: PyTree) -> PyTree:
        """Of the learned family and the unlearned one."""
        return _select(self.pays, learned, self.q)

    def other(self, learned: PyTree) -> PyTree:
        return _select(self.pays, self.q, learned)

    def next(self, t: Array, reported: Array, other: Array) -> tuple["Unlearned", Array, Bool[Array, ""]]:
        """After row t, of which the two families have these log scores. Also by how much the learned one's is better,
        NaN where that does not count, and whether the other is reported from now on."""
        turn = Turn.of(t)
        gain = jnp.where(turn.counts, jnp.where(self.pays, reported - other, other - reported), jnp.nan)
        weight = jnp.minimum(turn.weight / jnp.minimum(t + 1.0, HORIZON), 1.0).astype(self.advantage.dtype)
        advantage = self.advantage + jnp.where(jnp.isfinite(gain), weight * (gain - self.advantage), 0.0)
        after = self._replace(advantage=advantage)
        return after, gain, after.pays != self.pays


def first_or_both(advance: Any, turn: Turn, first: PyTree, second: PyTree) -> tuple[PyTree, PyTree]:
    """The state of the first of two filters after a row and, if it is the second's turn, that of the second: a family
    and a state each. As one program that runs once or twice it takes half as long to compile as two. Choices, not
    selections: these would copy every array of both at every row."""
    (arrays, static), (others, _) = (eqx.partition(filter, eqx.is_array) for filter in (first, second))

    def one(_, filters):
        (q, state), after = filters
        state = eqx.filter(advance(*eqx.combine((q, state), static)), eqx.is_array)
        return after, (q, state)

    # Each round puts the filter that has read the row behind the one that has not: the first comes to be the last.
    order = (
        lambda first, second: (first, second),
        lambda first, second: (second, first),
        lambda first, second: ((second[0], first[1]), first),
    )
    waiting = jax.lax.switch(turn.reads.astype(int) + turn.begins, order, arrays, others)
    (_, other), (_, read) = jax.lax.fori_loop(0, 1 + turn.reads, one, waiting)
    return eqx.combine(read, static[1]), eqx.combine(other, static[1])


def swapped_if(turned: Array, this: PyTree, that: PyTree) -> tuple[PyTree, PyTree]:
    """Two trees, in the other order if so."""
    (arrays, static), (others, _) = (eqx.partition(tree, eqx.is_array) for tree in (this, that))
    first, second = jax.lax.cond(turned, lambda a, b: (b, a), lambda a, b: (a, b), arrays, others)
    return eqx.combine(first, static), eqx.combine(second, static)


def _select(which: Bool[Array, ""], this: PyTree, that: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b) if eqx.is_array(a) else a, this, that)
