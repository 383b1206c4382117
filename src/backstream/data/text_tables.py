"""Tables of text, CSV with a header or JSON Lines, row by row as the lines arrive.

The reader is our own, not a library's, because a row of a pipe or of a growing file must be had before the next one
exists, and because an error has to name the row, the line and the column.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from backstream.data import parsing
from backstream.errors import InputError, RunError

from .rows import MOST_CONTENT, Problem, Rows

ROWS = 4096
"""In a batch, at most."""


class Row(NamedTuple):
    """The cells of one row, by the names of their columns, and the number of its line, counted from 1."""

    line: int
    content: bytes
    cells: dict[str, Any]
    problem: str | None = None
    """What is wrong with it; its cells are then those that could be read."""


class TextTable:
    """Rows of one source. `header` and `numeric` are known once it is made: it waits for the first row."""

    def __init__(self, name: str, chunks: Iterator[list[bytes] | None], jsonl: bool | None):
        self._name, self._chunks, self._line = name, chunks, 0
        self._readable: dict[str, Any] = {}
        self._jsonl, self._begins = jsonl, False
        self.header: list[str] = []
        self._available = self._rows()
        self._waiting: list[Row] = []
        first = None
        for rows in self._available:
            self._waiting += rows or []
            first = next((row for row in rows or [] if row.problem is None), None)
            if first is not None or len(self._waiting) >= ROWS:
                break
        if not self._waiting:
            raise InputError(f"{name} is empty: it holds no row of data.")
        if first is None:
            raise RunError(self._waiting[0].problem)
        if self._jsonl:  # a row need not have all columns
            self.header = list(dict.fromkeys(column for row in self._waiting for column in row.cells))
        self.numeric = [column for column in self.header if parsing.is_numeric(first.cells.get(column))]

    def read(self, names: list[str], time: str | None, largest: float, key: str | None) -> Iterator[Rows]:
        """Batches of all rows. To be called once."""
        done, new_file = 0, False
        for available in chain([self._waiting], self._available):
            if available is None:
                new_file = True
                continue
            for start in range(0, max(1, len(available)), ROWS):
                rows = available[start : start + ROWS]
                places = [f"row {done + i + 1} (line {row.line})" for i, row in enumerate(rows)]
                times, keys = (
                    None if column is None else [parsing.text(row.cells.get(column)) for row in rows]
                    for column in (time, key)
                )
                values, problems = _numbers(self._name, rows, places, names, largest)
                yield Rows(values, times, keys, places, [row.content for row in rows], problems, new_file)
                done, new_file = done + len(rows), False

    def _rows(self) -> Iterator[list[Row] | None]:
        for lines in self._chunks:
            if lines is None:
                self._line, self._begins = 0, True
                yield None
                continue
            rows = []
            for line in lines:
                self._line += 1
                try:
                    found = self._cells(line)
                except RunError as problem:
                    if not (self.header or self._jsonl):
                        raise
                    rows.append(Row(self._line, line, self._readable, str(problem)))
                    continue
                if found is not None:
                    rows.append(Row(self._line, line, found))
            if rows or not lines:
                yield rows

    def _cells(self, line: bytes) -> dict[str, Any] | None:
        """None for a line that holds no row: the header, or nothing."""
        self._readable = {}
        try:
            content = line.decode("utf-8-sig" if self._line == 1 else "utf-8").rstrip("\r")
        except UnicodeDecodeError:
            raise self._error("is not UTF-8 text") from None
        if self._jsonl is None:
            if not content.strip():
                return None
            self._jsonl = content.lstrip().startswith("{")
        return self._json_cells(content) if self._jsonl else self._csv_cells(content)

    def _csv_cells(self, content: str) -> dict[str, Any] | None:
        if not content.strip() and len(self.header) != 1:  # in a table of one column, a missing value
            return None
        try:
            row = content.split(",") if '"' not in content else next(csv.reader([content], strict=True))
        except csv.Error as error:
            raise self._error(f"cannot be read ({error})") from None
        if not self.header:
            self.header = self._checked_header([name.strip() for name in row])
            return None
        if self._begins:  # the next file of a log may have its own header
            self._begins = False
            if [name.strip() for name in row] == self.header:
                return None
        self._readable = dict(zip(self.header, row, strict=False))
        if len(row) != len(self.header):
            raise self._error(f"has {len(row)} cells, but the header has {len(self.header)}")
        return self._readable

    def _checked_header(self, names: list[str]) -> list[str]:
        if all(parsing.is_numeric(name) for name in names):
            raise InputError(f"{self._name} begins with numbers: its first line must hold the names of the columns.")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InputError(f"{self._name} has two columns named {min(twice)!r}: rename one.")
        return names

    def _json_cells(self, content: str) -> dict[str, Any] | None:
        if not content.strip():
            return None
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._error(f"is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise self._error('is not an object such as {"y": 1.5}')
        self.header = self.header or list(row)
        return row

    def _error(self, problem: str) -> RunError:
        return RunError(f"{self._name}, line {self._line}, {problem}.")


def _numbers(
    name: str, rows: list[Row], places: list[str], columns: list[str], largest: float
) -> tuple[np.ndarray, dict[int, Problem]]:
    """The cells of some columns as an array [rows, columns], with what is wrong with some rows; a key that a JSON
    object does not have is missing."""
    values, problems = np.full((len(rows), len(columns)), np.nan), {}
    for i, row in enumerate(rows):
        reason, column = row.problem, ""
        if reason is None:
            try:
                for j, column in enumerate(columns):
                    values[i, j] = parsing.number(row.cells.get(column), largest)
            except ValueError as error:
                reason = f"{name}, {places[i]}, column {column!r} {error}."
        if reason is not None:
            values[i] = np.nan
            problems[i] = Problem(reason, text_of(row.content))
    return values, problems


def text_of(content: bytes) -> str:
    """A line as text, whatever its bytes are."""
    return content.decode("utf-8", "backslashreplace")[:MOST_CONTENT]
