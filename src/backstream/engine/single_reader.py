"""One stream."""

from typing import Any

import jax
import numpy as np

from backstream.data.rows import Batch
from backstream.learning import Report, Verdict, WatchedState
from backstream.learning.watched_learner import later
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected, decode_report, report_record

from .preparation import Prepared, prepare
from .reader import Reader
from .results import OF_ROWS, Filtered, Progress


class SingleReader(Reader):
    """Every row can be read as soon as it is there. One that cannot be used counts as missing."""

    most_rows = 256

    def __init__(self, model: StateSpaceModel, config: Config):
        self._model, self._config = model, config
        self._prepared: Prepared | None = None
        self._state: WatchedState | None = None
        self._latest: Report | None = None

    def blank(self, record: dict[str, Any]) -> Any:
        self._prepared = prepare(self._model, self._config, record.get("inputs"))
        return self._prepared.blank()

    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        self._state, latest = tree, record.get("latest")
        self._latest = None if latest is None else decode_report(latest)

    def arrive(self, batch: Batch) -> None:
        pass

    def ready(self, waiting: int, ended: bool) -> int:
        return waiting

    def read(self, batch: Batch) -> Progress:
        dtype, collected, reports = self._config.precision, [], []
        ys, inputs = batch.ys.astype(dtype), None if batch.inputs is None else batch.inputs.astype(dtype)
        if self._prepared is None:
            self._prepared = prepare(self._model, self._config, None if inputs is None else inputs[0])
        watched = self._prepared.watched
        if self._state is None:
            first = None if inputs is None else inputs[:1]
            self._state, infos = watched.begin(self._prepared.q, ys[:1], first, key=self._prepared.key)
            collected, ys, inputs = [infos], ys[1:], None if inputs is None else inputs[1:]
        if len(ys):
            self._state, infos, reports = watched.read(self._state, ys, inputs)
            collected.append(infos)
            for report in reports:
                self._latest = later(self._latest, report)
        infos = jax.tree.map(lambda *parts: np.concatenate(parts), *collected)
        rows = Filtered(batch.first, batch.times, *(getattr(infos, name) for name in OF_ROWS))
        rejected = [
            Rejected(batch.first + i, None, problem.reason, problem.content)
            for i, problem in sorted(batch.problems.items())
        ]
        return Progress(batch.first + len(batch), rows, reports, rejected)

    def verdict(self) -> Verdict | None:
        if self._prepared is None or self._state is None:
            return None
        return self._prepared.watched.verdict(self._state, self._latest, self._config.columns.observed)

    def tree(self) -> Any:
        return self._state

    def record(self) -> dict[str, Any]:
        assert self._prepared is not None
        latest = None if self._latest is None else report_record(self._latest)
        return {"inputs": self._prepared.first_inputs(), "latest": latest}
