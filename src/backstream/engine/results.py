"""What a stream tells its caller after each piece."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from backstream.learning import Report
from backstream.runs.logs import Rejected


class Filtered(NamedTuple):
    """What is known of the state at each of some rows, as it was when the row was read."""

    first: int
    times: list[str | None] | None
    mean: np.ndarray
    std: np.ndarray
    refused: np.ndarray
    log_score: np.ndarray
    """The log density of each row given those before it, and how its columns compare with their prediction."""
    pit: np.ndarray
    residual: np.ndarray
    crps: np.ndarray
    keys: list[str | None] | None = None
    """The stream of each, where there are many."""

    def table(self) -> pa.Table:
        columns: dict[str, Any] = {"row": np.arange(self.first, self.first + len(self.mean))}
        if self.keys is not None:
            columns["key"] = pa.array(self.keys, pa.string())
        if self.times is not None:
            columns["time"] = pa.array(self.times, pa.string())
        columns["refused"] = self.refused
        columns["log_score"] = self.log_score
        for name in ("mean", "std", "pit", "residual", "crps"):
            values = getattr(self, name)
            columns |= {f"{name}_{i}": np.ascontiguousarray(values[:, i]) for i in range(values.shape[1])}
        return pa.table(columns)


OF_ROWS = "mean", "std", "refused", "log_score", "pit", "residual", "crps"
"""What the results have of all that the learner says of a row."""


class Progress(NamedTuple):
    """A piece of a stream."""

    position: int
    rows: Filtered
    reports: list[Report]
    rejected: Sequence[Rejected] = ()
    """Rows that could not be used."""
