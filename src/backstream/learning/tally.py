"""What a stream's rows have shown so far, in sums of constant size: what its verdict is made from.

Every statistic is a weighted mean over the rows. There are two sets of weights, which fall by a factor e over RECENT
and over LONG rows: a change shows in the first, and a bad beginning is forgotten by both.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from .predictive import Predictive

RECENT, LONG = 100, 1000
"""Rows over which each of the two forgets."""
OF_ROWS = "refused", "log_score", "objective", "objective_square", "rank", "region", "gain", "gain_square"
"""Whether the update was refused, or the result was not finite; the log score and the learner's objective, with its
square; the rank of the row's density, and whether it lies in the 90 % region of highest density; by how much the log
score is better than without learning, with its square."""
OF_COLUMNS = "z", "z_square", "z_lag", "inside"
"""The PIT value as a standard normal number, its square, its product with that of the row before, and whether the value
lies in the central 90 % band."""
LEVEL = 0.9
CLIP = 1e-6


class Evidence(NamedTuple):
    """One row's."""

    refused: Array
    log_score: Array
    objective: Array
    gain: Array
    predicted: Predictive


class Tally(NamedTuple):
    """The sums. They can be added: those of several streams make one."""

    sums: Float[Array, "2 3 n"]
    """For each set of weights and each statistic: the sum of the weights, of their squares, and of weight × value."""
    last: Float[Array, " dy"]
    """The normal numbers of the row before, for the lag; NaN where there are none."""

    @classmethod
    def begin(cls, obs_dim: int, dtype) -> "Tally":
        count = len(OF_ROWS) + obs_dim * len(OF_COLUMNS)
        return cls(jnp.zeros((2, 3, count), dtype), jnp.full(obs_dim, jnp.nan, dtype))

    def add(self, row: Evidence) -> "Tally":
        """After one more row, under jit."""
        pit, rank = row.predicted.pit, row.predicted.rank
        z = ndtri(jnp.clip(pit, CLIP, 1 - CLIP)).astype(pit.dtype)
        inside = jnp.where(jnp.isnan(pit), jnp.nan, jnp.abs(pit - 0.5) < LEVEL / 2)
        region = jnp.where(jnp.isnan(rank), jnp.nan, rank > 1 - LEVEL)
        of_row = row.refused, row.log_score, row.objective, row.objective**2, rank, region, row.gain, row.gain**2
        of_row = jnp.stack([jnp.asarray(part, z.dtype) for part in of_row])
        values = jnp.concatenate([of_row, z, z**2, z * self.last, inside])
        known = jnp.isfinite(values)
        added = jnp.stack([known, known, jnp.where(known, values, 0.0)]).astype(z.dtype)
        return Tally(self.sums * _FALLING.astype(z.dtype) + added, z)


_kept = np.exp(-1 / np.array([RECENT, LONG]))
_FALLING = np.stack([_kept, _kept**2, _kept], 1)[:, :, None]


class Mean(NamedTuple):
    """A weighted mean of values whose standard deviation is known or measured, as NumPy numbers; one for each column
    where there are columns."""

    value: np.ndarray
    count: np.ndarray
    """Of how many equally weighted values it would be as exact: 0 where there are none."""
    weight: np.ndarray
    """The sum of the weights."""


class Figures:
    """A tally as it is read."""

    def __init__(self, tally: Tally, which: int):
        """`which` is 0 for the recent rows and 1 for the long run."""
        self._sums = np.asarray(tally.sums, float)[..., which, :, :]
        self._columns = np.asarray(tally.last).shape[-1]

    def __getitem__(self, name: str) -> Mean:
        if name in OF_ROWS:
            weight, square, total = self._sums[..., OF_ROWS.index(name)]
        else:
            start = len(OF_ROWS) + OF_COLUMNS.index(name) * self._columns
            weight, square, total = self._sums[..., start : start + self._columns]
        seen = square > 0
        count = np.where(seen, weight**2 / np.where(seen, square, 1.0), 0.0)
        return Mean(np.where(seen, total / np.where(seen, weight, 1.0), np.nan), count, weight)


def poor_coverage(tallies: Tally, least: float, count: float = 20) -> list[int]:
    """Which of many streams, along the first axis, have fewer than `least` of their values inside the 90 % bands, both
    of late and in the long run, where that is known of `count` values."""
    columns = np.asarray(tallies.last).shape[-1]
    start = len(OF_ROWS) + OF_COLUMNS.index("inside") * columns
    weight, square, total = np.moveaxis(np.asarray(tallies.sums, float)[..., start:].sum(-1), -1, 0)
    known = (weight**2 / np.where(square > 0, square, 1.0) >= count).all(-1)
    share = (total / np.where(weight > 0, weight, 1.0)).max(-1)
    return np.flatnonzero(known & (share < least)).tolist()
