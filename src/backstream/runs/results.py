"""The results of a run: means and standard deviations of the state at each row, in Parquet parts.

A part is named by the number of rows before it. It is written with `checkpoint_every` rows; MERGED of them become one
file once no checkpoint is left that a run could go back to among their rows. Where they begin and end depends on
the position in the source and the settings only.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstream._version import __version__
from backstream.errors import InputError, RunError
from backstream.runs import atomic_files

from .config import Saving

MERGED = 64
"""Parts that become one."""
ATTEMPTS = 3
"""How often results are looked for that are merged or removed meanwhile by the process that writes the run."""


def read_results(folder: Path) -> pa.Table:
    """All rows that are there."""
    parts = part_files(folder)
    for attempt in range(ATTEMPTS):
        if not parts:
            raise InputError(f"{folder.parent} holds no results yet.")
        try:
            return pa.concat_tables(list(_tables(parts)))
        except pa.ArrowException as error:
            raise RunError(f"The results in {folder} do not belong together: {error}") from None
        except RunError:
            before, parts = parts, part_files(folder)
            if parts == before or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def read_latest(folder: Path) -> pa.Table | None:
    """The rows of the newest part; None where there is none that can be read."""
    for part in reversed(part_files(folder)):
        with contextlib.suppress(RunError):
            return read_parquet(part)
    return None


def read_parquet(path: Path) -> pa.Table:
    """A table of results. Raises RunError where it makes no sense."""
    try:
        table = pq.read_table(path, page_checksum_verification=True, use_threads=False)
        table.validate(full=True)  # texts that are not UTF-8, for example
        _ = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RunError(f"The results in {path} cannot be read: {error}") from None
    return table


def part_files(folder: Path) -> list[Path]:
    """The parts, oldest first. Other files in the folder are ignored."""
    found = folder.glob("[0-9]*.parquet")
    return sorted(part for part in found if part.stem.isascii() and part.stem.isdecimal() and part.is_file())


def _tables(parts: list[Path]) -> Iterator[pa.Table]:
    """The tables of parts, without those whose rows a merged one already has."""
    end = 0
    for part in parts:
        if int(part.stem) >= end:
            table = read_parquet(part)
            end = int(part.stem) + len(table)
            yield table


def check_begun(folder: Path, record: Any) -> None:
    """Raises RunError where the rows of a part that is not full are missing, or are not those that a checkpoint has
    recorded."""
    if record is None:
        return
    try:
        part, count, digest = part_file(folder, int(record["first"])), int(record["count"]), record["digest"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("what it says of its results makes no sense.") from error
    if content_digest([_first_rows(part, count)]) != digest:
        raise RunError(f"The results in {part} are not those that were written.")


def content_digest(tables: list[pa.Table]) -> str:
    """Of the values, whatever chunks they are in and whatever file they were in."""
    total, table = hashlib.sha256(), pa.concat_tables(tables)
    for name, column in zip(table.column_names, table.columns, strict=True):
        text = pa.types.is_string(column.type)
        values = json.dumps(column.to_pylist()).encode() if text else column.to_numpy().tobytes()
        total.update(f"{name} {column.type} {len(values)} ".encode() + values)
    return total.hexdigest()


def part_file(folder: Path, begun: int) -> Path:
    return folder / f"{begun:012d}.parquet"


def _first_rows(part: Path, count: int) -> pa.Table:
    table = read_parquet(part)
    if len(table) < count:
        raise RunError(f"{part} has {len(table)} rows, but the checkpoint says {count}.")
    return table.slice(0, count)


class ResultsWriter:
    """The parts, for the process that writes them."""

    def __init__(self, folder: Path, saving: Saving, config: str):
        self._folder, self._saving, self._config = folder, saving, config
        self._rows: list[pa.Table] = []
        """Those of the part that is not full yet."""

    def begun(self, position: int) -> dict[str, Any] | None:
        """What a checkpoint records of the part that is not full at a position, for `check_begun`."""
        count = position % self._saving.checkpoint_every
        return {"first": position - count, "count": count, "digest": content_digest(self._rows)} if count else None

    def cut(self, position: int) -> None:
        """Drops what lies beyond a position, and takes up the part that is not full there."""
        count = position % self._saving.checkpoint_every
        begun, rows = position - count, [_first_rows(self._part(position - count), count)] if count else []
        self._finish_merge()
        for part in part_files(self._folder):
            if int(part.stem) > begun or int(part.stem) >= position:
                atomic_files.remove(part)
        self._rows = rows
        if rows:
            self._write(begun)

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def write(self, position: int) -> None:
        """Puts the rows up to a position on the disk, if there are any since the last full part."""
        every = self._saving.checkpoint_every
        if self._rows:
            self._write((position - 1) - (position - 1) % every)

    def next_part(self, position: int) -> None:
        """Begins the next part, if this one is full."""
        if position % self._saving.checkpoint_every == 0:
            self._rows = []

    def tidy(self, position: int) -> int | None:
        """Merges and removes what falls due at the last full part before a position. It may be done twice. The number
        of the first row that is left, where some were removed."""
        every = self._saving.checkpoint_every
        full, length = position - position % every, MERGED * every
        first = self._remove(full)
        settled = full - self._saving.keep * every
        groups = {int(part.stem) // length * length for part in part_files(self._folder) if int(part.stem) % length}
        for begin in sorted(groups):
            if begin + length <= settled:
                self._merge(begin, begin + length)
        return first

    def _remove(self, full: int) -> int | None:
        """Whole parts that are not to stay, oldest first. The newest part stays in any case."""
        kept, parts, first = self._saving.retention(), part_files(self._folder), None
        size = sum(part.stat().st_size for part in parts) if kept.bytes else 0
        for part, following in pairwise(parts):
            about = part.stat()
            size -= about.st_size
            too_old = kept.seconds and time.time() - about.st_mtime > kept.seconds
            too_far = kept.rows and int(following.stem) <= full - kept.rows
            too_much = kept.bytes and size >= kept.bytes
            if not (too_old or too_far or too_much):
                break
            atomic_files.remove(part)
            first = int(following.stem)
        return first

    def _merge(self, begin: int, end: int) -> None:
        parts = [part for part in part_files(self._folder) if begin <= int(part.stem) < end]
        try:
            table = pa.concat_tables(list(_tables(parts)))
        except (RunError, pa.ArrowException):  # damaged: named when it is read; the run goes on
            return
        if int(parts[0].stem) != begin or len(table) != end - begin:  # some of it has been removed already
            return
        written = parts[-1].stat().st_mtime
        self._put(begin, table)
        os.utime(self._part(begin), (written, written))  # as old as its rows
        for part in parts[1:]:
            atomic_files.remove(part)

    def _finish_merge(self) -> None:
        """Removes the parts of a merged one that a killed process has left. A part that is damaged is not taken for a
        merged one, whatever it says of its length."""
        length, parts = MERGED * self._saving.checkpoint_every, part_files(self._folder)
        for part in parts:
            begin = int(part.stem)
            left = [other for other in parts if begin < int(other.stem) < begin + length]
            if begin % length or not left:
                continue
            with contextlib.suppress(RunError):  # damaged: named when it is read
                if len(read_parquet(part)) == length:
                    for other in left:
                        atomic_files.remove(other)

    def _part(self, begun: int) -> Path:
        return part_file(self._folder, begun)

    def _write(self, begun: int) -> None:
        self._rows = [pa.concat_tables(self._rows).combine_chunks()]
        self._put(begun, self._rows[0])

    def _put(self, begun: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        about = {"backstream": __version__, "config": self._config}
        pq.write_table(table.combine_chunks().replace_schema_metadata(about), sink, write_page_checksum=True)
        atomic_files.write(self._part(begun), sink.getvalue().to_pybytes())
