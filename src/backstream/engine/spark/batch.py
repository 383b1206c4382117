"""A static DataFrame: every bucket at once, all its rows in one call."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .tables import in_order, results_of, rows_of
from .worker import Job, spare_the_collector


def filtered_rows(job: Job, kept: Sequence[str], part: pa.Table) -> pa.Table:
    """The rows of a bucket with the state at each, given those before it."""
    table = in_order(part)
    rows = rows_of(table, job.observed, job.inputs)
    told = job.bucket().advance(None, rows).told
    spare_the_collector()
    return results_of(table, kept, rows, told)


def smoothed_rows(job: Job, kept: Sequence[str], part: pa.Table) -> pa.Table:
    """The rows of a bucket with the state at each, given those before it and given all of its stream."""
    table, bucket = in_order(part), job.bucket()
    from .smoothing import smooth  # imports JAX, which is prepared now

    rows = rows_of(table, job.observed, job.inputs)
    content, told, _ = bucket.advance(None, rows)
    results = results_of(table, kept, rows, told)
    usable = np.array([reason is None for reason in told.reasons], bool)
    for name, values in smooth(bucket, content, rows, usable)._asdict().items():
        for i in range(values.shape[1]):
            results = results.append_column(f"smoothed_{name}_{i}", pa.array(values[:, i]))
    spare_the_collector()
    return results
