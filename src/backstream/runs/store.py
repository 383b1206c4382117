"""A run directory: what was learned, from what, with which settings, and how it went.

    run/
      config.toml      the effective configuration, the version and the format
      filtered/        means and standard deviations of the state at each row, in Parquet parts
      metrics.jsonl    the monitor's reports
      rejected.jsonl   rows that could not be used, each with the reason
      checkpoints/     whole learner states

Parts, reports and checkpoints fall at positions that depend on the configuration only. At each, the part is written
first, then the reports and the rows that were set aside, then the checkpoint, which makes them count: a run that is
continued drops whatever lies beyond its newest checkpoint, so that no row is lost or doubled and the bytes are those of
a run that was never stopped.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from backstream.errors import InputError, RunError
from backstream.learning import Report, Verdict
from backstream.runs import atomic_files, results

from .checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError
from .config import Config, check_same, parse_config, read_run_config
from .logs import (
    LogWriter,
    Rejected,
    decode_rejected,
    decode_report,
    decoded,
    encode_rejected,
    encode_report,
)
from .results import ResultsWriter, read_results

CONFIG, FILTERED, METRICS, CHECKPOINTS, LOCK = "config.toml", "filtered", "metrics.jsonl", "checkpoints", "lock"
REJECTED = "rejected.jsonl"


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def open_config(path: Path) -> Config:
    """The configuration of a run."""
    if not path.is_dir():
        raise InputError(f"There is no run directory {path}.")
    if not is_run(path):
        raise InputError(f"{path} is not a run directory: it has no {CONFIG}.")
    return read_run_config(path / CONFIG)


def check_directory(path: Path, resume: bool) -> None:
    """Raises InputError where a run may not be written: over another one, or among files that are none of ours."""
    if is_run(path) and not resume:
        raise InputError(f"{path} already holds a run: continue it with resume, or choose another directory.")
    if not is_run(path) and path.exists():
        begun = (LOCK, FILTERED, CHECKPOINTS, atomic_files.INCOMING + CONFIG)  # by a process that was killed at once
        if not path.is_dir() or any(entry.name not in begun for entry in path.iterdir()):
            raise InputError(f"{path} exists and is not a run directory: choose another.")


def read_filtered(path: Path) -> pa.Table:
    """All rows that a run has written: row, time if there is one, refused, and mean and std for each state."""
    return read_results(path / FILTERED)


def read_reports(path: Path) -> list[Report]:
    """What the monitor said, oldest first."""
    return [report for _, report in decoded(path / METRICS, decode_report)]


def read_rejected(path: Path) -> list[Rejected]:
    """The rows that could not be used, oldest first."""
    return [rejected for _, rejected in decoded(path / REJECTED, decode_rejected)]


def read_verdict(path: Path, config: Config) -> Verdict | None:
    """That of the newest checkpoint that can be read, without its arrays; None where there is none."""
    checkpoints = Checkpoints(path / CHECKPOINTS, config.saving.keep)
    for position in reversed(checkpoints.positions()):
        try:
            return verdict_of(checkpoints.about(position).record)
        except DamagedCheckpointError:
            continue
    return None


def verdict_of(record: dict[str, Any]) -> Verdict | None:
    """The verdict in the record of a checkpoint."""
    found = record.get("verdict")
    try:
        return None if found is None else Verdict.restored(found)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(f"The verdict in a checkpoint makes no sense: {error}.") from error


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

    def __init__(self, path: Path, config: Config, *, resume: bool = True):
        """Makes the directory or, if there is a run in it and it may be resumed, prepares to continue it. Another
        writer is refused; whether there is a run is looked at once no other can begin one."""
        self.path = path
        for name in (CONFIG, FILTERED, METRICS, REJECTED, CHECKPOINTS, LOCK):
            if (path / name).is_symlink():
                raise InputError(f"{path / name} is a link: put what it leads to in its place, and begin again.")
        try:
            if not path.exists():
                path.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # of a folder that may be entered but not read
                    atomic_files.sync_directory(path.parent)
            self._lock = os.open(
                path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666
            )  # held while the process lives
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check_directory(path, resume)
            if is_run(path):
                recorded = read_run_config(path / CONFIG)
                check_same(recorded, config, path)
                config = recorded
            for folder in (path / FILTERED, path / CHECKPOINTS):
                folder.mkdir(exist_ok=True)
            for folder in (path, path / FILTERED, path / CHECKPOINTS):
                atomic_files.tidy_up(folder)
            if not is_run(path):
                atomic_files.write(path / CONFIG, config.text().encode())
        except BlockingIOError:
            os.close(self._lock)
            raise InputError(f"{path} is being written by another process.") from None
        except OSError as error:
            os.close(self._lock)
            raise _unwritten(path, error) from error
        except BaseException:
            os.close(self._lock)
            raise
        self._config = config
        self._checkpoints = Checkpoints(path / CHECKPOINTS, config.saving.keep)
        self._results = ResultsWriter(path / FILTERED, config.saving, config.text())
        self._reports = LogWriter(path / METRICS, encode_report, decode_report, lambda one: one.row or one.t)
        self._rejected = LogWriter(path / REJECTED, encode_rejected, decode_rejected, lambda one: one.row + 1)

    def resume(
        self, like: Callable[[dict[str, Any]], Any], warn: Callable[[str], None], may_go_back: bool = True
    ) -> Checkpoint | None:
        """The newest checkpoint that can be read, having dropped what was written after it. `like` makes the pytree to
        read it into, given its record; that takes seconds, and is not asked for where there is none. Where the newest
        is damaged the one before it is used, if the rows in between come again (`may_go_back`)."""

        def with_results(record: dict[str, Any]) -> Any:
            self._check_results(record)
            return like(record)

        checkpoint = self._checkpoints.newest(of_run(self.path, self._config, with_results), warn)
        position = 0 if checkpoint is None else checkpoint.position
        saved = max(self._checkpoints.positions(), default=0)
        if position < saved and not may_go_back:
            raise RunError(
                f"The checkpoint {self._checkpoints.path(saved)} is damaged, and the rows from {position + 1:,} to "
                f"{saved:,} would be lost: give them again, with the whole source (--replay for standard input), or "
                "remove that checkpoint to go on without them."
            )
        try:
            self._checkpoints.cut(position)
            self._results.cut(position)
            for log in (self._reports, self._rejected):
                log.cut(position)
            self._tidy(position)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        return checkpoint

    def add(self, rows: pa.Table, reports: list[Report], rejected: Sequence[Rejected] = ()) -> None:
        """Results since the last call, which must not reach beyond the next multiple of `checkpoint_every`."""
        self._results.add(rows)
        self._reports.add(reports)
        self._rejected.add(rejected)

    def commit(self, position: int, tree: Any, record: dict[str, Any]) -> None:
        """Makes everything up to `position` last."""
        try:
            self._results.write(position)
            self._reports.write()
            self._rejected.write()
        except OSError as error:
            raise _unwritten(self.path, error) from error
        about = {"results": self._results.begun(position), "config": self._config.text()}
        self._checkpoints.save(position, tree, {**record, **about})
        self._results.next_part(position)
        try:
            self._tidy(position)
        except OSError as error:
            raise _unwritten(self.path, error) from error

    def close_part(self, position: int) -> None:
        """Writes a part that is full, without a checkpoint after it."""
        self._results.write(position)
        self._results.next_part(position)

    def close(self) -> None:
        os.close(self._lock)

    def _check_results(self, record: dict[str, Any]) -> None:
        """Raises DamagedCheckpointError where the results that a checkpoint goes on with are not what was written."""
        try:
            results.check_begun(self.path / FILTERED, record.get("results"))
        except RunError as error:
            raise DamagedCheckpointError(f"A checkpoint in {self._checkpoints.directory}: {error}") from error

    def _tidy(self, position: int) -> None:
        """Merges and removes results that are old enough; reports and rejected rows with them, less often. By rows,
        what is removed depends on the position only, also where a process is killed in between."""
        first = self._results.tidy(position)
        kept, every = self._config.saving.retention().rows, self._config.saving.checkpoint_every
        if kept:
            due = position and position % (every * math.ceil(kept / every)) == 0
            first = position - kept if due else None
        if first is not None:
            for log in (self._reports, self._rejected):
                log.cut(position, first=first)


def write_run(
    path: Path,
    config: Config,
    rows: pa.Table,
    reports: list[Report],
    rejected: list[Rejected],
    checkpoint: Checkpoint,
) -> None:
    """A whole run at once: the parts of its results, its reports, the rows set aside and its newest state."""
    writer, every = RunWriter(path, config, resume=False), config.saving.checkpoint_every
    try:
        for begun in range(0, checkpoint.position, every):
            writer.add(rows.slice(begun, every), reports if begun == 0 else [], rejected if begun == 0 else [])
            if begun + every < checkpoint.position:
                writer.close_part(begun + every)
        writer.commit(checkpoint.position, checkpoint.tree, checkpoint.record)
    finally:
        writer.close()


def _unwritten(path: Path, error: OSError) -> RunError:
    what = error.filename or path
    return RunError(f"{what} could not be written: {error.strerror}. What was saved before it can still be read.")
