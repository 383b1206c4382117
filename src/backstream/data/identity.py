"""Whether a source still has the rows that a run has read from it.

Each row goes into a chain of digests: that of the rows so far and of the row itself. Some of the values of the chain
are kept as marks, evenly spaced, at most MARKS of them; they tell where a source begins to differ: the very row of up
to MARKS rows, and of a longer source a block of rows that is at most one in MARKS / 2 of them.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from backstream.errors import InputError

from .rows import Batch

MARKS = 2048
SIZE = 16
"""Bytes of a digest."""
MARK = 4
"""Bytes of it that a mark has. They only say where: whether anything differs is for the whole digest at the end."""


def row_contents(batch: Batch, inputs: int) -> Iterator[bytes]:
    """What counts of each row: its observations, its first `inputs` inputs, its time and its key; of one that is set
    aside, all of it."""
    known = batch.ys if batch.inputs is None else np.column_stack([batch.ys, batch.inputs[:, :inputs]])
    values = np.where(np.isnan(known), np.nan, known).astype("<f8")
    for i in range(len(batch)):
        texts = (None if texts is None else texts[i] for texts in (batch.times, batch.keys))
        labels = b"".join(b"\0" if text is None else text.encode("utf-8", "surrogatepass") + b"\1" for text in texts)
        problem = batch.problems.get(i)
        aside = b"" if problem is None else b"!" + problem.content.encode("utf-8", "surrogatepass")
        yield values[i].tobytes() + labels + aside


class Prefix:
    """The rows that a run has read from its source.

    >>> prefix = Prefix()
    >>> for row in (b"a", b"b"):
    ...     prefix.add(row)
    >>> check = Check(Prefix.restored(prefix.record()), "obs.csv")
    >>> for row in (b"a", b"c"):
    ...     check.add(row)
    Traceback (most recent call last):
    backstream.errors.InputError: obs.csv is not the source that the run has read: row 2 differs...
    """

    def __init__(self, begins: int = 0):
        self.begins = begins
        """The rows that were read from files before this one, under the same name."""
        self.count, self.chain = 0, b""
        self.spacing, self.marks = 1, list[bytes]()

    def add(self, row: bytes) -> None:
        self.chain = hashlib.blake2b(self.chain + row, digest_size=SIZE).digest()
        self.count += 1
        if self.count % self.spacing:
            return
        self.marks.append(self.chain[:MARK])
        if len(self.marks) > MARKS:
            self.marks, self.spacing = self.marks[1::2], 2 * self.spacing

    def record(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "begins": self.begins,
            "count": self.count,
            "chain": self.chain.hex(),
            "spacing": self.spacing,
            "marks": b"".join(self.marks).hex(),
        }

    @classmethod
    def restored(cls, record: dict[str, Any]) -> "Prefix":
        """Raises KeyError, TypeError or ValueError where a record makes no sense."""
        prefix = cls(record["begins"])
        prefix.count, prefix.chain = record["count"], bytes.fromhex(record["chain"])
        marks = bytes.fromhex(record["marks"])
        prefix.spacing = record["spacing"]
        prefix.marks = [marks[i : i + MARK] for i in range(0, len(marks), MARK)]
        numbers = prefix.begins, prefix.count, prefix.spacing
        if any(type(number) is not int for number in numbers) or prefix.spacing < 1:
            raise ValueError("the source's numbers are whole, and marks are spaced")
        if len(prefix.marks) != prefix.count // prefix.spacing:
            raise ValueError("there is a mark at each multiple of their spacing")
        return prefix


class Check:
    """Compares the rows of a source with those that were read before, one after another."""

    def __init__(self, expected: Prefix, name: str):
        self._expected, self._name = Prefix.restored(expected.record()), name  # the run's own goes on
        self._seen, self._right = Prefix(), 0

    def is_done(self) -> bool:
        return self._seen.count >= self._expected.count

    def add(self, row: bytes) -> None:
        """Raises InputError at the first mark that differs."""
        self._seen.add(row)
        count, spacing = self._seen.count, self._expected.spacing
        mark = self._expected.marks[count // spacing - 1] if count % spacing == 0 else None
        if count == self._expected.count:
            mark = self._expected.chain
        if mark is None:
            return
        if not self._seen.chain.startswith(mark):
            first = self._right + 1
            where = f"row {first} differs" if first == count else f"the first difference is in rows {first} to {count}"
            raise InputError(
                f"{self._name} is not the source that the run has read: {where}. Give the same source, or, if all of "
                "its rows are new, say so (--new-rows)."
            )
        self._right = count

    def require_done(self) -> None:
        if not self.is_done():
            raise InputError(
                f"{self._name} has {self._seen.count} rows, but the run has already read {self._expected.count}: is it "
                "the source that the run began with? If all of its rows are new, say so (--new-rows)."
            )
