"""One stream, and how many components its posterior has."""

from typing import Any

import jax
import numpy as np

from backstream.data.rows import Batch
from backstream.estimators import LogScore
from backstream.families.guided.family import PlannedFamily
from backstream.learning import Info, Report, Verdict, WatchedState
from backstream.learning.component_check import CHECKED_ROWS, SEVERAL, can_be_checked, log_score_gap
from backstream.learning.plan_check import NUM_PLACES, UNCHANGED, PlanNews
from backstream.learning.watched_learner import later
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected, decode_report, report_record

from .preparation import MOST_PLACES, Prepared, prepare
from .reader import Reader
from .results import OF_ROWS, Filtered, Progress

CHECKED_AFTER = 64, 256
"""Rows after which the posterior's plan is compared with the model for the first times. Later that is done after each
multiple of the monitor's window."""


class SingleReader(Reader):
    """Every row can be read as soon as it is there. One that cannot be used counts as missing."""

    most_rows = 256

    def __init__(self, model: StateSpaceModel, config: Config):
        self._model, self._config = model, config
        self._prepared: Prepared | None = None
        self._state: WatchedState | None = None
        self._latest: Report | None = None
        self._plan = UNCHANGED

    def blank(self, record: dict[str, Any]) -> Any:
        self._prepared = prepare(self._model, self._config, record)
        return self._prepared.blank()

    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        self._state, latest = tree, record.get("latest")
        self._latest = None if latest is None else decode_report(latest)
        self._plan = PlanNews.restored(record["plan"]) if "plan" in record else UNCHANGED

    def arrive(self, batch: Batch) -> None:
        pass

    def ready(self, waiting: int, ended: bool) -> int:
        return waiting

    def read(self, batch: Batch) -> Progress:
        dtype = self._config.precision
        ys, inputs = batch.ys.astype(dtype), None if batch.inputs is None else batch.inputs.astype(dtype)
        if self._prepared is None:
            self._prepared = prepare(self._model, self._config, {"inputs": None if inputs is None else inputs[0]})
        collected, reports = [], []
        while len(ys):
            # What is decided about the posterior is decided after a certain row, however the rows come.
            count = min(len(ys), self._undecided() or len(ys), self._until_checked())
            now, (ys, inputs) = (
                jax.tree.map(lambda leaf, part=part: leaf[part], (ys, inputs))
                for part in (slice(count), slice(count, None))
            )
            infos, said = self._learn(*now)
            collected += infos
            reports += said
        for report in reports:
            self._latest = later(self._latest, report)
        infos = jax.tree.map(lambda *parts: np.concatenate(parts), *collected)
        rows = Filtered(batch.first, batch.times, *(getattr(infos, name) for name in OF_ROWS))
        rejected = [
            Rejected(batch.first + i, None, problem.reason, problem.content)
            for i, problem in sorted(batch.problems.items())
        ]
        return Progress(batch.first + len(batch), rows, reports, rejected)

    def _learn(self, ys: np.ndarray, inputs: np.ndarray | None) -> tuple[list[Info], list[Report]]:
        assert self._prepared is not None
        undecided, already = self._undecided(), self._rows_read()
        until_checked = self._until_checked()
        self._state, infos, reports = _advance(self._prepared, self._state, ys, inputs)
        if until_checked == len(ys):
            self._check_plan(self._prepared, self._state)
        if undecided:
            first = jax.tree.map(np.array, self._state.first)
            for room, rows in zip(jax.tree.leaves(first), jax.tree.leaves((ys, inputs)), strict=True):
                room[already : already + len(ys)] = rows
            self._state = self._state._replace(first=first)
            if undecided == len(ys):
                self._decide(self._state)
        return infos, reports

    def _rows_read(self) -> int:
        return 0 if self._state is None else int(self._state.learner.t)

    def _undecided(self) -> int:
        """How many rows are still to come before the number of components is decided; 0 where it is."""
        assert self._prepared is not None
        return 0 if self._prepared.components is not None else CHECKED_ROWS - self._rows_read()

    def _until_checked(self) -> int:
        """How many rows are still to come before the plan is next compared with the model."""
        assert self._prepared is not None
        read, window = self._rows_read(), self._prepared.watched.monitor.window
        return min(row for row in (*CHECKED_AFTER, (read // window + 1) * window) if row > read) - read

    def _check_plan(self, prepared: Prepared, state: WatchedState) -> None:
        """Whether the model is what the posterior takes it to be. If not, it is read again where the states are, and
        the run goes on with what was found."""
        found, watched = prepared.watched.contradiction(state), prepared.watched
        self._plan = self._plan._replace(contradicted="" if found is None else found.sentence())
        scored = isinstance(watched.learner.estimator, LogScore)
        if found is None or not scored or len(prepared.places) + 2 * NUM_PLACES > MOST_PLACES:
            return
        places = [place.record() for place in (*prepared.places, *found.places)]
        again = prepare(self._model, self._config, {**prepared.record(), "places": places})
        assert isinstance(again.q, PlannedFamily) and isinstance(prepared.q, PlannedFamily)
        if again.q.plan == prepared.q.plan:
            return
        inputs = jax.tree.map(lambda leaf: leaf[0], again.example[1])
        self._prepared, self._state = again, again.watched.taken_over(again.q, state, inputs)
        self._plan = PlanNews(self._rows_read())

    def _decide(self, state: WatchedState) -> None:
        """Whether several components are needed, by the rows so far. If so, a run with several reads them again: from
        here on it is what it would have been with several from the first row on. Their results stay as they are."""
        assert self._prepared is not None
        q, watched, (ys, inputs) = self._prepared.q, self._prepared.watched, state.first
        p = watched.learner.current_model(state.learner)
        if not (can_be_checked(q) and log_score_gap(p, q, None, ys, inputs).is_clear()):
            self._prepared, self._state = self._prepared._replace(components=1), state._replace(first=None)
            return
        self._prepared = prepare(self._model, self._config, {**self._prepared.record(), "components": SEVERAL})
        self._state, _, _ = _advance(self._prepared, None, ys, inputs)

    def verdict(self, ended: bool = False) -> Verdict | None:
        if self._prepared is None or self._state is None:
            return None
        names = self._config.columns.observed
        return self._prepared.watched.verdict(self._state, self._latest, names, ended=ended, plan=self._plan)

    def tree(self) -> Any:
        return self._state

    def record(self) -> dict[str, Any]:
        assert self._prepared is not None
        latest = None if self._latest is None else report_record(self._latest)
        return {**self._prepared.record(), "latest": latest, "plan": list(self._plan)}


def _advance(
    prepared: Prepared, state: WatchedState | None, ys: np.ndarray, inputs: np.ndarray | None
) -> tuple[WatchedState, list[Info], list[Report]]:
    """Learns from rows; from the first on where there is no state yet."""
    watched, collected, reports = prepared.watched, [], []
    if state is None:
        first = None if inputs is None else inputs[:1]
        state, infos = watched.begin(prepared.q, ys[:1], first, key=prepared.key)
        if prepared.components is None:
            state = state._replace(first=prepared.first_rows())
        collected, ys, inputs = [infos], ys[1:], None if inputs is None else inputs[1:]
    if len(ys):
        state, infos, reports = watched.read(state, ys, inputs)
        collected.append(infos)
    return state, collected, reports
