"""How the rows of many streams are laid out for one compiled call of a panel: by shard, chunk and lane."""

from typing import NamedTuple

import numpy as np

MOST_TICKS, MOST_ROWS = 256, 2**14
"""In one compiled call, if they can be chosen."""
LEAST_SET = 8
"""The smallest working set."""
LEAST_WHOLE = 512
"""Slots of a shard from which to copy nearly all of them costs more than to compile for their number."""
NOWHERE = np.iinfo(np.int32).max
"""The place of what is not there."""


class Layout(NamedTuple):
    """Where rows go: [shard, chunk, lane].

    The program that does the work sees only the slots that have rows in it, in a working set whose size is one of few:
    it is the same however large the panel is, and is not compiled again when that grows. Where the working set would be
    as large as a large panel, it is the panel itself, and nothing is copied.
    """

    count: int
    """Rows that found room."""
    taken: np.ndarray | None
    """[shard, place in the working set]: the slot in its shard; NOWHERE where there is none. None: all slots."""
    index: np.ndarray
    """The place in the working set of each row; NOWHERE where there is no row."""
    offsets: np.ndarray
    """[shard, tick]: the first chunk of each tick, and the end."""
    ticks: int
    place: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Of each row."""

    @classmethod
    def of(cls, slots: np.ndarray, tick: np.ndarray, shards: int, lanes: int, capacity: int) -> "Layout":
        """As many of the rows as fit, in whole ticks, and one at least: where that is too long, room is doubled.
        `capacity` is that of each shard."""
        chunks = max(16, min(MOST_TICKS, MOST_ROWS // lanes))
        shard, local, tick = slots % shards, slots // shards, tick - tick[0]
        total = int(tick[-1]) + 1
        rows = np.zeros((shards, total), np.int64)
        np.add.at(rows, (shard, tick), 1)
        ends = np.cumsum(-(-rows // lanes), axis=1)
        ticks = min(MOST_TICKS, int(np.searchsorted(ends.max(0), chunks, side="right")))
        ticks = max(ticks, 1)
        while chunks < ends[:, ticks - 1].max():
            chunks *= 2
        count = int(np.searchsorted(tick, ticks))
        shard, local, tick = shard[:count], local[:count].copy(), tick[:count]
        offsets = np.zeros((shards, MOST_TICKS + 1), np.int32)
        offsets[:, 1 : ticks + 1] = ends[:, :ticks]
        # the rank of each row among those of its tick and shard
        order = np.lexsort((np.arange(count), tick, shard))
        group = shard[order] * total + tick[order]
        first = np.concatenate([[True], group[1:] != group[:-1]])
        starts = np.maximum.accumulate(np.where(first, np.arange(count), 0))
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count) - starts
        place = shard, offsets[shard, tick] + rank // lanes, rank % lanes
        each = [np.unique(local[shard == d], return_inverse=True) for d in range(shards)]
        size = LEAST_SET
        while size < max(len(found) for found, _ in each):
            size *= 8
        taken = None
        if size < capacity or capacity < LEAST_WHOLE:
            taken = np.full((shards, size), NOWHERE, np.int32)
            for d, (found, where) in enumerate(each):
                taken[d, : len(found)] = found
                local[shard == d] = where
        index = np.full((shards, chunks, lanes), NOWHERE, np.int32)
        index[place] = local
        return cls(count, taken, index, offsets, ticks, place)

    def lay(self, rows: np.ndarray) -> np.ndarray:
        laid = np.zeros((*self.index.shape, *rows.shape[1:]), rows.dtype)
        laid[self.place] = rows
        return laid

    def unlay(self, laid: np.ndarray) -> np.ndarray:
        return laid[self.place]

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each shard's rows lie, counted over chunks and lanes, [shard, rank], with room for the next power of
        two; and the rank of each row."""
        shard, chunk, lane = self.place
        each = [np.flatnonzero(shard == d) for d in range(len(self.index))]
        size = 1 << (max(len(rows) for rows in each) - 1).bit_length()
        at, rank = np.zeros((len(each), size), np.int32), np.empty(self.count, np.int64)
        for d, rows in enumerate(each):
            at[d, : len(rows)], rank[rows] = (chunk * self.index.shape[2] + lane)[rows], np.arange(len(rows))
        return at, rank
