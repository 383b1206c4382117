"""The family that a learner started from, kept together with the learned one: the better of the two is reported."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from backstream.families.base import ScoringFamily

HORIZON = 1000
"""Rows over which the two are compared."""


class Unlearned(NamedTuple):
    """The family that a learner started from, which reads the same rows."""

    q: ScoringFamily
    state: PyTree
    """a_t under its λ."""
    advantage: Array
    """By how much the learned family's log score is better, in nats per row: a running mean over the latest HORIZON."""
    least: Array
    """The advantage above which the learned family is reported: 0, or −∞ where it is reported in any case."""

    @classmethod
    def begin(cls, q: ScoringFamily, state: PyTree, fallback: bool, dtype) -> "Unlearned":
        """Before any row. `fallback` says whether the unlearned family is reported where it is better."""
        return cls(q, state, jnp.zeros((), dtype), jnp.asarray(0.0 if fallback else -jnp.inf, dtype))

    def choose(self, learned: PyTree, unlearned: PyTree) -> PyTree:
        pays = self.advantage > self.least
        return jax.tree.map(lambda a, b: jnp.where(pays, a, b) if eqx.is_array(a) else a, learned, unlearned)

    def next(self, t: Array, state: PyTree, learned_score: Array) -> tuple["Unlearned", Array]:
        """After one more row, and by how much the learned family's score of it is better."""
        gain = learned_score - self.q.log_score(state)
        weight = jnp.maximum(1 / (t + 1.0), 1 / HORIZON).astype(self.advantage.dtype)
        advantage = self.advantage + jnp.where(jnp.isfinite(gain), weight * (gain - self.advantage), 0.0)
        return self._replace(state=state, advantage=advantage), gain
