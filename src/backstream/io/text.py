"""Tables of text, CSV with a header or JSON Lines, row by row as the lines arrive.

The reader is our own, not a library's, because a row of a pipe or of a growing file must be had before the next one
exists, and because an error has to name the row, the line and the column.
"""

import csv
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import cells
from .errors import InputError, RunError


class Row(NamedTuple):
    """The cells of one row, by the names of their columns, and the number of its line, counted from 1."""

    line: int
    cells: dict[str, Any]
    problem: RunError | None = None
    """What is wrong with it, in a table that goes on after such a row; its cells are then those that could be read."""


class TextTable:
    """Rows of one source. `header` and `first` are known once it is made: it waits for the first row."""

    def __init__(self, name: str, chunks: Iterator[list[bytes]], jsonl: bool | None, goes_on: bool = False):
        """With `goes_on`, a row that cannot be read is a row with a problem, and not the end."""
        self._name, self._chunks, self._line, self._goes_on = name, chunks, 0, goes_on
        self._readable: dict[str, Any] = {}
        self._parse: Callable[[str], dict[str, Any] | None] | None = None
        self._jsonl = jsonl
        self.header: list[str] = []
        self._available = self._rows()
        waiting = next(self._available, None)
        if waiting is None:
            raise InputError(f"{name} is empty: it holds no row of data.")
        self._waiting = waiting

    @property
    def first(self) -> Row:
        return self._waiting[0]

    def rows(self) -> Iterator[list[Row]]:
        """All rows, the first included, in lists of what is available without waiting. To be called once."""
        yield self._waiting
        yield from self._available

    def _rows(self) -> Iterator[list[Row]]:
        for lines in self._chunks:
            rows, error = [], None
            for line in lines:
                self._line += 1
                try:
                    found = self._cells(line)
                except RunError as problem:
                    if self._goes_on:
                        rows.append(Row(self._line, self._readable, problem))
                        continue
                    error = problem
                    break
                if found is not None:
                    rows.append(Row(self._line, found))
            if rows:
                yield rows
            if error is not None:  # once the rows before it have been used
                raise error

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
        self._readable = dict(zip(self.header, row, strict=False))
        if len(row) != len(self.header):
            raise self._error(f"has {len(row)} cells, but the header has {len(self.header)}")
        return self._readable

    def _checked_header(self, names: list[str]) -> list[str]:
        if all(cells.is_numeric(name) for name in names):
            raise InputError(f"{self._name} begins with numbers: its first line must hold the names of the columns.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"{self._name} has two columns named {twice[0]!r}: rename one.")
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


def numbers(
    name: str, rows: list[Row], places: list[str], columns: list[str], largest: float
) -> tuple[np.ndarray, RunError | None]:
    """The cells of some columns as an array [rows, columns]; a key that a JSON object does not have is missing.

    Ends before the first row that holds anything but numbers, with what is wrong there.
    """
    values = np.empty((len(rows), len(columns)))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            try:
                values[i, j] = cells.number(row.cells.get(column), largest)
            except ValueError as error:
                return values[:i], RunError(f"{name}, {places[i]}, column {column!r} {error}.")
    return values, None


def numbers_by_row(
    name: str, rows: list[Row], places: list[str], columns: list[str], largest: float
) -> tuple[np.ndarray, dict[int, RunError]]:
    """The same for all rows, with what is wrong with some of them."""
    values, problems = np.full((len(rows), len(columns)), np.nan), {}
    for i, row in enumerate(rows):
        found, error = numbers(name, [row], [places[i]], columns, largest)
        error = row.problem or error
        if error is None:
            values[i] = found[0]
        else:
            problems[i] = error
    return values, problems
