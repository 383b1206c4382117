"""Rows of a source on their way to the learner."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from backstream.errors import RunError

MOST_CONTENT = 10_000
"""Characters that are kept of a row that cannot be used."""


class Problem(NamedTuple):
    """What is wrong with a row."""

    reason: str
    """A sentence that names the source, the row and the column."""
    content: str
    """The row as the source has it, cut off after MOST_CONTENT characters."""
    fatal: bool = True
    """Whether a single stream ends there. One of many streams always goes on."""

    def error(self) -> RunError:
        return RunError(self.reason)


class Rows(NamedTuple):
    """Some rows of a table, before anybody has asked what its columns are for."""

    values: np.ndarray
    times: list[str | None] | None
    keys: list[str | None] | None
    places: list[str]
    """What to call each row in an error."""
    contents: list[bytes] | None
    """Each row as the source has it; None where it is not text."""
    problems: dict[int, Problem]
    """What is wrong with some of them, by their place here; their values are NaN."""
    new_file: bool = False
    """Whether they are the first of another file, which has taken the place of the one before."""


@dataclass(frozen=True)
class Batch:
    """Some rows, one after another. NaN is a missing value."""

    first: int
    """The number of rows before them."""
    ys: np.ndarray
    inputs: np.ndarray | None
    times: list[str | None] | None
    keys: list[str | None] | None = None
    """The stream of each, where a column names it."""
    problems: dict[int, Problem] = field(default_factory=dict)
    """What is wrong with some of them, by their place in the batch, where the others can be used."""
    new_file: bool = False
    """Whether they are the first of another file, which has taken the place of the one before."""

    def __len__(self) -> int:
        return len(self.ys)

    def part(self, begin: int, end: int) -> "Batch":
        """Some of the rows."""
        here = slice(begin, end)
        return Batch(
            self.first + begin,
            self.ys[here],
            None if self.inputs is None else self.inputs[here],
            None if self.times is None else self.times[here],
            None if self.keys is None else self.keys[here],
            {i - begin: problem for i, problem in self.problems.items() if begin <= i < end},
        )

    def then(self, other: "Batch") -> "Batch":
        """These rows, followed by those of another batch of the same source."""
        return Batch(
            self.first,
            np.concatenate([self.ys, other.ys]),
            None if self.inputs is None or other.inputs is None else np.concatenate([self.inputs, other.inputs]),
            None if self.times is None or other.times is None else self.times + other.times,
            None if self.keys is None or other.keys is None else self.keys + other.keys,
            self.problems | {i + len(self): problem for i, problem in other.problems.items()},
        )
