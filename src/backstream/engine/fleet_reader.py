"""Many streams: a column names the stream of each row.

Rows are gathered into ticks by a rule that looks at the rows alone, never at how they arrive: a row opens a new tick
when its stream already has a row in the present one, when the present one is full (`tick_rows`), and after every
`checkpoint_every` rows. Where λ is common a tick is one step of it, and a row's result comes when its tick is closed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from backstream.data import parsing
from backstream.data.rows import Batch, Problem
from backstream.errors import InputError
from backstream.learning import Fleet, Panel, Report, Verdict
from backstream.learning.watched_learner import later
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected, decode_report, report_record

from .preparation import Prepared, prepare
from .reader import Reader
from .results import OF_ROWS, Filtered, Progress

LANES = 256
"""Streams that advance together, at most."""


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
    """The places of each stream's rows in a batch, in their order, without those that cannot be used."""
    found = dict[str, list[int]]()
    for i, key in enumerate(batch.keys or []):
        if key and i not in batch.problems:
            found.setdefault(key, []).append(i)
    return {key: np.asarray(rows) for key, rows in found.items()}


def with_elapsed(batch: Batch, where: Callable[[int], str]) -> Batch:
    """All rows of a source, with the time since the last row of the same stream as a further input. `where` is what a
    row's time is called in an error."""
    elapsed, problems = np.zeros((len(batch), 1)), dict(batch.problems)
    for rows in rows_of_streams(batch).values():
        before = None
        for i in rows.tolist():
            try:
                before, elapsed[i, 0] = parsing.since(before, (batch.times or [])[i])
            except ValueError as error:
                problems[i] = Problem(f"{where(i)} {error}.", "")
    inputs = elapsed if batch.inputs is None else np.column_stack([batch.inputs, elapsed])
    return replace(batch, inputs=inputs, problems=problems)


def _spread(values: np.ndarray, good: list[int], count: int) -> np.ndarray:
    """The values of some of `count` rows. The others are NaN, or True where it says that a row was refused."""
    blank = True if values.dtype == bool else np.nan
    spread = np.full((count, *values.shape[1:]), blank, values.dtype)
    spread[good] = values
    return spread


class FleetReader(Reader):
    """A row that cannot be used, or names no stream, is left out, and everything else goes on."""

    most_rows = 1 << 30

    def __init__(self, model: StateSpaceModel, config: Config, name: str, mesh: Mesh | None = None):
        self._model, self._config, self._name, self._mesh = model, config, name, mesh
        self._prepared: Prepared | None = None
        self._fleet: Fleet | None = None
        self._latest = dict[str, Report]()
        self._ticker, self._ticks = Ticker(config.fleet.tick_rows, config.saving.checkpoint_every), list[int]()

    def blank(self, record: dict[str, Any]) -> Any:
        return self._made(record).blank(record["fleet"])

    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        assert self._fleet is not None
        self._fleet.restore(tree, record["fleet"])
        self._latest = {name: decode_report(latest) for name, latest in record.get("latest", {}).items()}

    def arrive(self, batch: Batch) -> None:
        self._ticks += [self._ticker.place(batch.first + i, key) for i, key in enumerate(batch.keys or [])]

    def ready(self, waiting: int, ended: bool) -> int:
        if ended:
            self._ticker.close()
        if ended or not self._config.fleet.common:
            return waiting
        return int(np.searchsorted(np.asarray(self._ticks), self._ticker.open))

    def read(self, batch: Batch) -> Progress:
        fleet, keys = self._fleet or self._made({"inputs": self._first_inputs(batch)}), batch.keys or []
        ticks, self._ticks = np.asarray(self._ticks[: len(batch)], np.int64), self._ticks[len(batch) :]
        batch, elapsed = self._with_elapsed(fleet, batch)
        good = [i for i in range(len(batch)) if i not in batch.problems]
        parts = [] if batch.inputs is None else [batch.inputs[good]]
        parts += [] if elapsed is None else [elapsed[good, None]]
        dtype = self._config.precision
        infos, reports = fleet.read(
            [keys[i] or "" for i in good],
            ticks[good],
            batch.ys[good].astype(dtype),
            np.column_stack(parts).astype(dtype) if parts else None,
            batch.first + np.asarray(good, np.int64),
            None if batch.times is None else [batch.times[i] for i in good],
        )
        fleet.row = batch.first + len(batch)
        for report in reports:
            self._latest[report.stream or ""] = later(self._latest.get(report.stream or ""), report)
        self._latest = {name: report for name, report in self._latest.items() if name in fleet.members}
        rejected = [
            Rejected(batch.first + i, keys[i], problem.reason, problem.content)
            for i, problem in sorted(batch.problems.items())
        ]
        spread = (_spread(getattr(infos, name), good, len(batch)) for name in OF_ROWS)
        rows = Filtered(batch.first, batch.times, *spread, keys=keys)
        return Progress(fleet.row, rows, reports, rejected)

    def verdict(self, ended: bool = False) -> Verdict | None:
        if self._fleet is None:
            return None
        return self._fleet.verdict(self._latest, self._config.columns.observed, ended=ended)

    def tree(self) -> Any:
        assert self._fleet is not None
        self._fleet.tidy()
        return self._fleet.tree()

    def record(self) -> dict[str, Any]:
        assert self._prepared is not None and self._fleet is not None
        latest = {name: report_record(report) for name, report in self._latest.items()}
        return {**self._prepared.record(), "fleet": self._fleet.record(), "latest": latest}

    def _made(self, record: dict[str, Any]) -> Fleet:
        self._prepared = prepare(self._model, self._config, record)
        self._fleet = assemble(self._prepared, self._config, self._mesh)
        return self._fleet

    def _first_inputs(self, batch: Batch) -> np.ndarray | None:
        """Those of the first row that can be used; zeros where there is none. No time has passed before it."""
        if not self._config.columns.has_inputs():
            return None
        good = (i for i in range(len(batch)) if i not in batch.problems)
        known = np.zeros(len(self._config.columns.inputs))
        if batch.inputs is not None:
            known = next((batch.inputs[i] for i in good), known)
        return np.append(known, 0.0) if self._config.columns.elapsed else known

    def _with_elapsed(self, fleet: Fleet, batch: Batch) -> tuple[Batch, np.ndarray | None]:
        """The time since the last row of the same stream, where that is an input. A row whose time goes back has a
        problem."""
        if not self._config.columns.elapsed:
            return batch, None
        elapsed, problems, last = np.zeros(len(batch)), dict(batch.problems), dict[str, tuple[int, str | None]]()
        limit = self._config.fleet.forget_after
        for i, key in enumerate(batch.keys or []):
            if i in problems or key is None:
                continue
            member, row = fleet.members.get(key), batch.first + i
            seen, before = last.get(key, (row, None) if member is None else (member.last_row, member.last_time))
            if limit and row - seen > limit:  # it has ended, and starts again
                before = None
            try:
                time, elapsed[i] = parsing.since(before, batch.times[i] if batch.times else None)
                last[key] = row, time
            except ValueError as error:
                where = f"{self._name}, row {batch.first + i + 1}, column {self._config.columns.time!r}"
                problems[i] = Problem(f"{where} {error}.", "")
        return replace(batch, problems=problems), elapsed
