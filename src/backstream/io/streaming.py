"""From a source into a run: observations are read as they come, learned from, and their results written down."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
from jaxtyping import Array

from backstream.families import BackwardFamily
from backstream.learning import Report, WatchedLearner, WatchedState, build
from backstream.models import StateSpaceModel, check_model

from .config import Config
from .errors import InputError, RunError
from .runs import RunWriter
from .sources import Batch, Source

PIECE = 256
"""Observations between two looks at whether to stop."""


class Filtered(NamedTuple):
    """What is known of the state at each of some rows, as it was when the row was read."""

    first: int
    times: list[str | None] | None
    mean: np.ndarray
    std: np.ndarray
    refused: np.ndarray
    keys: list[str | None] | None = None
    """The stream of each, where there are many."""

    def table(self) -> pa.Table:
        columns: dict[str, Any] = {"row": np.arange(self.first, self.first + len(self.mean))}
        if self.keys is not None:
            columns["key"] = pa.array(self.keys, pa.string())
        if self.times is not None:
            columns["time"] = pa.array(self.times, pa.string())
        columns["refused"] = self.refused
        for name, values in (("mean", self.mean), ("std", self.std)):
            columns |= {f"{name}_{i}": np.ascontiguousarray(values[:, i]) for i in range(values.shape[1])}
        return pa.table(columns)


class Prepared(NamedTuple):
    """A learner that fits a model and a configuration."""

    watched: WatchedLearner
    q: BackwardFamily
    key: Array
    example: tuple[np.ndarray, np.ndarray | None]
    """A row of observations, whose shape and type are what counts, and the inputs of the first row, if there are
    any."""

    def first_inputs(self) -> list[float] | None:
        """As a checkpoint records them."""
        return None if self.example[1] is None else self.example[1][0].tolist()

    def blank(self) -> WatchedState:
        """The shapes of its state, into which a checkpoint is read."""
        return self.watched.blank(self.q, *self.example, key=self.key)


def check_fit(model: StateSpaceModel, config: Config) -> None:
    """Raises InputError where the model does not fit the columns or the precision. No data is needed."""
    dtype, columns = config.precision, config.columns
    if np.dtype(dtype) != jax.dtypes.canonicalize_dtype(float):
        raise InputError(f"The run is in {dtype}: set jax_enable_x64 to {dtype == 'float64'} before any array is made.")
    u = np.zeros(len(columns.inputs) + columns.elapsed, dtype) if columns.has_inputs() else None
    try:
        shape = check_model(model, u)
    except (ValueError, TypeError, IndexError) as error:
        inputs = f"the inputs {', '.join(columns.inputs)}" if columns.inputs else "no input columns"
        raise InputError(
            f"The model cannot be used with {inputs}; choose its input columns by name. {error}"
        ) from error
    if shape.obs_dim != len(columns.observed):
        raise InputError(
            f"The model observes {shape.obs_dim} columns, but the source gives {len(columns.observed)} "
            f"({', '.join(columns.observed)}): choose them by name, or change the model's dimension."
        )


def prepare(model: StateSpaceModel, config: Config, inputs: Any) -> Prepared:
    """The learner of a run. `inputs` are those of its first row, None where the model has none: the posterior reads the
    model with them before it reads any row."""
    check_fit(model, config)
    columns = config.columns
    expected = (len(columns.inputs) + columns.elapsed,) if columns.has_inputs() else None
    try:
        u = None if inputs is None else np.asarray(inputs, config.precision)
        if expected != (None if u is None else u.shape):
            raise ValueError(f"The first row must have {expected or 'no'} inputs, not {inputs!r}.")
        watched, q, key = build(model, config.learning, u)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    row = np.full((1, len(columns.observed)), np.nan, config.precision)
    return Prepared(watched, q, key, (row, None if u is None else u[None]))


class Progress(NamedTuple):
    """What a stream tells its caller after each piece."""

    position: int
    rows: Filtered
    reports: list[Report]


def learn(
    model: StateSpaceModel,
    source: Source,
    config: Config,
    writer: RunWriter | None,
    *,
    skip: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Generator[Progress, None, None]:
    """Reads a source to its end, or until `stopped()`, telling of each piece.

    With a writer, what it already holds is continued, and everything is saved at every `checkpoint_every` rows, at the
    end, and before any error in the data, or in the caller, gets out. `skip` says that the source has the rows that the
    run has read: they are passed over. A pipe may go on where it was instead.
    """
    check_fit(model, config)
    prepared: Prepared | None = None

    def blank(record: dict[str, Any]) -> WatchedState:
        nonlocal prepared
        prepared = prepare(model, config, record.get("inputs"))
        return prepared.blank()

    start = None if writer is None else writer.resume(blank, warn)
    position, state, last_time = (
        (0, None, None) if start is None else (start.position, start.tree, start.record.get("time"))
    )
    saved, every = position, config.saving.checkpoint_every

    def save() -> None:
        nonlocal saved
        if writer is not None and prepared is not None and position > saved:
            writer.commit(position, state, {"time": last_time, "inputs": prepared.first_inputs()})
            saved = position

    try:
        for batch in source.batches(position if skip else 0, last_time):
            for piece in _pieces(batch._replace(first=position), every):
                if prepared is None:
                    prepared = prepare(model, config, None if piece.inputs is None else piece.inputs[0])
                state, progress = _read(prepared, source, config, state, piece)
                position, last_time = progress.position, piece.times[-1] if piece.times else None
                if writer is not None:
                    writer.add(progress.rows.table(), progress.reports)
                if position % every == 0:
                    save()
                yield progress
                if stopped():
                    return
    except KeyboardInterrupt:
        saved = position  # it may have come in the middle of a step, which uses its state up: nothing to save
        raise
    finally:
        save()


def _pieces(batch: Batch, every: int) -> Iterator[Batch]:
    """A batch cut where a checkpoint falls, and into pieces that are short enough to be interrupted between."""
    done = 0
    while done < len(batch.ys):
        position = batch.first + done
        part = slice(done, done + min(PIECE, every - position % every))
        times = None if batch.times is None else batch.times[part]
        yield Batch(position, batch.ys[part], None if batch.inputs is None else batch.inputs[part], times)
        done = part.stop


def _read(
    prepared: Prepared, source: Source, config: Config, state: WatchedState | None, piece: Batch
) -> tuple[WatchedState, Progress]:
    ys, inputs = piece.ys.astype(config.precision), None
    if piece.inputs is not None:
        inputs = piece.inputs.astype(config.precision)
    collected, reports = [], []
    try:
        if state is None:
            first = None if inputs is None else inputs[:1]
            state, infos = prepared.watched.begin(prepared.q, ys[:1], first, key=prepared.key)
            collected, ys, inputs = [infos], ys[1:], None if inputs is None else inputs[1:]
        if len(ys):
            state, infos, reports = prepared.watched.read(state, ys, inputs)
            collected.append(infos)
    except ValueError as error:
        raise RunError(f"{source.name} cannot be learned from: {error}") from error
    infos = jax.tree.map(lambda *parts: np.concatenate(parts), *collected)
    rows = Filtered(piece.first, piece.times, infos.mean, infos.std, infos.refused)
    return state, Progress(piece.first + len(piece.ys), rows, reports)
