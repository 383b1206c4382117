"""A result that is stored in a run directory."""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from backstream.errors import InputError
from backstream.learning import Fleet, Report, Verdict
from backstream.models import StateSpaceModel
from backstream.runs.checkpoints import Checkpoint, Checkpoints
from backstream.runs.config import Config
from backstream.runs.logs import Rejected
from backstream.runs.model_registry import describe, find_again
from backstream.runs.store import (
    CHECKPOINTS,
    check_directory,
    of_run,
    open_config,
    read_filtered,
    read_rejected,
    read_reports,
    read_verdict,
)

from .advance import Warn, continued, write
from .filtered_rows import FilteredRows
from .fleet_reader import assemble
from .preparation import Prepared, prepare
from .result import Learned, Result


class Run(Result):
    """A result in a run directory. `bs.load` opens one.

    Args:
        path: The directory.
        model: Your model, or its name (`file.py:Class` or `package.module:Class`). Not needed for built-in models that
            were streamed by name, and for files that you have trusted with `backstream trust run/`. Opening a run never
            executes other code. It is an error if the source or the values of the model have changed.
        given: The sources and inputs that the run has read, if they are known.

    Example:
        ```python
        run = bs.load("run/")
        run.filtered.to_pandas()
        run.smooth("obs.csv").interval(0.9)
        run.forecast(50).observations.mean
        ```
    """

    def __init__(
        self,
        path: str | Path,
        model: StateSpaceModel | str | None = None,
        given: tuple[tuple[Any, Any], ...] = (),
    ):
        self.path, self.config = Path(path), open_config(Path(path))
        self._model, self._name, self._given = model, str(path), given
        self.warnings: list[str] = []
        """Data that could not be read or used, and was left out."""

    @property
    def filtered(self) -> FilteredRows:
        return FilteredRows(read_filtered(self.path))

    @property
    def reports(self) -> list[Report]:
        return read_reports(self.path)

    @property
    def rejected(self) -> list[Rejected]:
        return read_rejected(self.path)

    @property
    def health(self) -> Verdict:
        verdict = read_verdict(self.path, self.config)
        if verdict is None:
            raise InputError(f"{self.path} has no checkpoint yet: nothing has been learned.")
        return verdict

    def _position(self) -> int | None:
        positions = Checkpoints(self.path / CHECKPOINTS, self.config.saving.keep).positions()
        return positions[-1] if positions and read_verdict(self.path, self.config) is not None else None

    @cached_property
    def learned(self) -> Learned:
        """The contents of the newest checkpoint. `warnings` lists damaged checkpoints."""
        model = self._given_model()
        checkpoints = Checkpoints(self.path / CHECKPOINTS, self.config.saving.keep)
        checkpoint = checkpoints.newest(
            of_run(self.path, self.config, lambda record: blank(model, self.config, record)), self.warnings.append
        )
        if checkpoint is None:
            raise InputError(f"{self.path} has no checkpoint yet: nothing has been learned.")
        return restore(model, self.config, checkpoint)

    def learn(self, source: Any, inputs: Any = None, *, progress: bool = True, warn: Warn = print) -> "Run":
        """Learns from more rows, in the same directory."""
        opened = continued(self.config, source, inputs)
        model = self._given_model()
        write(model, self.path, self.config, opened, progress, warn, holds="rest")
        return Run(self.path, model, (*self._given, (source, inputs)) if self._given else ())

    def save(self, path: str | Path) -> "Run":
        """Copies the run to another directory."""
        check_directory(Path(path), resume=False)
        shutil.copytree(self.path, Path(path), symlinks=True, dirs_exist_ok=True)  # what links lead to stays there
        return Run(path, self._given_model(), self._given)

    def _given_model(self) -> StateSpaceModel:
        return self._checked(self._model) if isinstance(self._model, StateSpaceModel) else self._found(self._model)

    def _found(self, name: str | None) -> StateSpaceModel:
        return find_again(self.config.model, self.path, name)

    def _checked(self, model: StateSpaceModel) -> StateSpaceModel:
        if describe(model).identity.values != self.config.model.identity.values:
            raise InputError(f"This model is not the one that {self.path} was made with: its values differ.")
        return model


def _prepared(model: StateSpaceModel, config: Config, record: dict[str, Any]) -> tuple[Prepared, Fleet | None]:
    prepared = prepare(model, config, record)
    return prepared, None if config.columns.key is None else assemble(prepared, config)


def blank(model: StateSpaceModel, config: Config, record: dict[str, Any]) -> Any:
    """The shapes of a state, into which a checkpoint is read."""
    prepared, fleet = _prepared(model, config, record)
    return prepared.blank() if fleet is None else fleet.blank(record["fleet"])


def restore(model: StateSpaceModel, config: Config, checkpoint: Checkpoint) -> Learned:
    """What a checkpoint holds."""
    prepared, fleet = _prepared(model, config, checkpoint.record)
    learner = prepared.watched.learner
    if fleet is None:
        state = checkpoint.tree.learner
        return Learned(checkpoint.position, learner.current_model(state), state.result(), state)
    fleet.restore(checkpoint.tree, checkpoint.record["fleet"])
    state = fleet.state.common
    if state is None:
        return Learned(checkpoint.position, model, prepared.q, None, fleet)
    return Learned(checkpoint.position, learner.current_model(state), state.result(), state, fleet)
