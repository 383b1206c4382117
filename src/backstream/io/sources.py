"""Where observations come from: CSV, JSON Lines and Parquet files, growing files, standard input, arrays and tables.

A source gives batches of rows, each as soon as it is there, and can start after any number of them.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import cells, text
from .config import Columns
from .errors import InputError, RunError
from .lines import chunks

Format = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
DAMAGED = pa.ArrowException, OSError, UnicodeDecodeError
"""What pyarrow raises of a file whose bytes make no sense."""
ALL = Columns()
ROWS = 4096
"""In a batch, at most."""


class Batch(NamedTuple):
    """Some rows, one after another. NaN is a missing value."""

    first: int
    """The number of rows before them."""
    ys: np.ndarray
    inputs: np.ndarray | None
    times: list[str | None] | None
    keys: list[str | None] | None = None
    """The stream of each, where a column names it."""
    problems: dict[int, RunError] | None = None
    """What is wrong with some of them, by their place in the batch, where others can go on."""


class Rows(NamedTuple):
    """A batch before its columns are told apart."""

    values: np.ndarray
    times: list[str | None] | None
    places: list[str]
    """What to call each row in an error."""
    error: RunError | None = None
    """What is wrong with the row after these: raised once these have been used."""
    keys: list[str | None] | None = None
    problems: dict[int, RunError] | None = None
    """With keys: what is wrong with single rows, of which nothing else is then known."""

    def until(self, count: int, error: RunError) -> "Rows":
        """The first rows, those before one that something is wrong with."""
        return Rows(self.values[:count], self.times and self.times[:count], self.places[:count], error)


class Table(ABC):
    """What the kinds of sources have in common."""

    header: list[str]
    numeric: list[str]

    @abstractmethod
    def read(
        self, skip: int, names: list[str], time: str | None, largest: float, key: str | None = None
    ) -> Iterator[Rows]:
        """Batches of the rows after the first `skip`; raises InputError if there are not so many."""


class Source:
    """Observations with known columns.

    source = open_source("obs.csv", Columns(time="at"))
    for batch in source.batches():
        batch.ys
    """

    def __init__(self, name: str, table: Table, columns: Columns, dtype: str = "float32"):
        self.name, self._table = name, table
        self._largest = float(np.finfo(dtype).max)
        others = [column for column in (columns.time, columns.key) if column is not None]
        for column in (*columns.observed, *columns.inputs, *others):
            if column not in table.header:
                raise InputError(f"{name} has no column {column!r}; it has: {', '.join(table.header)}.")
        taken = {*columns.inputs, *others}
        observed = columns.observed or tuple(column for column in table.numeric if column not in taken)
        if not observed:
            raise InputError(f"{name} has no numeric column to observe; it has: {', '.join(table.header)}.")
        self.columns = replace(columns, observed=observed)

    def batches(self, skip: int = 0, last_time: str | None = None) -> Iterator[Batch]:
        """The rows after the first `skip`. `last_time` is the time of the row before, for the time elapsed."""
        columns, done = self.columns, skip
        if columns.key is not None:
            yield from self._keyed_batches(skip)
            return
        count, names = len(columns.observed), [*columns.observed, *columns.inputs]
        for found in self._table.read(skip, names, columns.time, self._largest):
            rows = self._with_known_inputs(found)
            inputs = rows.values[:, count:]
            if columns.elapsed:
                rows, elapsed = self._elapsed(rows, last_time)
                inputs = np.column_stack([inputs[: len(elapsed)], elapsed])
            if len(rows.values):
                ys = np.ascontiguousarray(rows.values[:, :count])
                yield Batch(done, ys, inputs if columns.has_inputs() else None, rows.times)
                last_time = rows.times[-1] if rows.times else None
                done += len(rows.values)
            if rows.error is not None:
                raise rows.error

    def _keyed_batches(self, skip: int) -> Iterator[Batch]:
        """Rows with the names of their streams and what is wrong with any; the time elapsed is left to the reader, who
        knows the streams."""
        columns, done = self.columns, skip
        count, names = len(columns.observed), [*columns.observed, *columns.inputs]
        for rows in self._table.read(skip, names, columns.time, self._largest, columns.key):
            problems, keys, inputs = dict(rows.problems or {}), rows.keys or [], rows.values[:, count:]
            for i in np.flatnonzero(np.isnan(inputs).any(1)).tolist():
                column = columns.inputs[int(np.argmax(np.isnan(inputs[i])))]
                what = f"{self.name}, {rows.places[i]}, column {column!r}"
                problems.setdefault(i, RunError(f"{what} is empty, but an input must be known."))
            for i, key in enumerate(keys):
                if not key:
                    what = f"{self.name}, {rows.places[i]}, column {columns.key!r}"
                    problems[i] = RunError(f"{what} is empty: the row belongs to no stream.")
            ys = np.ascontiguousarray(rows.values[:, :count])
            yield Batch(done, ys, inputs if columns.inputs else None, rows.times, keys, problems)
            done += len(keys)

    def _with_known_inputs(self, rows: Rows) -> Rows:
        missing = np.argwhere(np.isnan(rows.values[:, len(self.columns.observed) :]))
        if not len(missing):
            return rows
        row, column = missing[0].tolist()
        what = f"{self.name}, {rows.places[row]}, column {self.columns.inputs[column]!r}"
        return rows.until(row, RunError(f"{what} is empty, but an input must be known."))

    def _elapsed(self, rows: Rows, last_time: str | None) -> tuple[Rows, np.ndarray]:
        elapsed, before = np.zeros(len(rows.values)), None if last_time is None else cells.seconds(last_time)
        for i, (time, place) in enumerate(zip(rows.times or [], rows.places, strict=True)):
            try:
                now = cells.seconds(time)
                if before is not None and now < before:
                    raise ValueError(f"goes back in time, to {time}")
            except ValueError as error:
                problem = RunError(f"{self.name}, {place}, column {self.columns.time!r} {error}.")
                return rows.until(i, problem), elapsed[:i]
            elapsed[i] = 0.0 if before is None else now - before
            before = now
        return rows, elapsed


def open_source(
    source: Any,
    columns: Columns = ALL,
    *,
    format: Format | None = None,
    follow: bool = False,
    dtype: str = "float32",
    stopped: Callable[[], bool] = lambda: False,
) -> Source:
    """A source of any kind: the path of a file, "-" for standard input, an array [T, dy], or a pandas or Arrow table.

    The kind of file is told by `format`, or by its suffix, or by how it begins. `follow` waits for more at the end of a
    text file; `stopped` is asked meanwhile whether to end. Values beyond the range of `dtype` are refused.
    """
    if not isinstance(source, str | os.PathLike):
        if follow:
            raise InputError("Only a file can be followed.")
        return Source("The table", _ArrowTable.of(source), columns, dtype)
    path = Path(source)
    if str(source) == "-":
        if format == "parquet":
            raise InputError("Parquet cannot be read from standard input: save it to a file first.")
        name, file, follow = "standard input", sys.stdin.buffer, False
    else:
        name = str(path)
        if path.is_dir():
            raise InputError(f"{name} is a directory, not a file of observations.")
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115, closed with the last line, or by Parquet's reader
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}.") from None
        format = format or SUFFIXES.get(path.suffix.lower()) or _sniffed(file.fileno())
    if format == "parquet":
        file.close()
        if follow:
            raise InputError(f"{name} is Parquet, which cannot be followed: only CSV and JSON Lines grow by lines.")
        return Source(name, _ArrowTable.parquet(path), columns, dtype)
    lines = _closing(file, chunks(file.fileno(), name, follow=follow, stopped=stopped))
    jsonl = None if format is None else format == "jsonl"
    table = text.TextTable(name, lines, jsonl, goes_on=columns.key is not None)
    return Source(name, _TextTable(name, table), columns, dtype)


def _closing(file: IO[bytes], lines: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    with file:
        yield from lines


def _sniffed(descriptor: int) -> Format | None:
    try:
        return "parquet" if os.pread(descriptor, 4, 0) == b"PAR1" else None
    except OSError:  # a named pipe
        return None


class _TextTable(Table):
    def __init__(self, name: str, table: text.TextTable):
        self._name, self._table, self.header = name, table, table.header
        first = table.first.cells
        self.numeric = [column for column in table.header if cells.is_numeric(first.get(column))]

    def read(
        self, skip: int, names: list[str], time: str | None, largest: float, key: str | None = None
    ) -> Iterator[Rows]:
        done = 0
        for available in self._table.rows():
            fresh = available[max(0, skip - done) :]
            done += len(available) - len(fresh)
            for start in range(0, len(fresh), ROWS):
                rows = fresh[start : start + ROWS]
                places = [f"row {done + i + 1} (line {row.line})" for i, row in enumerate(rows)]
                times = None if time is None else [cells.text(row.cells.get(time)) for row in rows]
                if key is None:
                    values, error = text.numbers(self._name, rows, places, names, largest)
                    whole = Rows(values, times, places)
                    yield whole if error is None else whole.until(len(values), error)
                else:
                    keys = [cells.text(row.cells.get(key)) for row in rows]
                    values, problems = text.numbers_by_row(self._name, rows, places, names, largest)
                    yield Rows(values, times, places, keys=keys, problems=problems)
                done += len(rows)
        _require(self._name, done, skip)


class _ArrowTable(Table):
    def __init__(self, name: str, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]], length: int):
        if not length:
            raise InputError(f"{name} is empty: it holds no row of data.")
        self._name, self._batches, self.header = name, batches, list(schema.names)
        self.numeric = [
            field.name
            for field in schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        ]

    @classmethod
    def parquet(cls, path: Path) -> "_ArrowTable":
        try:
            file = pq.ParquetFile(path)
        except DAMAGED as error:
            raise InputError(f"{path} is not a Parquet file that can be read: {error}") from None
        return cls(str(path), file.schema_arrow, lambda: file.iter_batches(ROWS), file.metadata.num_rows)

    @classmethod
    def of(cls, table: Any) -> "_ArrowTable":
        if not isinstance(table, pa.Table):
            if hasattr(table, "columns"):
                table = pa.Table.from_pandas(table, preserve_index=False)
            else:
                array = np.asarray(table)
                if array.ndim != 2:
                    raise InputError(f"An array of observations must have shape [T, dy], not {array.shape}.")
                table = pa.table({f"y{i}": array[:, i] for i in range(array.shape[1])})
        return cls("The table", table.schema, lambda: iter(table.to_batches(ROWS)), table.num_rows)

    def read(
        self, skip: int, names: list[str], time: str | None, largest: float, key: str | None = None
    ) -> Iterator[Rows]:
        done = 0
        try:
            for batch in self._batches():
                fresh = batch.slice(min(len(batch), max(0, skip - done)))
                done += len(batch) - len(fresh)
                if not len(fresh):
                    continue
                places = [f"row {done + i + 1}" for i in range(len(fresh))]
                values = np.column_stack([self._column(fresh, name) for name in names])
                times = None if time is None else [cells.text(cell.as_py()) for cell in fresh.column(time)]
                keys = None if key is None else [cells.text(cell.as_py()) for cell in fresh.column(key)]
                rows, problems = Rows(values, times, places, keys=keys), {}
                for row, column in reversed(np.argwhere(np.abs(values) > largest).tolist()):
                    what = f"{self._name}, {places[row]}, column {names[column]!r} holds {values[row, column]}"
                    problems[row] = RunError(f"{what}, {cells.TOO_LARGE}.")
                if keys is not None:
                    rows = rows._replace(problems=problems)
                elif problems:
                    rows = rows.until(min(problems), problems[min(problems)])
                yield rows
                done += len(fresh)
        except DAMAGED as error:
            raise RunError(f"{self._name}, after row {done}, cannot be read: {error}") from None
        _require(self._name, done, skip)

    def _column(self, batch: pa.RecordBatch, name: str) -> np.ndarray:
        if name not in self.numeric:
            raise InputError(f"{self._name}, column {name!r} holds {batch.schema.field(name).type}, not numbers.")
        return batch.column(name).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _require(name: str, found: int, skip: int) -> None:
    if found < skip:
        raise InputError(
            f"{name} has {found} rows, but the run has already read {skip}: is it the source that the run began with?"
        )


def read_all(source: Source) -> Batch:
    """All rows at once."""
    parts = list(source.batches())
    inputs = None if parts[0].inputs is None else np.concatenate([part.inputs for part in parts])  # type: ignore[misc]
    times = None if parts[0].times is None else [time for part in parts for time in part.times or []]
    keys = None if parts[0].keys is None else [key for part in parts for key in part.keys or []]
    problems = {part.first + i: problem for part in parts for i, problem in (part.problems or {}).items()}
    return Batch(0, np.concatenate([part.ys for part in parts]), inputs, times, keys, problems)
