"""From a source of many streams into a run: a column names the stream of each row.

Rows are gathered into ticks by a rule that looks at the rows alone, never at how they arrive: a row opens a new tick
when its stream already has a row in the present one, when the present one is full (`tick_rows`), and after every
`checkpoint_every` rows. Where λ is common a tick is one step of it, and a row's result comes when its tick is closed.
"""

from collections.abc import Callable, Generator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from backstream.learning import Fleet, Panel
from backstream.models import StateSpaceModel

from . import cells
from .config import Config
from .errors import InputError, RunError
from .runs import RunWriter
from .sources import Batch, Source
from .streaming import Filtered, Prepared, Progress, check_fit, prepare

LANES = 256
"""Streams that advance together, at most."""
SHOWN = 3
"""How many of the streams that were set aside are named at the end."""


class Ticker:
    """The rule.

    >>> ticker = Ticker(most=3, every=100)
    >>> [ticker.place(row, name) for row, name in enumerate("abacdeb")]
    [0, 0, 1, 1, 1, 2, 2]
    """

    def __init__(self, most: int, every: int):
        self._most, self._every, self._rows, self._names = most, every, 0, set()
        self.open = 0
        """The tick that may still get rows."""

    def place(self, row: int, name: str | None) -> int:
        """The tick of the next row."""
        if name in self._names:
            self.close()
        tick = self.open
        self._rows += 1
        self._names.add(name)
        if self._rows == self._most or (row + 1) % self._every == 0:
            self.close()
        return tick

    def close(self) -> None:
        if self._rows:
            self.open += 1
            self._rows, self._names = 0, set()


def assemble(prepared: Prepared, config: Config, mesh: Mesh | None = None) -> Fleet:
    """The fleet that fits a model and a configuration, without streams."""
    u = None if prepared.example[1] is None else prepared.example[1][0]
    settings = config.fleet
    placed = {"lanes": min(LANES, settings.tick_rows), "mesh": mesh}
    try:
        panel = Panel(prepared.watched.learner, prepared.q, u, key=prepared.key, common=settings.common, **placed)
    except ValueError as error:
        raise InputError(str(error)) from error
    return Fleet(panel, prepared.watched.monitor, settings)


def rows_of_streams(batch: Batch) -> dict[str, np.ndarray]:
    """The places of each stream's rows in a batch, in their order, up to the first that cannot be used."""
    found, over, problems = dict[str, list[int]](), set[str](), batch.problems or {}
    for i, key in enumerate(batch.keys or []):
        if key and i in problems:
            over.add(key)
        if key and key not in over:
            found.setdefault(key, []).append(i)
    return {key: np.asarray(rows) for key, rows in found.items()}


def with_elapsed(batch: Batch, where: Callable[[int], str]) -> Batch:
    """All rows of a source, with the time since the last row of the same stream as a further input. `where` is what a
    row's time is called in an error."""
    elapsed, problems = np.zeros((len(batch.ys), 1)), dict(batch.problems or {})
    for rows in rows_of_streams(batch).values():
        before = None
        for i in rows.tolist():
            try:
                before, elapsed[i, 0] = since(before, (batch.times or [])[i])
            except ValueError as error:
                problems[i] = RunError(f"{where(i)} {error}.")
                break
    inputs = elapsed if batch.inputs is None else np.column_stack([batch.inputs, elapsed])
    return batch._replace(inputs=inputs, problems=problems)


def since(before: str | None, time: str | None) -> tuple[str | None, float]:
    """A time, and the seconds that it lies after the one before; ValueError where it lies earlier."""
    now = cells.seconds(time)
    seconds = 0.0 if before is None else now - cells.seconds(before)
    if seconds < 0:
        raise ValueError(f"goes back in time, to {time}")
    return time, seconds


class Rows(NamedTuple):
    """Rows that wait for their tick to be closed."""

    batch: Batch
    ticks: np.ndarray

    def __len__(self) -> int:
        return len(self.batch.ys)

    def part(self, begin: int, end: int) -> "Rows":
        batch, here = self.batch, slice(begin, end)
        problems = {i - begin: problem for i, problem in (batch.problems or {}).items() if begin <= i < end}
        return Rows(
            Batch(
                batch.first + begin,
                batch.ys[here],
                None if batch.inputs is None else batch.inputs[here],
                None if batch.times is None else batch.times[here],
                (batch.keys or [])[here],
                problems,
            ),
            self.ticks[here],
        )

    def then(self, other: "Rows") -> "Rows":
        one, two = self.batch, other.batch
        problems = (one.problems or {}) | {i + len(self): problem for i, problem in (two.problems or {}).items()}
        inputs = None if one.inputs is None or two.inputs is None else np.concatenate([one.inputs, two.inputs])
        times = None if one.times is None or two.times is None else one.times + two.times
        ys, keys = np.concatenate([one.ys, two.ys]), (one.keys or []) + (two.keys or [])
        return Rows(Batch(one.first, ys, inputs, times, keys, problems), np.concatenate([self.ticks, other.ticks]))


class Reader:
    """What a run with many streams knows while it goes on."""

    def __init__(self, fleet: Fleet, source: Source, config: Config, warn: Callable[[str], None]):
        self.fleet, self.aside = fleet, dict[str, str]()
        self._source, self._config, self._warn, self._nameless = source, config, warn, 0

    def read(self, rows: Rows) -> Progress:
        """Rows whose ticks are closed. A stream with a row that cannot be used is set aside."""
        batch, keys = rows.batch, rows.batch.keys or []
        good, elapsed, times = [], [], dict[str, str | None]()
        ended = []
        for i, key in enumerate(keys):
            problem = (batch.problems or {}).get(i)
            if key is not None and key in self.aside:
                continue
            if problem is None and self._config.columns.elapsed:
                try:
                    elapsed.append(self._elapsed(key or "", batch.times[i] if batch.times else None, times))
                except ValueError as error:
                    where = f"{self._source.name}, row {batch.first + i + 1}, column {self._config.columns.time!r}"
                    problem = RunError(f"{where} {error}.")
            if problem is None:
                good.append(i)
                continue
            if not key:
                self._nameless += 1
                if self._nameless == 1:
                    self._warn(f"{problem} It is passed over, and so will be others like it.")
                continue
            self.aside[key] = str(problem)
            ended.append(key)
            self._warn(f"{problem} The stream {key!r} is set aside from here on; the others go on.")
        infos, reports = self._learn(rows, good, elapsed)
        for key in ended:
            if key in self.fleet.members:
                self.fleet.end(key)
        self.fleet.row = batch.first + len(rows)
        mean = np.full((len(rows), infos.mean.shape[1]), np.nan, infos.mean.dtype)
        std, refused = mean.copy(), np.ones(len(rows), bool)
        mean[good], std[good], refused[good] = infos.mean, infos.std, infos.refused
        return Progress(batch.first + len(rows), Filtered(batch.first, batch.times, mean, std, refused, keys), reports)

    def _learn(self, rows: Rows, good: list[int], elapsed: list[float]) -> Any:
        batch, dtype = rows.batch, self._config.precision
        parts = [] if batch.inputs is None else [batch.inputs[good]]
        if self._config.columns.elapsed:
            parts.append(np.asarray(elapsed)[:, None])
        inputs = np.column_stack(parts).astype(dtype) if parts else None
        names = [(batch.keys or [])[i] or "" for i in good]
        times = None if batch.times is None else [batch.times[i] for i in good]
        numbers = batch.first + np.asarray(good, np.int64)
        try:
            return self.fleet.read(names, rows.ticks[good], batch.ys[good].astype(dtype), inputs, numbers, times)
        except ValueError as error:
            raise RunError(f"{self._source.name} cannot be learned from: {error}") from error

    def _elapsed(self, key: str, time: str | None, times: dict[str, str | None]) -> float:
        """Since the last row of the same stream; `times` are those of the rows that the fleet does not know yet."""
        member = self.fleet.members.get(key)
        before = times.get(key, None if member is None else member.last_time)
        times[key], elapsed = since(before, time)
        return elapsed

    def record(self, last_time: str | None) -> dict[str, Any]:
        return {"time": last_time, "fleet": self.fleet.record(), "aside": self.aside, "nameless": self._nameless}

    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        self.fleet.restore(tree, record["fleet"])
        self.aside, self._nameless = record["aside"], record["nameless"]

    def conclude(self) -> None:
        """Raises RunError where not every stream could be read to its end."""
        if self.aside:
            names = ", ".join(repr(name) for name in list(self.aside)[:SHOWN])
            more = f" and {len(self.aside) - SHOWN} more" if len(self.aside) > SHOWN else ""
            raise RunError(
                f"{len(self.aside)} of the streams could not be read to the end ({names}{more}), the first because: "
                f"{next(iter(self.aside.values()))} All others were."
            )
        if self._nameless:
            raise RunError(f"{self._nameless} rows of {self._source.name} named no stream, and were passed over.")


def _first_inputs(batch: Batch, config: Config) -> np.ndarray | None:
    """Those of the first row. No time has passed before it, in any stream."""
    if not config.columns.has_inputs():
        return None
    known = np.zeros(0) if batch.inputs is None else batch.inputs[0]
    return np.append(known, 0.0) if config.columns.elapsed else known


def learn(
    model: StateSpaceModel,
    source: Source,
    config: Config,
    writer: RunWriter | None,
    *,
    mesh: Mesh | None = None,
    skip: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Generator[Progress, None, None]:
    """As `streaming.learn`, for many streams. When it is stopped, rows of a tick that is not closed yet are left for
    the next time, or, if they came through a pipe and will not come again, used at once."""
    check_fit(model, config)
    made: list[tuple[Prepared, Fleet]] = []

    def make(inputs: Any) -> Fleet:
        prepared = prepare(model, config, inputs)
        made[:] = [(prepared, assemble(prepared, config, mesh))]
        return made[0][1]

    start = None if writer is None else writer.resume(lambda r: make(r.get("inputs")).blank(r["fleet"]), warn)
    position, last_time = (0, None) if start is None else (start.position, start.record["time"])
    batches = source.batches(position if skip else 0)
    if not made:
        first = next(batches, None)
        if first is None:
            return
        make(_first_inputs(first, config))
        batches = chain([first], batches)
    prepared, fleet = made[0]
    reader = Reader(fleet, source, config, warn)
    if start is not None:
        reader.restore(start.tree, start.record)
    saved, every, finished = position, config.saving.checkpoint_every, False
    ticker, waiting, arrived = Ticker(config.fleet.tick_rows, every), None, position

    def save() -> None:
        nonlocal saved
        if writer is not None and position > saved:
            fleet.tidy()
            record = {**reader.record(last_time), "inputs": prepared.first_inputs()}
            writer.commit(position, fleet.tree(), record)
            saved = position

    def read(closed: int) -> Generator[Progress, None, None]:
        """The first rows that wait, cut where a checkpoint falls."""
        nonlocal waiting, position, last_time
        while waiting is not None and closed:
            count = min(closed, every - position % every)
            piece, waiting = waiting.part(0, count), waiting.part(count, len(waiting))
            progress = reader.read(piece)
            position, closed = progress.position, closed - count
            last_time = piece.batch.times[-1] if piece.batch.times else None
            if writer is not None:
                writer.add(progress.rows.table(), progress.reports)
            if position % every == 0:
                save()
            yield progress
            if stopped() and skip:
                return

    try:
        for batch in batches:
            ticks = [ticker.place(arrived + i, key) for i, key in enumerate(batch.keys or [])]
            fresh = Rows(batch._replace(first=arrived), np.asarray(ticks, np.int64))
            arrived += len(fresh)
            waiting = fresh if waiting is None else waiting.then(fresh)
            closed = int(np.searchsorted(waiting.ticks, ticker.open)) if config.fleet.common else len(waiting)
            yield from read(closed)
            if stopped() and skip:
                return
        yield from read(0 if waiting is None else len(waiting))
        finished = not stopped()
    except KeyboardInterrupt:
        saved = position  # it may have come in the middle of a step, which uses its state up: nothing to save
        raise
    finally:
        save()
    if finished:
        reader.conclude()
