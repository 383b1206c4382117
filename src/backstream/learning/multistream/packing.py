"""Rows of streams that do not depend on each other, put into ticks so that few lanes stay empty."""

import numpy as np

WASTE = 4 / 3
"""Work that is accepted, as a multiple of what the rows alone would take."""


def pack_ticks(slots: np.ndarray, lanes: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The tick of each row and the number of lanes to use, the largest of `lanes` that wastes no more than a third.

    The rows of a slot keep their order. Where slots have about as many rows each, the first rows of all come in the
    first tick, and so on. Otherwise the slots' rows are laid one after another around a cylinder of C ticks
    (McNaughton's rule), C being the least number that the lanes and the longest slot allow.

    >>> pack_ticks(np.array([0, 1, 0, 1]), (2,))
    (array([0, 0, 1, 1]), 2)
    >>> pack_ticks(np.array([0, 0, 0, 0, 1, 2, 3, 4]), (2,))
    (array([0, 1, 2, 3, 0, 1, 2, 3]), 2)
    """
    if not len(slots):
        return np.zeros(0, np.int64), lanes[0]
    order = np.argsort(slots, kind="stable")
    grouped = slots[order]
    first = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]]))
    counts = np.diff(np.append(first, len(slots)))
    rank = np.arange(len(slots)) - np.repeat(first, counts)
    in_each = np.bincount(rank)
    number = min(lanes)
    for candidate in sorted(lanes, reverse=True):
        aligned = -(-in_each // candidate).sum() * candidate
        around = max(-(-len(slots) // candidate), counts.max()) * candidate
        if min(aligned, around) <= WASTE * len(slots):
            number = candidate
            break
    aligned = -(-in_each // number).sum()
    length = max(-(-len(slots) // number), counts.max())
    ticks = np.empty(len(slots), np.int64)
    if aligned * number <= WASTE * len(slots):
        ticks[order] = rank
    else:
        around = np.arange(len(slots)) % length
        ticks[order] = around[np.lexsort((around, grouped))]
    return ticks, number
