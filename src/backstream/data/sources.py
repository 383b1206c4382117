"""Where observations come from: CSV, JSON Lines and Parquet files, growing files, standard input, arrays and tables.

A source gives batches of rows, each as soon as it is there.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from backstream.data import parsing
from backstream.data.arrays import ALL
from backstream.data.columns import Columns
from backstream.errors import InputError

from .arrow_tables import ArrowTable
from .lines import Stopped, chunks, followed
from .rows import Batch, Problem, Rows
from .text_tables import TextTable, text_of

Format = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
LISTED = 20
"""Columns that an error names, at most."""


class Source:
    """Observations with known columns.

    source = open_source("obs.csv", Columns(time="at"))
    for batch in source.batches():
        batch.ys
    """

    def __init__(self, name: str, table: TextTable | ArrowTable, columns: Columns, dtype: str = "float32"):
        self.name, self._table = name, table
        self.length = table.length if isinstance(table, ArrowTable) else None
        """The number of rows, if it is known."""
        self._largest = float(np.finfo(dtype).max)
        others = [column for column in (columns.time, columns.key) if column is not None]
        header = frozenset(table.header)
        for column in (*columns.observed, *columns.inputs, *others):
            if column not in header:
                raise InputError(f"{name} has no column {column!r}; it has: {listed(table.header)}.")
        taken = {*columns.inputs, *others}
        observed = columns.observed or tuple(column for column in table.numeric if column not in taken)
        if not observed:
            raise InputError(f"{name} has no numeric column to observe; it has: {listed(table.header)}.")
        self.columns = replace(columns, observed=observed)
        for column in (*observed, *taken):
            if not _can_be_written(column):
                raise InputError(f"{name} has a column whose name is not valid text: {column!a}. Rename it.")

    def batches(self, last_time: str | None = None) -> Iterator[Batch]:
        """All rows, and empty batches now and then while there are none. `last_time` is the time of the row before
        the first, for the time elapsed.

        Raises RunError at a row of a single stream that cannot be read, once those before it have been given. With
        many streams such a row is given as one with a problem; the time elapsed is left to the caller, who knows the
        streams.
        """
        columns, done = self.columns, 0
        count, names = len(columns.observed), [*columns.observed, *columns.inputs]
        for rows in self._table.read(names, columns.time, self._largest, columns.key):
            self._check(rows)
            inputs, fatal = rows.values[:, count:], None
            if columns.key is None:
                if columns.elapsed:
                    inputs = np.column_stack([inputs, self._elapsed(rows, last_time)])
                fatal = min((i for i, problem in rows.problems.items() if problem.fatal), default=None)
            ys = np.ascontiguousarray(rows.values[:, :count])
            used = inputs if columns.inputs or inputs.shape[1] else None
            batch = Batch(done, ys, used, rows.times, rows.keys, rows.problems, rows.new_file)
            if fatal != 0:
                yield batch if fatal is None else batch.part(0, fatal)
            if fatal is not None:
                raise rows.problems[fatal].error()
            last_time = next(filter(None, reversed(rows.times or [])), last_time)
            done += len(batch)

    def _check(self, rows: Rows) -> None:
        """Adds what else is wrong with rows to their problems. What cannot be written has no value from there on."""
        columns, count = self.columns, len(self.columns.observed)
        missing = np.isnan(rows.values[:, count:])
        for i in np.flatnonzero(missing.any(1)).tolist():
            column = columns.inputs[int(np.argmax(missing[i]))]
            self._add(rows, i, column, "is empty, but an input must be known")
        for texts, column in ((rows.times, columns.time), (rows.keys, columns.key)):
            for i, text in enumerate(texts or []):
                if not _can_be_written(text):
                    assert texts is not None and column is not None
                    self._add(rows, i, column, f"holds {text!a}, which is not valid text", fatal=False)
                    texts[i] = None
                    rows.values[i, :count] = np.nan
        for i, key in enumerate(rows.keys or []):
            if not key and i not in rows.problems:
                self._add(rows, i, columns.key, "is empty: the row belongs to no stream")

    def _elapsed(self, rows: Rows, last_time: str | None) -> np.ndarray:
        """The time since the row before, for a single stream."""
        elapsed = np.zeros(len(rows.values))
        for i, time in enumerate(rows.times or []):
            if i in rows.problems:  # its time is not known: the next row counts from the one before it
                continue
            try:
                last_time, elapsed[i] = parsing.since(last_time, time)
            except ValueError as error:
                self._add(rows, i, self.columns.time, str(error))
                break
        return elapsed

    def _add(self, rows: Rows, i: int, column: str | None, what: str, fatal: bool = True) -> None:
        content = "" if rows.contents is None else text_of(rows.contents[i])
        problem = Problem(f"{self.name}, {rows.places[i]}, column {column!r} {what}.", content, fatal)
        if i not in rows.problems or (fatal and not rows.problems[i].fatal):
            rows.problems[i] = problem


def _can_be_written(text: str | None) -> bool:
    """JSON can hold half of a pair of characters, which no file of results can."""
    if text is None or text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: list[str]) -> str:
    """Columns, as an error names them."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


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

    The kind of file is given by `format`, by its suffix, or by its first bytes. `follow` waits for more at the end of a
    text file, and goes on with the file that takes its place when it is renamed; `stopped` is asked meanwhile whether
    to end. Values beyond the range of `dtype` are refused.
    """
    if not isinstance(source, str | os.PathLike):
        if follow:
            raise InputError("Only a file can be followed.")
        return Source("The table", ArrowTable.of(source), columns, dtype)
    path = Path(source)
    if str(source) == "-":
        if format == "parquet":
            raise InputError("Parquet cannot be read from standard input: save it to a file first.")
        if sys.stdin is None:
            raise InputError("Standard input is closed: give it something to read, or name a file.")
        name, file, follow = "standard input", sys.stdin.buffer, False
    else:
        name, file = str(path), _opened(path)
        format = format or SUFFIXES.get(path.suffix.lower()) or _sniffed(file.fileno())
    if format == "parquet":
        file.close()
        if follow:
            raise InputError(f"{name} is Parquet, which cannot be followed: only CSV and JSON Lines grow by lines.")
        return Source(name, ArrowTable.parquet(path), columns, dtype)
    jsonl = None if format is None else format == "jsonl"
    return Source(name, TextTable(name, _lines(file, path, name, follow, stopped), jsonl), columns, dtype)


def _opened(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a file of observations.")
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


def _lines(file: IO[bytes], path: Path, name: str, follow: bool, stopped: Stopped) -> Iterator[list[bytes] | None]:
    with file:
        if follow:
            yield from followed(path, os.dup(file.fileno()), stopped=stopped)
        else:
            yield from chunks(file.fileno(), name, stopped=stopped)


def _sniffed(descriptor: int) -> Format | None:
    try:
        return "parquet" if os.pread(descriptor, 4, 0) == b"PAR1" else None
    except OSError:  # a named pipe
        return None


def read_all(source: Source) -> Batch:
    """All rows at once."""
    parts = list(source.batches())
    inputs = [part.inputs for part in parts if part.inputs is not None]
    return Batch(
        0,
        np.concatenate([part.ys for part in parts]),
        np.concatenate(inputs) if inputs else None,
        None if parts[0].times is None else [time for part in parts for time in part.times or []],
        None if parts[0].keys is None else [key for part in parts for key in part.keys or []],
        {part.first + i: problem for part in parts for i, problem in part.problems.items()},
    )
