"""Parquet files, and tables and arrays in memory."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstream.data import parsing
from backstream.errors import InputError, RunError

from .rows import MOST_CONTENT, Problem, Rows
from .text_tables import ROWS

DAMAGED = pa.ArrowException, OSError, UnicodeDecodeError
"""What pyarrow raises of a file whose bytes make no sense."""


class ArrowTable:
    """Rows of one source, all of which are there."""

    def __init__(self, name: str, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]], length: int):
        if not length:
            raise InputError(f"{name} is empty: it holds no row of data.")
        self._name, self._batches, self.header, self.length = name, batches, list(schema.names), length
        self.numeric = [
            field.name
            for field in schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        ]

    @classmethod
    def parquet(cls, path: Path) -> "ArrowTable":
        try:
            file = pq.ParquetFile(path)
        except DAMAGED as error:
            raise InputError(f"{path} is not a Parquet file that can be read: {error}") from None
        return cls(str(path), file.schema_arrow, lambda: file.iter_batches(ROWS), file.metadata.num_rows)

    @classmethod
    def of(cls, table: Any) -> "ArrowTable":
        """An Arrow or pandas table, or an array [T, dy]."""
        if not isinstance(table, pa.Table):
            if hasattr(table, "columns"):
                table = pa.Table.from_pandas(table, preserve_index=False)
            else:
                array = np.asarray(table)
                if array.ndim != 2:
                    raise InputError(f"An array of observations must have shape [T, dy], not {array.shape}.")
                table = pa.table({f"y{i}": array[:, i] for i in range(array.shape[1])})
        return cls("The table", table.schema, lambda: iter(table.to_batches(ROWS)), table.num_rows)

    def read(self, names: list[str], time: str | None, largest: float, key: str | None) -> Iterator[Rows]:
        """Batches of all rows."""
        done = 0
        self._require_numbers(names)
        try:
            for batch in self._batches():
                if not len(batch):
                    continue
                places = [f"row {done + i + 1}" for i in range(len(batch))]
                columns = [batch.column(name).cast(pa.float64(), safe=False) for name in names]
                values = np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])
                times, keys = (
                    None if column is None else [parsing.text(cell.as_py()) for cell in batch.column(column)]
                    for column in (time, key)
                )
                problems = {}
                for row, column in reversed(np.argwhere(np.abs(values) > largest).tolist()):
                    what = f"{self._name}, {places[row]}, column {names[column]!r} holds {values[row, column]}"
                    content = json.dumps(batch.slice(row, 1).to_pylist()[0], default=str)[:MOST_CONTENT]
                    problems[row] = Problem(f"{what}, {parsing.TOO_LARGE}.", content)
                values[list(problems)] = np.nan
                yield Rows(values, times, keys, places, None, problems)
                done += len(batch)
        except DAMAGED as error:
            raise RunError(f"{self._name}, after row {done}, cannot be read: {error}") from None

    def _require_numbers(self, names: list[str]) -> None:
        numeric = frozenset(self.numeric)
        for name in names:
            if name not in numeric:
                kind = next(self._batches()).schema.field(name).type
                raise InputError(f"{self._name}, column {name!r} holds {kind}, not numbers.")
