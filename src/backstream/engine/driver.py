"""From a source into a run: rows are read as they come, learned from, and their results written down.

One loop for one stream and for many. What has been learned counts when it is committed: the position in the source,
results, reports, rows that were set aside and the learner's state together, or none of them.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Literal

from jax.sharding import Mesh

from backstream.data.identity import Check, Prefix, row_contents
from backstream.data.rows import Batch
from backstream.data.sources import Source
from backstream.errors import RunError
from backstream.learning import Verdict
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected
from backstream.runs.memory import MemoryRun
from backstream.runs.store import REJECTED, RunWriter, verdict_of

from . import environment
from .fleet_reader import FleetReader
from .model_errors import explained
from .preparation import check_fit
from .reader import Reader
from .results import Progress
from .single_reader import SingleReader

Holds = Literal["all", "rest", "new"]
"""Which rows the source of a continued run has: all that were read from it and more; only the rest, as a pipe that goes
on; or those of a new file, of which none was read."""
SHOWN = 3
"""How many of the rows that are set aside are named as they come."""


def learn(
    model: StateSpaceModel,
    source: Source,
    config: Config,
    writer: RunWriter | MemoryRun | None,
    *,
    mesh: Mesh | None = None,
    holds: Holds = "all",
    stopped: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> "Learning":
    """Reads a source to its end, or until `stopped()`, telling of each piece.

    With a writer, what it already holds is continued, and everything is saved at every `checkpoint_every` rows, at the
    end, and before any error in the data, or in the caller, gets out. Where the source has no column of keys it is one
    stream.
    """
    check_fit(model, config)
    if config.columns.key is None:
        reader: Reader = SingleReader(model, config)
    else:
        reader = FleetReader(model, config, source.name, mesh)
    loop = Loop(reader, source, config, writer, holds, stopped, warn)
    return Learning(loop.run(lambda error, row: explained(error, model, source.name, row)), reader, loop)


class Learning(Iterator[Progress]):
    """A source as it is learned from, piece by piece."""

    def __init__(self, pieces: Generator[Progress, None, None], reader: Reader, loop: "Loop"):
        self._pieces, self._reader, self._loop = pieces, reader, loop

    def __next__(self) -> Progress:
        return next(self._pieces)

    def close(self) -> None:
        """Stops after the latest piece; what was learned is saved."""
        self._pieces.close()

    def verdict(self) -> Verdict | None:
        """Whether what has been learned so far can be used; once the source has ended, with a look at the latest rows.
        None before any row has been read."""
        return self._loop.verdict or self._reader.verdict()


class Loop:
    """The state of one pass over a source."""

    def __init__(
        self,
        reader: Reader,
        source: Source,
        config: Config,
        writer: RunWriter | MemoryRun | None,
        holds: Holds = "all",
        stopped: Callable[[], bool] = lambda: False,
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        self._reader, self._source, self._config, self._writer = reader, source, config, writer
        self._holds, self._stopped, self._warn = holds, stopped, warn
        self._position, self._saved, self._saved_at = 0, 0, time.monotonic()
        self._last_time: str | None = None
        self._prefix, self._rejected, self._first_reason = Prefix(), 0, ""
        self._waiting: Batch | None = None
        self._whole = True
        """Whether the reader, the writer and the position belong together. Otherwise nothing can be saved."""
        self.verdict: Verdict | None = None
        """With a look at the latest rows: None as long as rows are read."""
        self._saved_verdict: Verdict | None = None

    def run(
        self, explain: Callable[[Exception, int], Exception] = lambda error, row: error
    ) -> Generator[Progress, None, None]:
        """Everything. `explain` makes a better error of one that was raised while rows were learned from."""
        if self._writer is not None:
            self._resume(self._writer)
        try:
            for batch in self._fresh():
                if batch.new_file:  # the file before it may be gone the next time
                    yield from self._read(True, explain)
                    self._prefix = Prefix(self._position)
                    self._save(same_position=True)
                if len(batch):
                    self._reader.arrive(batch)
                    self._waiting = batch if self._waiting is None else self._waiting.then(batch)
                yield from self._read(False, explain)
                if self._overdue():
                    self._save()
                if self._leaves():
                    return
            yield from self._read(True, explain)
        finally:
            self._conclude()
        if self._rejected and not self._stopped():
            where = f" They are in {self._writer.path / REJECTED}." if isinstance(self._writer, RunWriter) else ""
            raise RunError(
                f"{self._rejected:,} rows of {self._source.name} could not be used, the first because: "
                f"{self._first_reason}{where} All others were read."
            )

    # ---- rows --------------------------------------------------------------------------------------------------------
    def _fresh(self) -> Iterator[Batch]:
        """The rows that the run has not read yet, numbered as it counts them."""
        again = Check(self._prefix, self._source.name) if self._holds == "all" else None
        if self._holds == "new" and self._position:
            self._prefix = Prefix(self._position)
        arrived, inputs = self._position, len(self._config.columns.inputs)
        for batch in self._source.batches(self._last_time if again is None else None):
            if again is not None and not again.is_done():
                known = 0
                for row in row_contents(batch, inputs):
                    if again.is_done():
                        break
                    again.add(row)
                    known += 1
                batch = batch.part(known, len(batch))
                if not len(batch):
                    continue
            yield replace(batch, first=arrived)
            arrived += len(batch)
        if again is not None and not self._stopped():
            again.require_done()

    def _read(self, ended: bool, explain: Callable[[Exception, int], Exception]) -> Generator[Progress, None, None]:
        """The first of the rows that wait, in pieces that end where a checkpoint falls."""
        every = self._config.saving.checkpoint_every
        ready = 0 if self._waiting is None else self._reader.ready(len(self._waiting), ended)
        while self._waiting is not None and ready and not self._leaves():
            count = min(ready, every - self._position % every, self._reader.most_rows)
            piece, rest = self._waiting.part(0, count), self._waiting.part(count, len(self._waiting))
            progress = self._learn(piece, explain)
            self._waiting, ready = rest if len(rest) else None, ready - count
            if self._position % every == 0 or self._overdue():
                self._save()
            yield progress

    def _learn(self, piece: Batch, explain: Callable[[Exception, int], Exception]) -> Progress:
        """One piece. Whatever raises in here leaves nothing that could be saved, and the run where it was saved
        last."""
        self._whole = False
        try:
            progress = self._reader.read(piece)
        except Exception as error:
            raise explain(error, piece.first) from error
        if self._writer is not None:
            self._writer.add(progress.rows.table(), progress.reports, progress.rejected)
        for row in row_contents(piece, len(self._config.columns.inputs)):
            self._prefix.add(row)
        for rejected in progress.rejected:
            self._set_aside(rejected)
        for report in progress.reports:
            whose = "After" if report.stream is None else f"Stream {report.stream!r}, after"
            for warning in report.warnings:
                self._warn(f"{whose} {report.t:,} rows: {warning}")
        self._position, self.verdict = progress.position, None
        self._last_time = next(filter(None, reversed(piece.times or [])), self._last_time)
        self._whole = True
        return progress

    def _set_aside(self, rejected: Rejected) -> None:
        self._rejected += 1
        self._first_reason = self._first_reason or rejected.reason
        if self._rejected <= SHOWN:
            more = " Further ones are counted." if self._rejected == SHOWN else ""
            self._warn(f"{rejected.reason} The row is set aside.{more}")

    def _leaves(self) -> bool:
        """Whether to stop before all rows that have come are read. Rows of a pipe would not come again."""
        return self._stopped() and (self._holds != "rest" or self._writer is None)

    # ---- to disk and back --------------------------------------------------------------------------------------------
    def _resume(self, writer: RunWriter | MemoryRun) -> None:
        start = writer.resume(self._reader.blank, self._warn, may_go_back=self._holds == "all")
        if start is None:
            return
        record = start.record
        try:
            self._reader.restore(start.tree, record)
            self._position = self._saved = start.position
            self.verdict = self._saved_verdict = verdict_of(record)
            self._last_time, self._prefix = record["time"], Prefix.restored(record["source"])
            self._rejected, self._first_reason = int(record["rejected"]), str(record["first_reason"])
            differences = environment.differences(dict(record["environment"]))
        except (KeyError, TypeError, ValueError, IndexError) as error:  # its sums are right: not by chance
            raise RunError(f"The checkpoint at row {start.position:,} holds no usable record: {error!r}.") from error
        for sentence in differences:
            self._warn(sentence)

    def _overdue(self) -> bool:
        seconds = self._config.saving.checkpoint_seconds
        return bool(seconds) and time.monotonic() - self._saved_at >= seconds

    def _conclude(self) -> None:
        """Saves what has been learned, with the verdict of the end: also where a checkpoint happened to fall there."""
        try:
            if self._whole and self.verdict is None:
                self.verdict = self._reader.verdict(ended=True)
        finally:
            self._save(same_position=self.verdict != self._saved_verdict)

    def _save(self, same_position: bool = False) -> None:
        if self._writer is None or not self._whole or not self._position:
            return
        if self._position == self._saved and not same_position:
            return
        record: dict[str, Any] = {
            "time": self._last_time,
            "source": self._prefix.record(),
            "rejected": self._rejected,
            "first_reason": self._first_reason,
            "environment": environment.current(),
        }
        verdict = self.verdict or self._reader.verdict()
        record["verdict"] = None if verdict is None else verdict.record()
        self._whole = False  # a save that fails is not tried a second time
        self._writer.commit(self._position, self._reader.tree(), {**record, **self._reader.record()})
        self._whole, self._saved, self._saved_at = True, self._position, time.monotonic()
        self._saved_verdict = verdict
