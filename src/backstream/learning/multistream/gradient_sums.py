"""A common λ whose step is taken elsewhere: sums of gradients here, the step where all sums come together.

All rows of a call are read under one λ. A panel that is divided over machines in this way learns what one with ticks of
so many rows would.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from backstream._jax.compiling import compiled
from backstream.estimators.base import Estimate
from backstream.learning.online import Info, LearnerState, OnlineLearner, blank_infos

from .panel import Panel, PanelState
from .shard import Shard, moved, no_gradient
from .tick_layout import Layout


class Sums(NamedTuple):
    """Of the gradients of some rows."""

    total: Estimate
    count: Array
    """How many rows had one that was finite."""


def read_sums(
    panel: Panel, state: PanelState, slots: np.ndarray, ticks: np.ndarray, ys: np.ndarray, inputs: Any = None
) -> tuple[PanelState, Sums, Info]:
    """As `panel.read`, on one shard, but λ stays where it is. The state given is used up."""
    sums, collected, start = nothing(panel, state.common), [], 0
    while start < len(slots):
        layout = Layout.of(slots[start:], ticks[start:], 1, panel.lanes, state.capacity)
        layout = layout._replace(index=_all_slots(layout, slots[start : start + layout.count]))
        rows = slice(start, start + layout.count)
        laid = jax.tree.map(layout.lay, jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], (ys, inputs)))
        chunks = np.asarray(layout.offsets[0, layout.ticks])
        state, part, infos = _summed(panel, state, layout.index, *laid, chunks)
        sums = add(sums, part)
        collected.append(jax.tree.map(lambda leaf, layout=layout: layout.unlay(np.asarray(leaf)[None]), infos))
        start += layout.count
    if not collected:
        collected = [jax.tree.map(np.asarray, blank_infos(0, panel.q, ys.dtype))]
    return state, sums, jax.tree.map(lambda *parts: np.concatenate(parts), *collected)


def nothing(panel: Panel, common: LearnerState | None) -> Sums:
    assert common is not None
    return Sums(no_gradient(panel.learner, common), jnp.zeros((), jnp.int32))


def add(one: Sums, other: Sums) -> Sums:
    return jax.tree.map(jnp.add, one, other)


@eqx.filter_jit
def step(learner: OnlineLearner, common: LearnerState, sums: Sums) -> LearnerState:
    """λ, θ and what goes with them after the rows whose gradients were added up."""
    return moved(learner, common, *sums)


def _all_slots(layout: Layout, slots: np.ndarray) -> np.ndarray:
    """The slot of each row, where a layout has its place in a working set."""
    index = np.full_like(layout.index, np.iinfo(np.int32).max)
    index[layout.place] = slots
    return index


@compiled(donate=1)
def _summed(panel: Panel, state: PanelState, index, ys, inputs, chunks) -> tuple[PanelState, Sums, Info]:
    arrays, static = eqx.partition(state, eqx.is_array)
    slots, index, ys, inputs = jax.tree.map(lambda leaf: leaf[0], (arrays.slots, index, ys, inputs))
    shard = Shard(panel.learner, panel.q, eqx.combine(slots, static.slots), index, ys, inputs, None)
    common = state.common
    assert common is not None
    blank = blank_infos(shard.index.size, panel.q, shard.ys.dtype)
    infos = jax.tree.map(lambda leaf: leaf.reshape(*shard.index.shape, *leaf.shape[1:]), blank)

    def chunk(c, loop):
        slots, sums, infos = loop
        slots, part, info = shard.chunk(slots, common, c)
        assert part is not None
        infos = jax.tree.map(lambda buffer, leaf: buffer.at[c].set(leaf), infos, info)
        return slots, add(sums, Sums(*part)), infos

    slots, sums, infos = jax.lax.fori_loop(0, chunks, chunk, (slots, nothing(panel, common), infos))
    slots = jax.tree.map(lambda leaf: leaf[None], slots)
    return eqx.combine(PanelState(slots, eqx.filter(common, eqx.is_array)), static), sums, infos
