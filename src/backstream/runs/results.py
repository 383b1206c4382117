"""The results of a run: means and standard deviations of the state at each row, in Parquet parts.

A part is named by the number of rows before it. It is written with `checkpoint_every` rows; MERGED of them become one
file once no checkpoint is left that a run could go back to among their rows. Where they begin and end depends on
the position in the source and the settings only.
"""

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
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


def scores_of(table: pa.Table) -> tuple[np.ndarray, np.ndarray] | None:
    """The log score of each row [T] and its PIT values [T, dy]; None where results have none."""
    pits = [name for name in table.column_names if name.startswith("pit_")]
    if "log_score" not in table.column_names or not pits:
        return None
    return table["log_score"].to_numpy(), np.column_stack([table[name].to_numpy() for name in pits])


def read_parquet(path: Path) -> pa.Table:
    """A table of results. Raises RunError where it makes no sense."""
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RunError(f"The results in {path} cannot be read: {error}") from None


def part_files(folder: Path) -> list[Path]:
    """The parts, oldest first; other files beside them are none of ours."""
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


class ResultsWriter:
    """The parts, for the process that writes them."""

    def __init__(self, folder: Path, saving: Saving, config: str):
        self._folder, self._saving, self._config = folder, saving, config
        self._rows: list[pa.Table] = []
        """Those of the part that is not full yet."""

    def cut(self, position: int) -> None:
        """Drops what lies beyond a position, and takes up the part that is not full there."""
        begun = position - position % self._saving.checkpoint_every
        self._finish_merge()
        for part in part_files(self._folder):
            if int(part.stem) > begun or int(part.stem) >= position:
                atomic_files.remove(part)
        self._rows = []
        if begun == position:
            return
        part = self._part(begun)
        table = read_parquet(part)
        if len(table) < position - begun:
            raise RunError(f"{part} has {len(table)} rows, but the checkpoint says {position - begun}.")
        self._rows = [table.slice(0, position - begun)]
        self._write(begun)

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def write(self, position: int) -> None:
        """Puts the rows up to a position on the disk."""
        every = self._saving.checkpoint_every
        self._write((position - 1) - (position - 1) % every)

    def next_part(self, position: int) -> None:
        """Begins the next part, if this one is full."""
        if position % self._saving.checkpoint_every == 0:
            self._rows = []

    def tidy(self, position: int) -> None:
        """Merges and removes what falls due at the last full part before a position. It may be done twice."""
        every = self._saving.checkpoint_every
        full, length = position - position % every, MERGED * every
        if self._saving.keep_results:
            self._remove_before(full - self._saving.keep_results)
        settled = full - self._saving.keep * every
        groups = {int(part.stem) // length * length for part in part_files(self._folder) if int(part.stem) % length}
        for begin in sorted(groups):
            if begin + length <= settled:
                self._merge(begin, begin + length)

    def _remove_before(self, row: int) -> None:
        parts = part_files(self._folder)
        for part, following in pairwise(parts):
            if int(following.stem) <= row:
                atomic_files.remove(part)

    def _merge(self, begin: int, end: int) -> None:
        parts = [part for part in part_files(self._folder) if begin <= int(part.stem) < end]
        table = pa.concat_tables(list(_tables(parts)))
        if int(parts[0].stem) != begin or len(table) != end - begin:  # some of it has been removed already
            return
        self._put(begin, table)
        for part in parts[1:]:
            atomic_files.remove(part)

    def _finish_merge(self) -> None:
        """Removes the parts of a merged one that a killed process has left."""
        end = 0
        for part in part_files(self._folder):
            if int(part.stem) < end:
                atomic_files.remove(part)
            elif int(part.stem) % (MERGED * self._saving.checkpoint_every) == 0:
                with contextlib.suppress(pa.ArrowException, OSError):  # damaged: named when it is read
                    end = int(part.stem) + pq.read_metadata(part).num_rows

    def _part(self, begun: int) -> Path:
        return self._folder / f"{begun:012d}.parquet"

    def _write(self, begun: int) -> None:
        self._rows = [pa.concat_tables(self._rows).combine_chunks()]
        self._put(begun, self._rows[0])

    def _put(self, begun: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        about = {"backstream": __version__, "config": self._config}
        pq.write_table(table.combine_chunks().replace_schema_metadata(about), sink)
        atomic_files.write(self._part(begun), sink.getvalue().to_pybytes())
