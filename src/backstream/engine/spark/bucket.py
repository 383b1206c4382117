"""One bucket of streams: its state is a block of bytes, and its rows advance in few compiled calls.

This runs in a worker and knows nothing of Spark: bytes and rows in, bytes and results out.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from backstream.errors import InputError
from backstream.learning import Panel, PanelState
from backstream.learning.multistream.fleet import words
from backstream.learning.multistream.gradient_sums import Sums, read_sums
from backstream.learning.multistream.packing import pack_ticks
from backstream.learning.multistream.sharding import STREAMS
from backstream.models.density import ModelShape, check_inputs, check_model, check_observations
from backstream.runs.checkpoints import DamagedCheckpointError
from backstream.runs.packed import pack, unpack

from .recipe import Recipe
from .tables import BucketRows, Told

LANES = (256, 32, 4)
"""Streams that advance together. There is a compiled program for each."""
LEAST_SLOTS = 8
BEGINS_ANEW = "The stream begins anew with its next rows."


class Members(NamedTuple):
    """The streams of a bucket, by their places in it."""

    names: list[str]
    seen: np.ndarray
    """When each had its last row, in milliseconds."""
    arrays: list[np.ndarray]

    def kept(self, keep: np.ndarray) -> "Members":
        names = [name for name, stays in zip(self.names, keep, strict=True) if stays]
        return Members(names, self.seen[keep], [leaf[keep] for leaf in self.arrays])


class Advanced(NamedTuple):
    """A bucket after some rows."""

    content: bytes | None
    """Its state; None where no stream is left."""
    told: Told
    sums: Sums | None
    """Of the gradients, where λ is common."""


class Bucket:
    """Advances the buckets of one job, one at a time."""

    def __init__(self, recipe: Recipe):
        learner, q, key = recipe.learner, recipe.q, recipe.key
        self._panels = {
            lanes: Panel(learner, q, recipe.u, key=key, common=recipe.sharing != "own", lanes=lanes) for lanes in LANES
        }
        self.panel = self._panels[LANES[-1]]
        self._shape: ModelShape = check_model(learner.model, recipe.u)
        self._dtype, self._sharing = np.dtype(recipe.precision), recipe.sharing
        state = self.panel.open(1)
        self.common = state.common
        """λ before any row, with what goes with it; None where each stream has its own."""
        slots = eqx.filter(state.slots, eqx.is_array)
        self._static = eqx.filter(state.slots, eqx.is_array, inverse=True)
        self._by_stream, self._everywhere = (
            NamedSharding(self.panel.mesh, spec) for spec in (PartitionSpec(STREAMS), PartitionSpec())
        )
        self._one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), slots)

    # ---- state -------------------------------------------------------------------------------------------------------
    def open(self, content: bytes | None) -> tuple[Members, dict[str | None, str]]:
        """The streams that a block of bytes holds, and why others of it cannot be used. The reason of None is that of
        the whole bucket."""
        blank = [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(self._one)]
        none = Members([], np.zeros(0, np.int64), blank)
        if content is None:
            return none, {}
        try:
            found = unpack(content, self._one)
        except (DamagedCheckpointError, InputError) as error:
            return none, {None: f"{error} {BEGINS_ANEW}"}
        members = Members(found.record["names"], np.asarray(found.record["seen"], np.int64), found.arrays)
        reason = f"The state of the stream is damaged. {BEGINS_ANEW}"
        lost: dict[str | None, str] = {members.names[i]: reason for i in np.flatnonzero(found.damaged)}
        return members.kept(~found.damaged), lost

    def close(self, members: Members) -> bytes | None:
        """The block of some streams; None where there are none."""
        if not members.names:
            return None
        tree = jax.tree.unflatten(jax.tree.structure(self._one), members.arrays)
        return pack(tree, {"names": members.names, "seen": members.seen.tolist()})

    # ---- rows --------------------------------------------------------------------------------------------------------
    def advance(
        self, content: bytes | None, rows: BucketRows, now: int = 0, forget_after: int = 0, common: Any = None
    ) -> Advanced:
        """Rows of a bucket.

        Args:
            content: The bucket's state; None where it has none yet.
            rows: Its rows.
            now: The time of the micro-batch, in milliseconds.
            forget_after: After how many milliseconds without a row a stream ends; 0 for never.
            common: λ and what goes with it, where it is common and not the one that the job began with.
        """
        members, lost = self.open(content)
        if forget_after:
            members = members.kept(now - members.seen <= forget_after)
        ys = rows.ys.astype(self._dtype)
        inputs = None if rows.inputs is None else rows.inputs.astype(self._dtype)
        reasons = self._reasons(rows, ys, inputs, lost)
        good = np.array([i for i, reason in enumerate(reasons) if reason is None], np.int64)
        names = [str(rows.names[i]) for i in good]
        members, slots, new = self._placed(members, names, now)
        ticks, lanes = pack_ticks(slots, LANES)
        order = np.argsort(ticks, kind="stable")
        at = good[order]
        panel = self._panels[lanes]
        state, sums = self.state(members, new, common), None
        data = slots[order], ticks[order], ys[at], None if inputs is None else inputs[at]
        if self._sharing == "common":
            state, sums, infos = read_sums(panel, state, *data)
        else:
            state, infos = panel.read(state, *data)
        infos = jax.tree.map(lambda leaf: _spread(leaf, at, len(ys)), infos)
        return Advanced(self.close(self._taken(members, state)), Told(infos, reasons), sums)

    def _reasons(
        self, rows: BucketRows, ys: np.ndarray, inputs: np.ndarray | None, lost: dict[str | None, str]
    ) -> list[str | None]:
        """Why rows cannot be used."""
        plain, reasons = self._plain(ys, inputs), list(rows.problems)
        for i, name in enumerate(rows.names):
            if (plain[i] and name and not lost) or reasons[i] is not None:
                continue
            if name:
                one = slice(i, i + 1)
                reasons[i] = lost.get(None) or lost.get(name)
                reasons[i] = reasons[i] or self._wrong(ys[one], None if inputs is None else inputs[one])
            else:
                reasons[i] = "The row names no stream."
        return reasons

    def _plain(self, ys: np.ndarray, inputs: np.ndarray | None) -> np.ndarray:
        """Of each row, whether it can be used without a closer look."""
        fine = np.asarray(np.isfinite(ys).all(axis=1))
        if self._shape.support is not None:
            fine &= self._shape.support.holds(ys).all(axis=1)
        return fine if inputs is None else np.asarray(fine & np.isfinite(inputs).all(axis=1))

    def _wrong(self, ys: np.ndarray, inputs: np.ndarray | None) -> str | None:
        """Why what one row holds cannot be used."""
        try:
            check_observations(self._shape, ys)
            check_inputs(inputs)
        except ValueError as error:
            return str(error).replace(" in row 0,", " in")
        return None

    def _placed(self, members: Members, names: list[str], now: int) -> tuple[Members, np.ndarray, list[int]]:
        """The bucket with the streams that begin now, the slot of each row, and the slots of the new streams."""
        where = {name: slot for slot, name in enumerate(members.names)}
        known = len(where)
        slots = np.array([where.setdefault(name, len(where)) for name in names], np.int64)
        seen = np.concatenate([members.seen, np.full(len(where) - known, now, np.int64)])
        seen[slots] = now
        return Members(list(where), seen, members.arrays), slots, list(range(known, len(where)))

    def state(self, members: Members, new: Sequence[int] = (), common: Any = None) -> PanelState:
        """The panel of some streams, with new ones in some slots."""
        capacity = padded(len(members.names))

        def filled(leaf: np.ndarray) -> np.ndarray:
            buffer = np.zeros((1, capacity, *leaf.shape[1:]), leaf.dtype)
            buffer[0, : len(leaf)] = leaf
            return buffer

        arrays = jax.device_put([filled(leaf) for leaf in members.arrays], self._by_stream)
        arrays = jax.tree.unflatten(jax.tree.structure(self._one), arrays)
        # A copy: the panel uses up the state that it is given.
        copied, static = eqx.partition(common or self.common, eqx.is_array)
        copied = jax.device_put(jax.tree.map(jnp.array, copied), self._everywhere)
        common = eqx.combine(copied, static)
        state = PanelState(eqx.combine(arrays, self._static), common)
        return self.panel.begin(state, new, [words(members.names[slot]) for slot in new]) if new else state

    def _taken(self, members: Members, state: PanelState) -> Members:
        leaves = jax.tree.leaves(eqx.filter(state.slots, eqx.is_array))
        return members._replace(arrays=[np.asarray(leaf)[0, : len(members.names)] for leaf in leaves])


def padded(count: int) -> int:
    """The slots of a panel for so many streams: 8, 12, 16, 24, 32, ..., so that few programs are compiled and no more
    than a third stays empty.

    >>> [padded(count) for count in (0, 8, 9, 13, 17, 1000)]
    [8, 8, 12, 16, 24, 1024]
    """
    size = LEAST_SLOTS
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def _spread(values: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    """The values of some of `count` rows, NaN or 0 for the others."""
    blank = np.nan if values.dtype.kind == "f" else 0
    spread = np.full((count, *values.shape[1:]), blank, values.dtype)
    spread[at] = values
    return spread
