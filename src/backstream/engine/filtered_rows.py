"""What was known at each row when it was read."""

from typing import Any

import numpy as np
import pyarrow as pa
from jax.scipy.special import ndtri

from backstream.metrics import PredictiveScores, predictive_scores


class FilteredRows:
    """The state at each row, given the rows up to it, as estimated when the row was read.

    Example:
        ```python
        rows = result.filtered
        rows.mean, rows.std, rows.interval(0.9), rows.to_pandas()
        rows.log_score, rows.pit, rows.residual, rows.crps    # how each row compares with its prediction
        rows.scores()
        ```
    """

    def __init__(self, table: pa.Table):
        self.table = table

    @property
    def mean(self) -> np.ndarray:
        """[T, d]."""
        return self._columns("mean")

    @property
    def std(self) -> np.ndarray:
        """[T, d]."""
        return self._columns("std")

    @property
    def log_score(self) -> np.ndarray:
        """[T]: the log density of each row given the rows before it, in nats."""
        return self.table["log_score"].to_numpy()

    @property
    def pit(self) -> np.ndarray:
        """[T, dy]: where each value lies in its prediction, between 0 and 1; NaN if missing, and for labels."""
        return self._columns("pit")

    @property
    def residual(self) -> np.ndarray:
        """[T, dy]: each value less its predicted mean, in predicted standard deviations."""
        return self._columns("residual")

    @property
    def crps(self) -> np.ndarray:
        """[T, dy]: the continuous ranked probability score of each value, in the unit of the column."""
        return self._columns("crps")

    def scores(self) -> PredictiveScores:
        """A summary of how well the rows were predicted before they were read. No true state is needed."""
        return predictive_scores(self.log_score, self.pit, self.crps)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds that contain each coordinate of the state with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, not {level}.")
        half = float(ndtri(0.5 + level / 2)) * self.std
        return self.mean - half, self.mean + half

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def _columns(self, name: str) -> np.ndarray:
        names = [column for column in self.table.column_names if column.startswith(f"{name}_")]
        return np.column_stack([self.table[column].to_numpy() for column in names])

    def __len__(self) -> int:
        return self.table.num_rows

    def __repr__(self) -> str:
        return f"FilteredRows({len(self):,} rows: {', '.join(self.table.column_names)})"
