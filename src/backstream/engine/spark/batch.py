"""A static DataFrame: every bucket at once, all its rows in one call."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .tables import gathered, results_of, rows_of
from .worker import Job


def filtered_rows(job: Job, kept: Sequence[str], part: pd.DataFrame) -> pd.DataFrame:
    """The rows of a bucket with the state at each, given those before it."""
    table = gathered([part])
    rows = rows_of(table, job.observed, job.inputs)
    return results_of(table, kept, rows, job.bucket().advance(None, rows).told)


def smoothed_rows(job: Job, kept: Sequence[str], part: pd.DataFrame) -> pd.DataFrame:
    """The rows of a bucket with the state at each, given those before it and given all of its stream."""
    table, bucket = gathered([part]), job.bucket()
    from .smoothing import smooth  # imports JAX, which is prepared now

    rows = rows_of(table, job.observed, job.inputs)
    content, told, _ = bucket.advance(None, rows)
    results = results_of(table, kept, rows, told)
    usable = np.array([reason is None for reason in told.reasons], bool)
    for name, values in smooth(bucket, content, rows, usable)._asdict().items():
        for i in range(values.shape[1]):
            results[f"smoothed_{name}_{i}"] = values[:, i]
    return results
