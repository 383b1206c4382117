"""Many streams of the same kind that advance together, on one device or over a mesh of them.

A panel has slots, one for each stream. Rows come in ticks: in one tick at most one row for each slot. The rows of a
tick are cut into chunks of `lanes`; a chunk's slots are gathered, advanced together under `jax.vmap`, and put back, so
that what a tick needs apart from the slots does not grow with their number, and a slot without a row is not touched.

Over a mesh, slot s lives on shard s mod D of the axis `streams`. Nothing crosses from shard to shard but, where λ is
common, its gradient, once a tick. The axis `particles` divides the samples of `RecursiveScore` (its z, H and G).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from backstream._jax.compiling import compiled
from backstream.families.base import BackwardFamily
from backstream.learning.online import OnlineLearner, blank_state
from backstream.learning.records import Info, LearnerState, blank_infos, like_family
from backstream.models.density import check_inputs, check_model, check_observations

from .panel_state import COMMON, PanelState, whole
from .shard import Shard
from .sharding import PARTICLES, STREAMS, by_shard, check_mesh, deal, gathered
from .tick_layout import Layout


class Panel(eqx.Module):
    """A learner for many streams. `common` says that they share one λ (and θ), which moves at each tick along the mean
    of the gradients of the slots that have a row in it; otherwise each has its own, from the same start `q`. The mean
    of n gradients has √n times less noise, so that its step is √n times as long, n being 64 at most: a fleet then
    learns from so many rows what one stream would.

        panel = Panel(learner, q, key=key, common=True)
        state = panel.open(capacity=64)
        state = panel.begin(state, slots=[0, 1], names=[[0, 17], [0, 4]])
        state, infos = panel.read(state, slots=[0, 1, 0], ticks=[0, 0, 1], ys=ys)
        panel.stream(state, 1).average

    A stream's draws depend on `key` and on its name, two numbers below 2³², and not on its slot or its neighbors.
    """

    learner: OnlineLearner
    q: BackwardFamily
    u: Any
    key: Array
    common: bool = eqx.field(static=True)
    lanes: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    def __init__(
        self,
        learner: OnlineLearner,
        q: BackwardFamily,
        u: Any = None,
        *,
        key: Array,
        common: bool,
        lanes: int = 256,
        mesh: Mesh | None = None,
    ):
        """`u` is an example of the inputs of one row, where the model has any."""
        if lanes < 1:
            raise ValueError(f"lanes must be at least 1, not {lanes}.")
        mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), (STREAMS, PARTICLES)) if mesh is None else mesh
        check_mesh(mesh, learner)
        self.learner, self.q, self.u, self.key, self.common, self.lanes = learner, q, u, key, common, lanes
        self.mesh = mesh

    @property
    def shards(self) -> int:
        return self.mesh.shape[STREAMS]

    # ---- slots -------------------------------------------------------------------------------------------------------
    def open(self, capacity: int) -> PanelState:
        """A panel without streams."""
        return _opened(self, self._local(capacity))

    def blank(self, capacity: int, shards: int | None = None) -> PanelState:
        """The structure and the shapes of such a panel: what a checkpoint is read into. With the devices that its parts
        live on, unless it was of another number of shards."""
        if shards is None or shards == self.shards:
            return self._map(eqx.filter_eval_shape(_build, self, self.shards, self._local(capacity)), _described)
        return eqx.filter_eval_shape(_build, self, shards, capacity // shards)

    def begin(self, state: PanelState, slots: Any, names: Any) -> PanelState:
        """Puts new streams, which have read nothing yet, into slots. The state given is used up."""
        slots, names = np.asarray(slots, np.int64).reshape(-1), np.asarray(names, np.uint32).reshape(-1, 2)
        for start in range(0, len(slots), self.lanes):
            part = slice(start, start + self.lanes)
            where = np.full(self.lanes, state.capacity, np.int64)
            words = np.zeros((self.lanes, 2), np.uint32)
            where[: len(slots[part])], words[: len(slots[part])] = slots[part], names[part]
            state = state._replace(slots=_begun((self, where, words), state.slots))
        return state

    def arrange(self, state: PanelState, capacity: int, moves: dict[int, int]) -> PanelState:
        """A panel of another capacity. `moves` says where slots beyond it go."""
        source = np.minimum(np.arange(self._local(capacity) * self.shards), state.capacity - 1)
        for old, new in moves.items():
            source[new] = old
        return state._replace(slots=_arranged(self, state.slots, source))

    def stream(self, state: PanelState, slot: int) -> LearnerState:
        """One stream's state, as its learner alone would have it: for the monitor, `filter` and `forecast`."""
        taken = self.streams(state, np.asarray([slot]), lambda one: one)
        return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, taken)

    def streams(self, state: PanelState, slots: np.ndarray, what: Any) -> PyTree:
        """what(state) of some streams, with a leading axis for them."""
        return jax.tree.map(_here, _taken(self, state, np.asarray(slots, np.int64), what))

    # ---- rows --------------------------------------------------------------------------------------------------------
    def read(self, state: PanelState, slots: Any, ticks: Any, ys: Any, inputs: Any = None) -> tuple[PanelState, Info]:
        """Rows of many streams: the slot of each, its tick (which never falls), its observation. The infos
        have the same order. The state given is used up."""
        slots, ticks, ys = np.asarray(slots, np.int64), np.asarray(ticks), like_family(self.q, ys)
        check_observations(check_model(self.learner.model, self.u), ys)
        check_inputs(inputs)
        tick = np.concatenate([[0], np.cumsum(ticks[1:] != ticks[:-1])]) if len(ticks) else ticks
        if len(np.unique(tick * state.capacity + slots)) < len(slots):
            raise ValueError("A slot has two rows in one tick: give the second a tick of its own.")
        collected, start = [], 0
        while start < len(slots):
            layout = Layout.of(slots[start:], tick[start:], self.shards, self.lanes, state.capacity // self.shards)
            rows = slice(start, start + layout.count)
            laid = jax.tree.map(layout.lay, jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], (ys, inputs)))
            state, infos = self._through(state, layout, deal((layout.index, *laid, layout.offsets), self.mesh))
            collected.append(gathered(infos, layout, self.mesh))
            start += layout.count
        if not collected:
            collected = [jax.tree.map(np.asarray, blank_infos(0, self.q, ys.dtype))]
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *collected)

    def _through(self, state: PanelState, layout: Layout, rows: PyTree) -> tuple[PanelState, Info]:
        """The panel after one compiled call on the slots that have rows in it."""
        ticks = np.asarray(layout.ticks)
        if layout.taken is None:
            return _advanced(self, state, *rows, ticks)
        taken = deal(layout.taken, self.mesh)
        working = PanelState(_gathered(self, state.slots, taken), state.common)
        working, infos = _advanced(self, working, *rows, ticks)
        return PanelState(_scattered(self, state.slots, working.slots, taken), working.common), infos

    def _local(self, capacity: int) -> int:
        if capacity < 1:
            raise ValueError(f"A panel must have at least 1 slot, not {capacity}.")
        return -(-capacity // self.shards)

    def put(self, state: PanelState) -> PanelState:
        """A state that was read from a disk, every leaf where it belongs, whatever the number of shards it was of."""
        shards, local = state.slots.t.shape
        if shards == self.shards:
            return self._map(state, _held)
        need = self._local(shards * local) * self.shards

        def deal(leaf):
            if not eqx.is_array(leaf):
                return leaf
            by_slot = np.asarray(leaf).swapaxes(0, 1).reshape(shards * local, *leaf.shape[2:])
            more = np.zeros((need - len(by_slot), *by_slot.shape[1:]), by_slot.dtype)
            dealt = np.concatenate([by_slot, more]).reshape(-1, self.shards, *by_slot.shape[1:])
            return jnp.asarray(dealt.swapaxes(0, 1))

        return self._map(state._replace(slots=jax.tree.map(deal, state.slots)), _held)

    def _specs(self, slots: LearnerState) -> PyTree:
        """Where the leaves of all slots live."""

        divided = jax.tree.map(lambda _: False, slots)
        if self.mesh.shape[PARTICLES] > 1:
            divided = divided._replace(carry=self.learner.estimator.by_sample(slots.carry))
        by_stream, by_both = PartitionSpec(STREAMS), PartitionSpec(STREAMS, None, PARTICLES)
        return jax.tree.map(lambda both: by_both if both else by_stream, divided)

    def _placed(self, state: PanelState) -> PanelState:
        """Under jit: every leaf where it belongs."""
        return self._map(state, jax.lax.with_sharding_constraint)

    def _map(self, state: PanelState, apply: Any) -> PanelState:
        """apply(leaf, sharding) for all arrays, or shapes of arrays, of a state."""
        arrays, static = eqx.partition(state, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct))

        def at(spec, leaf):
            return apply(leaf, NamedSharding(self.mesh, spec))

        slots = jax.tree.map(at, self._specs(arrays.slots), arrays.slots)
        common = jax.tree.map(lambda leaf: at(PartitionSpec(), leaf), arrays.common)
        return eqx.combine(PanelState(slots, common), static)


def _described(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _held(leaf: Any, sharding: NamedSharding) -> Array:
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    held = np.asarray(leaf)
    return jax.make_array_from_callback(held.shape, sharding, lambda i: held[i])


def _here(leaf: Any) -> Any:
    """An array that every process has, as one of this process alone."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(np.asarray(jax.random.key_data(leaf))))
    return jnp.asarray(np.asarray(leaf))


# ---- compiled --------------------------------------------------------------------------------------------------------
def _build(panel: Panel, shards: int, local: int) -> PanelState:
    learner, q = panel.learner, panel.q
    started = blank_state(learner, q, panel.u, panel.key)._replace(key=jax.random.key_data(panel.key))
    row, common = started, None
    if panel.common:
        row = started._replace(**dict.fromkeys(COMMON))
        common = started._replace(key=None, carry=None, filtered=None, unlearned=None, tally=None)

    def repeat(leaf):
        if not eqx.is_array(leaf):
            return leaf
        return jnp.broadcast_to(leaf.astype(leaf.dtype), (shards, local, *leaf.shape))

    return PanelState(jax.tree.map(repeat, row), common)


@eqx.filter_jit
def _opened(panel: Panel, local: int) -> PanelState:
    return panel._placed(_build(panel, panel.shards, local))


@eqx.filter_jit(donate="all-except-first")
def _begun(rest: tuple[Panel, Any, Any], begun: LearnerState) -> LearnerState:
    """All slots, with new streams in some; one beyond the capacity is none."""
    panel, slots, names = rest
    keys = jax.vmap(lambda words: jax.random.fold_in(jax.random.fold_in(panel.key, words[0]), words[1]))(names)
    fresh = jax.tree.map(lambda leaf: leaf[0, 0] if eqx.is_array(leaf) else leaf, _build(panel, 1, 1).slots)
    where = slots % panel.shards, slots // panel.shards

    def put(leaf, value):
        return leaf.at[where].set(value, mode="drop") if eqx.is_array(leaf) else leaf

    begun = jax.tree.map(put, begun, fresh)._replace(key=put(begun.key, jax.random.key_data(keys)))
    return panel._placed(PanelState(begun, None)).slots


@eqx.filter_jit
def _arranged(panel: Panel, slots: LearnerState, source: Any) -> LearnerState:
    shards = panel.shards
    where = source.reshape(-1, shards).T
    slots = jax.tree.map(lambda leaf: leaf[where % shards, where // shards] if eqx.is_array(leaf) else leaf, slots)
    return panel._placed(PanelState(slots, None)).slots


@eqx.filter_jit
def _taken(panel: Panel, state: PanelState, slots: Any, what: Any) -> PyTree:
    where = slots % panel.shards, slots // panel.shards
    arrays, static = eqx.partition(state.slots, eqx.is_array)

    def one(arrays):
        slot = eqx.combine(arrays, static)
        return eqx.filter(what(whole(slot, state.common)), eqx.is_array)

    taken = jax.vmap(one)(jax.tree.map(lambda leaf: leaf[where], arrays))
    first = jax.tree.map(lambda leaf: leaf[0, 0] if eqx.is_array(leaf) else leaf, state.slots)
    return eqx.combine(
        jax.lax.with_sharding_constraint(taken, NamedSharding(panel.mesh, PartitionSpec())),
        eqx.filter(what(whole(first, state.common)), eqx.is_array, inverse=True),
    )


@compiled()
def _gathered(panel: Panel, slots: LearnerState, taken: Array) -> LearnerState:
    """The working set: some slots of each shard."""

    def take(leaf, taken):
        return jax.vmap(lambda slots, places: slots.at[places].get(mode="clip"))(leaf, taken)

    arrays, static = eqx.partition(slots, eqx.is_array)
    rows = eqx.combine(jax.tree.map(lambda leaf: by_shard(take, panel.mesh)(leaf, taken), arrays), static)
    return panel._placed(PanelState(rows, None)).slots


@compiled(donate=1)
def _scattered(panel: Panel, slots: LearnerState, rows: LearnerState, taken: Array) -> LearnerState:
    """All slots, with the working set put back."""

    def put(leaf, new, taken):
        return jax.vmap(lambda slots, new, places: slots.at[places].set(new, mode="drop"))(leaf, new, taken)

    arrays, static = eqx.partition(slots, eqx.is_array)
    new = eqx.filter(rows, eqx.is_array)
    arrays = jax.tree.map(lambda leaf, new: by_shard(put, panel.mesh)(leaf, new, taken), arrays, new)
    return panel._placed(PanelState(eqx.combine(arrays, static), None)).slots


@compiled(donate=1)
def _advanced(panel: Panel, state: PanelState, index, ys, inputs, offsets, ticks) -> tuple[PanelState, Info]:
    """A working set after some ticks, and the infos of the rows."""
    arrays, static = eqx.partition(state, eqx.is_array)
    whole, by_stream = PartitionSpec(), PartitionSpec(STREAMS)
    of_panel, static_panel = eqx.partition(panel, eqx.is_array)

    def on_shard(of_panel, arrays, index, ys, inputs, offsets, ticks):
        """One shard's part of the slots and rows; its leading axis, of length 1, is taken off and put on again."""
        panel = eqx.combine(of_panel, static_panel)
        slots, index, ys, inputs, offsets = jax.tree.map(
            lambda leaf: leaf[0], (arrays.slots, index, ys, inputs, offsets)
        )
        state = eqx.combine(PanelState(slots, arrays.common), static)
        state, infos = Shard(panel.learner, panel.q, state.slots, index, ys, inputs, offsets).run(state, ticks)
        slots, infos = jax.tree.map(lambda leaf: leaf[None], (eqx.filter(state.slots, eqx.is_array), infos))
        return PanelState(slots, eqx.filter(state.common, eqx.is_array)), infos

    placed: Any = PanelState(by_stream, whole)  # type: ignore[arg-type]
    mapped = jax.shard_map(
        on_shard,
        mesh=panel.mesh,
        in_specs=(whole, placed, by_stream, by_stream, by_stream, by_stream, whole),
        out_specs=(placed, by_stream),
        axis_names={STREAMS},
        check_vma=False,
    )
    arrays, infos = mapped(of_panel, arrays, index, ys, inputs, offsets, ticks)
    return panel._placed(eqx.combine(arrays, static)), infos
