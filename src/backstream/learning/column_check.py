"""Columns that repeat each other: a model that takes them for two measurements is then too sure, and nothing in the
predictions of single columns shows it."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

LEAST_ROWS = 30
"""Fewer say nothing."""
LEAST_SURPRISE = 20.0
"""Two columns are the same where independent ones with their values would agree on all rows with a probability of
e^{-20} at most: columns that are mostly zero may agree by chance."""


def same_columns(ys: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of columns of the rows `ys`, [T, dy], that have the same values, wherever both have one."""
    return [(i, j) for i, j in _pairs(ys) if _same(ys[:, i], ys[:, j])]


def _pairs(ys: np.ndarray) -> Iterator[tuple[int, int]]:
    """Those of neighbors in an order that puts equal columns next to each other."""
    if len(ys) < LEAST_ROWS:
        return
    order = sorted(range(ys.shape[1]), key=lambda i: np.nan_to_num(ys[:, i]).tolist())
    yield from ((min(pair), max(pair)) for pair in pairwise(order))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    both = ~np.isnan(one) & ~np.isnan(other)
    if both.sum() < LEAST_ROWS or not np.array_equal(one[both], other[both]):
        return False
    counts = np.unique(one[both], return_counts=True)[1]
    agreement = float(((counts / counts.sum()) ** 2).sum())
    return bool(-both.sum() * np.log(agreement) > LEAST_SURPRISE)
