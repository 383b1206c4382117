"""What one compiled call does to the slots of one shard: rows in chunks, and a step of the common λ after each tick."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from backstream.estimators.base import Estimate
from backstream.families.base import BackwardFamily
from backstream.learning.online import OnlineLearner
from backstream.learning.records import Info, LearnerState, all_finite, blank_infos
from backstream.learning.steps import LENGTHENING

from .panel_state import COMMON, PanelState, whole
from .sharding import STREAMS


class Shard:
    """The rows of one call that belong to one shard, and what they do to its slots."""

    def __init__(self, learner: OnlineLearner, q: BackwardFamily, slots: LearnerState, index, ys, inputs, offsets):
        self.learner, self.q = learner, q
        self.index, self.ys, self.inputs, self.offsets = index, ys, inputs, offsets
        self.static = eqx.filter(slots, eqx.is_array, inverse=True)

    def run(self, state: PanelState, ticks: Array) -> tuple[PanelState, Info]:
        blank = blank_infos(self.index.size, self.q, self.ys.dtype)
        infos = jax.tree.map(lambda leaf: leaf.reshape(*self.index.shape, *leaf.shape[1:]), blank)
        static = eqx.filter(state.common, eqx.is_array, inverse=True)

        def tick(k, loop):
            slots, common, infos = loop
            common = eqx.combine(common, static)
            between = self.offsets[k], self.offsets[k + 1]
            none = None if common is None else (no_gradient(self.learner, common), jnp.zeros((), jnp.int32))

            def chunk(c, loop):
                slots, total, infos = loop
                slots, part, info = self.chunk(slots, common, c)
                infos = jax.tree.map(lambda buffer, leaf: buffer.at[c].set(leaf), infos, info)
                return slots, jax.tree.map(jnp.add, total, part), infos

            slots, total, infos = jax.lax.fori_loop(*between, chunk, (slots, none, infos))
            if common is not None:
                flat, unravel = ravel_pytree(total)  # one exchange, not one for each array of λ
                common = moved(self.learner, common, *unravel(jax.lax.psum(flat, STREAMS)))
            return slots, eqx.filter(common, eqx.is_array), infos

        slots, common = eqx.filter(state.slots, eqx.is_array), eqx.filter(state.common, eqx.is_array)
        slots, common, infos = jax.lax.fori_loop(0, ticks, tick, (slots, common, infos))
        return PanelState(eqx.combine(slots, self.static), eqx.combine(common, static)), infos

    def chunk(self, slots, common, c):
        """The slots after one chunk of rows, the sum and number of their gradients, and their infos."""
        index = self.index[c]
        present = index < slots.t.shape[0]
        # A lane without a row does what the first does, and its result is dropped.
        own = jnp.where(present, index, index[0])
        ys, inputs = jax.tree.map(
            lambda leaf: jnp.where(_column(present, leaf[c]), leaf[c], leaf[c][0]), (self.ys, self.inputs)
        )
        rows = jax.tree.map(lambda leaf: leaf[own], slots)
        rows, gradient, finite, info = jax.vmap(lambda row, y, u: self._one(row, common, y, u))(rows, ys, inputs)
        slots = jax.tree.map(lambda leaf, row: leaf.at[index].set(row, mode="drop"), slots, rows)
        if common is None:
            return slots, None, info
        used = present & finite
        total = jax.tree.map(lambda leaf: jnp.where(_column(used, leaf), leaf, 0).sum(0), gradient)
        return slots, (total, used.sum(dtype=jnp.int32)), info

    def _one(self, row, common, y, u):
        state = whole(eqx.combine(row, self.static), common)
        carry, estimate, filters = self.learner._see(state, y, u)
        if common is None:
            state, info = self.learner._ascend(state, carry, estimate, filters)
            return eqx.filter(state._replace(key=row.key), eqx.is_array), None, ~info.refused, info
        increment = estimate.increment
        gradient = Estimate(increment.elbo, *eqx.filter(increment[1:], eqx.is_inexact_array))
        finite = all_finite(gradient)
        state, info = self.learner._settle(state, carry, estimate, filters, finite)
        state = state._replace(key=row.key, **dict.fromkeys(COMMON))
        return eqx.filter(state, eqx.is_array), gradient, finite, info


def moved(learner: OnlineLearner, common: LearnerState, total: Estimate, count: Array) -> LearnerState:
    """λ and θ after a tick, under jit: along the mean gradient of those that had a row in it."""
    mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1).astype(leaf.dtype), total)
    length = jnp.sqrt(jnp.clip(count, 1, LENGTHENING).astype(float))
    step, finite = learner._move(common, mean, length, jnp.maximum(count, 1))
    counted = count > 0
    after = common._replace(
        **learner._averaged(common, step, finite),
        t=common.t + 1,
        refused=common.refused + ~finite,
        refused_in_a_row=jnp.where(finite, 0, common.refused_in_a_row + 1),
    )
    return jax.tree.map(lambda a, b: jnp.where(counted, a, b) if eqx.is_array(a) else a, after, common)


def no_gradient(learner: OnlineLearner, common: LearnerState) -> Estimate:
    """A gradient of zeros."""
    zero = jax.tree.map(jnp.zeros_like, eqx.filter(common.q, eqx.is_inexact_array))
    model = None
    if learner.model_optimizer is not None:
        model = jax.tree.map(jnp.zeros_like, eqx.filter(learner.model, eqx.is_inexact_array))
    return Estimate(jnp.zeros((), jax.tree.leaves(zero)[0].dtype), zero, model)


def _column(mask: Array, leaf: Array) -> Array:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))
