"""Rows on their way into a worker and results on their way out, as Arrow tables. Nothing here imports JAX.

Spark hands the rows of a bucket to a stateful processor as one Python object for each row, which costs more than all
that is done with it. So the rows of a bucket are packed into one block of bytes before they get there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

BUCKET, KEY, TIME, PROBLEM = "bucket", "key", "time", "problem"
"""What columns are called on their way, so that those of the caller can have any name."""
PACKED, SUMS = "rows", "gradient_sums"
MOST_PACKED = 2**18
"""Rows that are packed together."""
OK, MISSING, REFUSED, REJECTED = "ok", "missing", "refused", "rejected"
"""The verdict on a row: used; used, but without any observation; its update was not finite; set aside."""


class BucketRows(NamedTuple):
    """Rows of one bucket, in the order in which they count."""

    names: Sequence[str | None]
    ys: np.ndarray
    inputs: np.ndarray | None
    problems: Sequence[str | None]
    """Why a row cannot be used, where that is known before it gets here."""


class Told(NamedTuple):
    """What is said of each row. Where there is a reason the numbers are NaN."""

    infos: Any
    """As a learner's `Info`."""
    reasons: list[str | None]


def observed_column(i: int) -> str:
    return f"y{i}"


def input_column(i: int) -> str:
    return f"u{i}"


def kept_column(i: int) -> str:
    return f"kept{i}"


# ---- in --------------------------------------------------------------------------------------------------------------
def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: a block of bytes for the rows of each bucket."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(one) for one in waiting) >= MOST_PACKED:
            yield _packed(waiting)
            waiting = []
    if waiting:
        yield _packed(waiting)


def _packed(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    table = table.sort_by(BUCKET).combine_chunks()
    buckets, starts = np.unique(table[BUCKET].to_numpy(), return_index=True)
    blocks = [
        _as_bytes(table.slice(start, end - start)) for start, end in zip(starts, [*starts[1:], len(table)], strict=True)
    ]
    columns = [pa.array(buckets, pa.int32()), pa.array(blocks, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=[BUCKET, PACKED])


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def unpacked(blocks: Iterable[bytes]) -> pa.Table:
    return pa.concat_tables([pa.ipc.open_stream(block).read_all() for block in blocks])


def in_order(table: pa.Table) -> pa.Table:
    """All rows of a bucket in the order of their times. Spark may deliver them in any order: among equal times their
    values decide, then their keys, so that a repeated micro-batch gives the same bits."""
    values = [name for name in table.column_names if name[0] in "yu"]
    order = [(name, "ascending") for name in (TIME, *values, KEY)]
    return table.sort_by(order).combine_chunks()


def rows_of(table: pa.Table, observed: int, inputs: int) -> BucketRows:
    """The rows as a bucket takes them."""

    def numbers(names: list[str]) -> np.ndarray:
        return np.stack([table[name].to_numpy() for name in names], axis=1).astype(np.float64, copy=False)

    ys = numbers([observed_column(i) for i in range(observed)])
    us = numbers([input_column(i) for i in range(inputs)]) if inputs else None
    return BucketRows(table[KEY].to_pylist(), ys, us, table[PROBLEM].to_pylist())


# ---- out -------------------------------------------------------------------------------------------------------------
def results_of(table: pa.Table, kept: Sequence[str], rows: BucketRows, told: Told) -> pa.Table:
    """One line for each row: the columns that are kept, then what is said of it."""
    infos, rejected = told.infos, np.array([reason is not None for reason in told.reasons], bool)
    verdict = np.where(np.isnan(rows.ys).all(axis=1), MISSING, OK).astype(object)
    verdict[np.asarray(infos.refused, bool)] = REFUSED
    verdict[rejected] = REJECTED
    columns: dict[str, Any] = {name: table[kept_column(i)] for i, name in enumerate(kept)}
    columns["t"] = np.where(rejected, 0, np.asarray(infos.t, np.int64) + 1)
    columns["log_score"] = np.asarray(infos.log_score, np.float64)
    for name in ("mean", "std", "pit", "residual", "crps"):
        values = np.asarray(getattr(infos, name), np.float64)
        columns |= {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
    columns["verdict"] = pa.array(verdict, pa.string())
    columns["reason"] = pa.array(told.reasons, pa.string())
    return pa.table(columns)


def as_pandas(table: pa.Table) -> "pd.DataFrame":
    """Texts as objects: pandas' own type may have them in several chunks, which Spark does not convert."""
    frame = table.to_pandas(integer_object_nulls=True)
    return frame.astype({name: object for name in frame.select_dtypes("string").columns})


def result_columns(state_dim: int, obs_dim: int) -> list[tuple[str, str]]:
    """Names and Spark's types of what `results_of` adds."""
    sizes = (("mean", state_dim), ("std", state_dim), ("pit", obs_dim), ("residual", obs_dim), ("crps", obs_dim))
    numbers = [(f"{name}_{i}", "double") for name, size in sizes for i in range(size)]
    return [("t", "bigint"), ("log_score", "double"), *numbers, ("verdict", "string"), ("reason", "string")]
