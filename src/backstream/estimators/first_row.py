"""The first row of a stream, for estimators that have a computation of their own for it."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from backstream._jax.batched_cond import branch
from backstream.families.base import BackwardFamily

from .base import Inputs, check_case, check_sizes, flatten

MOST_COUNTED = 2**30
NOT_SEEN = np.zeros((), np.int32)
"""The number of rows in a carry that has read none."""


class FirstRowApart(eqx.Module):
    """Has a computation of its own for the first row: the prior takes the place of a transition.

    A carry has a field `seen`, the number of rows that it has read, at most `MOST_COUNTED`. Before any row all of a
    carry is zero.
    """

    @abstractmethod
    def check_family(self, q: BackwardFamily) -> None:
        """Raises TypeError for a family that the estimator is not for."""

    @abstractmethod
    def first(self, p: Any, q: Any, y: Array, u: Inputs, key: Array) -> tuple[Any, Any]:
        """The first row. `seen` is 0 in the carry that is returned."""

    @abstractmethod
    def later(self, p: Any, q: Any, carry: Any, y: Array, u: Inputs, key: Array) -> tuple[Any, Any]:
        """Any other. `seen` stays as it is."""

    def init(self, p, q, u=None):
        check_sizes(p, q, u)
        self.check_family(q)
        y, key = jnp.full(q.obs_dim, jnp.nan, flatten(q)[0].dtype), jax.random.key(0)
        shapes = eqx.filter_eval_shape(lambda: self.first(p, q, y, u, key)[0])
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def step(self, p, q, carry, y, u=None, *, key):
        check_case(p, q, y, u)
        self.check_family(q)
        after, estimate = branch(
            carry.seen == 0,
            lambda estimator, p, q, carry, *row: estimator.first(p, q, *row),
            lambda estimator, p, q, carry, *row: estimator.later(p, q, carry, *row),
            *(self, p, q, carry, y, u, key),
        )
        return after._replace(seen=jnp.minimum(carry.seen, MOST_COUNTED - 1) + 1), estimate

    def restarted(self, p, q, carry, start, u=None):
        return carry._replace(seen=jnp.where(start, 0, carry.seen))
