"""An open run: what it wrote, and what it learned, ready to be used."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from backstream import posterior
from backstream.families import BackwardFamily
from backstream.learning import Fleet, LearnerState, Report
from backstream.models import StateSpaceModel

from .catalogue import describe, find_again
from .checkpoints import Checkpoints
from .errors import InputError
from .keyed import assemble, rows_of_streams, with_elapsed
from .runs import CHECKPOINTS, of_run, open_config, read_filtered, read_reports
from .sources import Batch, Format, open_source, read_all
from .streaming import Prepared, prepare


class Learned(NamedTuple):
    """The newest checkpoint of a run."""

    position: int
    """How many rows it has read."""
    model: StateSpaceModel
    """With the averaged θ, where that is learned."""
    q: BackwardFamily
    """With the averaged λ: the result. Where each of many streams has its own, what they started from."""
    state: LearnerState | None
    """None where each of many streams has its own: see `fleet`."""
    fleet: Fleet | None = None
    """The streams, where there are many."""


class Run:
    """A run directory, opened for reading.

        run = Run("run/")
        run.filtered().to_pandas()
        run.smooth("obs.csv").interval(0.9)
        run.forecast(50).observations.mean()

    `model` is your own model, or its name (`file.py:Class` or `package.module:Class`). A shipped model that was
    streamed by its name, and a file that you have trusted (`backstream trust run/`), are found again without it: a run
    directory alone has no code run. A model whose source or values have changed is refused.
    """

    def __init__(self, path: str | Path, model: StateSpaceModel | str | None = None):
        self.path, self.config = Path(path), open_config(Path(path))
        self._model = model
        self.warnings: list[str] = []
        """What could not be read or used, and was got round."""

    def filtered(self) -> pa.Table:
        """Means and standard deviations of the state at each row, as they were when the row was read."""
        return read_filtered(self.path)

    def reports(self) -> list[Report]:
        """What the monitor said."""
        return read_reports(self.path)

    @cached_property
    def learned(self) -> Learned:
        """What the newest checkpoint holds; `warnings` names any that is damaged."""
        model = self._checked(self._model) if isinstance(self._model, StateSpaceModel) else self._found(self._model)
        checkpoints = Checkpoints(self.path / CHECKPOINTS, self.config.saving.keep)
        made: list[tuple[Prepared, Fleet | None]] = []

        def like(record: dict[str, Any]) -> Any:
            prepared = prepare(model, self.config, record.get("inputs"))
            fleet = None if self.config.columns.key is None else assemble(prepared, self.config)
            made[:] = [(prepared, fleet)]
            return prepared.blank() if fleet is None else fleet.blank(record["fleet"])

        checkpoint = checkpoints.newest(of_run(self.path, self.config, like), self.warnings.append)
        if checkpoint is None:
            raise InputError(f"{self.path} holds no checkpoint yet: nothing has been learned.")
        prepared, fleet = made[0]
        learner = prepared.watched.learner
        if fleet is None:
            state = checkpoint.tree.learner
            return Learned(checkpoint.position, learner.current_model(state), state.result(), state)
        fleet.restore(checkpoint.tree, checkpoint.record["fleet"])
        state = fleet.state.common
        if state is None:
            return Learned(checkpoint.position, model, prepared.q, None, fleet)
        return Learned(checkpoint.position, learner.current_model(state), state.result(), state, fleet)

    def stream(self, name: str) -> LearnerState:
        """One of many streams, as its learner alone would have it: its `average`, its `filtered` state."""
        fleet = self.learned.fleet
        if fleet is None:
            raise InputError(f"{self.path} is a run of one stream.")
        if name not in fleet.members:
            raise InputError(f"{self.path} has no stream {name!r}: it has ended, or was never there.")
        return fleet.panel.stream(fleet.state, fleet.members[name].slot)

    def streams(self) -> list[str]:
        """The names of the live streams, where there are many."""
        fleet = self.learned.fleet
        return [] if fleet is None else sorted(fleet.members)

    def data(self, source: Any, *, format: Format | None = None) -> Batch:
        """All of a source, by the columns of the run and in its precision."""
        dtype, columns = self.config.precision, self.config.columns
        opened = open_source(source, columns, format=format, dtype=dtype)
        batch = read_all(opened)
        if batch.keys is not None and columns.elapsed:
            batch = with_elapsed(batch, lambda row: f"{opened.name}, row {row + 1}, column {columns.time!r}")
        inputs = None if batch.inputs is None else batch.inputs.astype(dtype)
        return batch._replace(ys=batch.ys.astype(dtype), inputs=inputs)

    def filter(self, source: Any) -> posterior.Marginals:
        """The states behind each row of a source given the rows up to it, under what was learned in the end. A
        source is a file, an array, a table, or what `data` returned."""
        batch = source if isinstance(source, Batch) else self.data(source)
        return self._by_stream(batch, lambda p, q, ys, inputs, _: posterior.filter(p, q, ys, inputs))

    def smooth(self, source: Any) -> posterior.Marginals:
        """The states behind all of a source given all of it, under what was learned."""
        batch = source if isinstance(source, Batch) else self.data(source)
        return self._by_stream(
            batch,
            lambda p, q, ys, inputs, length: posterior.smooth(p, q, ys, inputs, key=self._key(1), length=length),
        )

    def _by_stream(self, batch: Batch, law: Callable[..., posterior.Marginals]) -> posterior.Marginals:
        """The law of each row, in the order of the rows; where there are many streams, for each by itself. Rows that
        cannot be used are NaN, and `warnings` says why."""
        if batch.keys is None:
            return law(self.learned.model, self.learned.q, batch.ys, batch.inputs, None)
        d, fleet = self.learned.q.state_dim, None if self.config.fleet.common else self.learned.fleet
        laws = [np.full((len(batch.ys), *shape), np.nan, batch.ys.dtype) for shape in ((d,), (d, d))]
        for row, problem in (batch.problems or {}).items():
            key = batch.keys[row]
            self._warn(f"{problem} " + (f"The stream {key!r} ends there." if key else "It is passed over."))
        for name, rows in rows_of_streams(batch).items():
            if fleet is not None and name not in fleet.members:
                self._warn(f"{self.path} holds nothing of the stream {name!r}: it has ended, or was never there.")
                continue
            p, q = self.learned.model, self.learned.q
            if fleet is not None:
                state = self.stream(name)
                p, q = fleet.panel.learner.current_model(state), state.result()
            data = _filled_up(batch.ys[rows], None if batch.inputs is None else batch.inputs[rows])
            found = law(p, q, *data, len(rows))
            for whole, part in zip(laws, found, strict=True):
                whole[rows] = np.asarray(part)[: len(rows)]
        return posterior.Marginals(*map(jnp.asarray, laws))

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def forecast(
        self, horizon: int, inputs: Any = None, num_samples: int = 1000, stream: str | None = None
    ) -> posterior.Forecast:
        """The next states and observations after the last row read, of one `stream` where there are many. `inputs`
        [horizon, k], where the model has any."""
        if inputs is None and self.config.columns.has_inputs():
            raise InputError(f"The model has inputs: give those of the next {horizon} rows.")
        learned, model = self.learned, self.learned.model
        state = learned.state
        if learned.fleet is not None:
            if stream is None:
                raise InputError(f"{self.path} is a run of many streams: say of which.")
            state = self.stream(stream)
            model = learned.fleet.panel.learner.current_model(state)
        assert state is not None
        mean, cov = state.result().moments(state.result_state())
        law = posterior.Marginals(mean[None], cov[None])
        return posterior.forecast(model, law, horizon, num_samples, inputs, key=self._key(2))

    def _key(self, purpose: int) -> jax.Array:
        """Draws that are the same each time, and not those of the learner."""
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.learning.seed), 2**31), purpose)

    def _found(self, name: str | None) -> StateSpaceModel:
        return find_again(self.config.model, self.path, name)

    def _checked(self, model: StateSpaceModel) -> StateSpaceModel:
        if describe(model).identity.values != self.config.model.identity.values:
            raise InputError(f"This model is not the one that {self.path} was made with: its values differ.")
        return model


def _filled_up(ys: np.ndarray, inputs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """With missing rows up to the next power of two: streams of a thousand lengths need few compiled programs."""
    more = max(16, 1 << (len(ys) - 1).bit_length()) - len(ys)
    ys = np.concatenate([ys, np.full((more, ys.shape[1]), np.nan, ys.dtype)])
    return ys, None if inputs is None else np.concatenate([inputs, np.repeat(inputs[-1:], more, 0)])
