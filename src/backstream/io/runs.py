"""A run directory: what was learned, from what, with which settings, and how it went.

    run/
      config.toml      the effective configuration and the version
      filtered/        means and standard deviations of the state at each row, in Parquet parts
      metrics.jsonl    the monitor's reports
      checkpoints/     whole learner states

Parts, reports and checkpoints fall at positions that depend on the configuration only. At each, the part is written
first, then the reports, then the checkpoint, which makes them count: a run that is continued drops whatever lies beyond
its newest checkpoint, so that no row is lost or doubled and the bytes are those of a run that was never stopped.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstream import __version__
from backstream.learning import Report

from . import atomic
from .checkpoints import Checkpoint, Checkpoints
from .config import Config, check_same, parse_config, read_config
from .errors import InputError, RunError

CONFIG, FILTERED, METRICS, CHECKPOINTS, LOCK = "config.toml", "filtered", "metrics.jsonl", "checkpoints", "lock"
OF_STREAMS = ("stream", "row")
"""What only the reports of a run with many streams have."""
KINDS: dict[str, Any] = {"t": int, "warnings": list, "stream": str | None, "row": int | None}
"""What the parts of a report are in JSON; the others are numbers, or null where there is none."""


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def open_config(path: Path) -> Config:
    """The configuration of a run, once it is known to be one of this version."""
    if not path.is_dir():
        raise InputError(f"There is no run directory {path}.")
    if not is_run(path):
        raise InputError(f"{path} is not a run directory: it has no {CONFIG}.")
    config = read_config(path / CONFIG)
    if config.version != __version__:
        raise InputError(
            f"{path} was made by backstream {config.version}, and this is {__version__}: use that version, "
            "or begin a new run."
        )
    return config


def read_filtered(path: Path) -> pa.Table:
    """All rows that a run has written: row, time if there is one, refused, and mean and std for each state."""
    parts = _parts(path)
    if not parts:
        raise InputError(f"{path} holds no results yet.")
    try:
        return pa.concat_tables([read_parquet(part) for part in parts])
    except pa.ArrowException as error:
        raise RunError(f"The results in {path / FILTERED} do not belong together: {error}") from None


def read_parquet(path: Path) -> pa.Table:
    """A table of results. Raises RunError where it makes no sense."""
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RunError(f"The results in {path} cannot be read: {error}") from None


def _parts(path: Path) -> list[Path]:
    """The parts of the results, oldest first; other files beside them are none of ours."""
    found = (path / FILTERED).glob("[0-9]*.parquet")
    return sorted(part for part in found if part.stem.isascii() and part.stem.isdecimal() and part.is_file())


def read_reports(path: Path) -> list[Report]:
    """What the monitor said, oldest first."""
    file = path / METRICS
    return [report for _, report in _decoded(file)] if file.is_file() else []


def of_run(path: Path, config: Config, like: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """`like`, for the checkpoints of a run: one that belongs to another is refused before its arrays are read."""

    def checked(record: dict[str, Any]) -> Any:
        where = f"A checkpoint in {path / CHECKPOINTS}"
        if not isinstance(record.get("config"), str):
            raise InputError(f"{where} does not say which run it belongs to: begin a new run.")
        check_same(parse_config(record["config"], where), config, where)
        return like(record)

    return checked


class RunWriter:
    """The one process that writes a run."""

    def __init__(self, path: Path, config: Config):
        """Makes the directory or, if there is a run in it, prepares to continue it. Another writer is refused."""
        self.path, self._config, self._every = path, config, config.saving.checkpoint_every
        self._checkpoints = Checkpoints(path / CHECKPOINTS, config.saving.keep)
        self._rows: list[pa.Table] = []
        self._reports: list[Report] = []
        for name in (CONFIG, FILTERED, METRICS, CHECKPOINTS, LOCK):
            if (path / name).is_symlink():
                raise InputError(f"{path / name} is a link: put what it leads to in its place, and begin again.")
        try:
            (path / FILTERED).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT)  # held while the process lives
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in (path, path / FILTERED, path / CHECKPOINTS):
                atomic.discard_incoming(folder)
            if not is_run(path):
                atomic.write(path / CONFIG, config.text().encode())
        except BlockingIOError:
            raise InputError(f"{path} is being written by another process.") from None
        except OSError as error:
            raise _unwritten(path, error) from error

    def resume(self, like: Callable[[dict[str, Any]], Any], warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that can be read, having dropped what was written after it. `like` makes the pytree to
        read it into, given its record; that takes seconds, and is not asked for where there is none."""
        checkpoint = self._checkpoints.newest(of_run(self.path, self._config, like), warn)
        position = 0 if checkpoint is None else checkpoint.position
        begun = position - position % self._every
        try:
            for part in _parts(self.path):
                if int(part.stem) > begun or int(part.stem) >= position:
                    part.unlink()
            if begun < position:
                self._reopen(begun, position - begun)
            self._keep_reports(position)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        return checkpoint

    def _reopen(self, begun: int, count: int) -> None:
        """Takes up a part that was not full when the run stopped."""
        part = self._part(begun)
        table = read_parquet(part)
        if len(table) < count:
            raise RunError(f"{part} has {len(table)} rows, but the checkpoint says {count}.")
        self._rows = [table.slice(0, count)]
        self._write_part(begun)

    def _keep_reports(self, position: int) -> None:
        file = self.path / METRICS
        kept = (
            [line for line, report in _decoded(file) if (report.row or report.t) <= position] if file.is_file() else []
        )
        atomic.write(file, b"".join(kept))

    def add(self, rows: pa.Table, reports: list[Report]) -> None:
        """Results since the last call, which must not reach beyond the next multiple of `checkpoint_every`."""
        self._rows.append(rows)
        self._reports += reports

    def commit(self, position: int, tree: Any, record: dict[str, Any]) -> None:
        """Makes everything up to `position` last."""
        begun = (position - 1) - (position - 1) % self._every
        try:
            self._write_part(begun)
            with open(self.path / METRICS, "ab") as file:
                file.write(b"".join(_encoded(report) for report in self._reports))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._reports = []
        self._checkpoints.save(position, tree, {**record, "config": self._config.text()})
        if position % self._every == 0:
            self._rows = []

    def close(self) -> None:
        os.close(self._lock)

    def _part(self, begun: int) -> Path:
        return self.path / FILTERED / f"{begun:012d}.parquet"

    def _write_part(self, begun: int) -> None:
        table = pa.concat_tables(self._rows).combine_chunks()
        table = table.replace_schema_metadata({"backstream": __version__, "config": self._config.text()})
        self._rows = [table]
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        atomic.write(self._part(begun), sink.getvalue().to_pybytes())


def _unwritten(path: Path, error: OSError) -> RunError:
    what = error.filename or path
    return RunError(f"{what} could not be written: {error.strerror}. What was saved before it can still be read.")


def _encoded(report: Report) -> bytes:
    given = {key: v for key, v in report._asdict().items() if key not in OF_STREAMS or v is not None}
    values = {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in given.items()}
    return (json.dumps({"version": __version__, **values}) + "\n").encode()


def _decoded(file: Path) -> list[tuple[bytes, Report]]:
    """The lines of a file of reports, with what they say; one that is not whole, or makes no sense, is left out."""
    found = []
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            found.append((line, _report(json.loads(line))))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def _report(values: Any) -> Report:
    """From JSON. Raises KeyError or TypeError where it is of another shape."""
    if not isinstance(values, dict):
        raise TypeError("a report is a table")
    given: dict[str, Any] = {name: values.get(name) if name in OF_STREAMS else values[name] for name in Report._fields}
    for name, value in given.items():
        kinds = KINDS.get(name, int | float | None)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise TypeError(f"{name} is of another type")
        if value is None and name not in OF_STREAMS:
            given[name] = math.nan
    if not all(isinstance(warning, str) for warning in given["warnings"]):
        raise TypeError("warnings are sentences")
    given["warnings"] = tuple(given["warnings"])
    return Report(**given)
