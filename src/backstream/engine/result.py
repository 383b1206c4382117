"""The result of learning from a stream."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from backstream import posterior
from backstream.data.arrays import as_before, as_rows, has_names
from backstream.data.rows import Batch
from backstream.data.sources import Format, open_source, read_all
from backstream.errors import InputError
from backstream.families import BackwardFamily
from backstream.learning import Fleet, LearnerState, Report, Verdict
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected

from .filtered_rows import FilteredRows
from .fleet_reader import rows_of_streams, with_elapsed

Laws = posterior.Marginals | posterior.MixtureMarginals


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


class Result:
    """The result of learning from a stream: past, current and future states, and the learned model.

    Example:
        ```python
        result = bs.learn(model, ys, inputs=us)
        result.health                         # can the result be used?
        result.filtered                       # the state at each row, given the rows up to it
        result.smooth()                       # the state at each row, given all rows
        result.filter(fresh, inputs=more)     # filter other rows
        result.forecast(50)                   # the next 50 rows
        result.parameters()                   # learned parameters with standard errors
        result.plot(horizon=50)
        ```
    """

    config: Config
    warnings: list[str]
    """Data that could not be read or used, and was left out."""
    _name: str
    _given: tuple[tuple[Any, Any], ...] = ()
    """The sources that this result was learned from, with their inputs, where they are known."""

    @property
    def filtered(self) -> FilteredRows:
        """The state at each row, given the rows up to it, as estimated when the row was read."""
        raise NotImplementedError

    @property
    def reports(self) -> list[Report]:
        """The reports of the monitor, one for each window of rows."""
        raise NotImplementedError

    @property
    def rejected(self) -> list[Rejected]:
        """The rows that could not be used, with the reasons."""
        raise NotImplementedError

    @property
    def health(self) -> Verdict:
        """The verdict on the result: good, learning, doubtful or failed, with the reasons."""
        raise NotImplementedError

    def parameters(self) -> pa.Table:
        """The learned parameters of the model over time.

        Returns:
            A table with the columns `row`, `name`, `value` and `error` (the standard error, null if there is none yet),
            with one row for each parameter and report of the monitor. With many streams, also a column `stream`.
        """
        told = [report for report in self.reports if report.parameters is not None]
        rows = [(report, name, number) for report in told for name, number in (report.parameters or {}).items()]
        columns: dict[str, Any] = {
            "row": pa.array([report.t for report, _, _ in rows], pa.int64()),
            "name": pa.array([name for _, name, _ in rows], pa.string()),
            "value": pa.array([number.value for _, _, number in rows], pa.float64(), from_pandas=True),
            "error": pa.array([number.error for _, _, number in rows], pa.float64(), from_pandas=True),
        }
        if self.config.columns.key is not None:
            columns = {"stream": pa.array([report.stream for report, _, _ in rows], pa.string()), **columns}
        return pa.table(columns)

    @cached_property
    def learned(self) -> Learned:
        """The newest state of the learner."""
        raise NotImplementedError

    @property
    def model(self) -> StateSpaceModel:
        """The model with the learned parameters."""
        return self.learned.model

    @property
    def family(self) -> BackwardFamily:
        """The posterior that is reported."""
        return self.learned.q

    def __repr__(self) -> str:
        columns, rows = self.config.columns, self._position()
        by = "" if columns.key is None else f", one stream for each {columns.key}"
        verdict = "nothing learned yet" if rows is None else f"verdict: {self.health.kind}"
        what = f"{rows or 0:,} rows of {', '.join(columns.observed)}{by}; {verdict}"
        return f"{type(self).__name__}({self.config.model.name.rpartition(':')[2]}: {what})"

    def _position(self) -> int | None:
        """The number of rows that were read, without what needs the model; None where nothing can be read."""
        raise NotImplementedError

    def stream(self, name: str) -> LearnerState:
        """The state of the learner for one of many streams."""
        fleet = self.learned.fleet
        if fleet is None:
            raise InputError(f"{self._name} is a run of one stream.")
        if name not in fleet.members:
            raise InputError(f"{self._name} has no stream {name!r}: it has ended, or was never there.")
        return fleet.panel.stream(fleet.state, fleet.members[name].slot)

    def streams(self) -> list[str]:
        """The names of the live streams. Empty for a run of one stream."""
        fleet = self.learned.fleet
        return [] if fleet is None else sorted(fleet.members)

    def data(self, source: Any, inputs: Any = None, *, format: Format | None = None) -> Batch:
        """Reads all rows of a source, with the same columns and precision as the run."""
        dtype, columns = self.config.precision, self.config.columns
        if not has_names(source):
            return self._of_array(source, inputs)
        table, columns = as_before(source, inputs, columns)
        opened = open_source(table, columns, format=format, dtype=dtype)
        batch = read_all(opened)
        if batch.keys is not None and columns.elapsed:
            batch = with_elapsed(batch, lambda row: f"{opened.name}, row {row + 1}, column {columns.time!r}")
        inputs = None if batch.inputs is None else batch.inputs.astype(dtype)
        return replace(batch, ys=batch.ys.astype(dtype), inputs=inputs)

    def _of_array(self, ys: Any, inputs: Any) -> Batch:
        """The columns of an array have no names: they are those that were observed, in their order."""
        columns, dtype = self.config.columns, self.config.precision
        if columns.key is not None:
            raise InputError(f"This is a run of many streams: give a table with the column {columns.key!r}.")
        rows = as_rows(ys, "Observations").astype(dtype)
        if rows.shape[1] != len(columns.observed):
            names = ", ".join(columns.observed)
            raise InputError(f"{len(columns.observed)} columns were observed ({names}), not {rows.shape[1]}.")
        return Batch(0, rows, self._inputs(inputs, len(rows), "the rows with inputs=..."), None)

    def _inputs(self, inputs: Any, count: int, whose: str) -> np.ndarray | None:
        """The inputs of `count` rows, in the precision of the run; None for a model without inputs."""
        columns = self.config.columns
        if not columns.has_inputs():
            if inputs is not None:
                raise InputError("The model has no inputs: leave them out.")
            return None
        names = [*columns.inputs, *(["the time since the row before"] if columns.elapsed else [])]
        if inputs is None:
            raise InputError(f"The model has inputs ({', '.join(names)}): pass those of {whose}")
        given = as_rows(inputs, "Inputs").astype(self.config.precision)
        if given.shape != (count, len(names)):
            raise InputError(f"inputs must have shape {(count, len(names))} ({', '.join(names)}), not {given.shape}.")
        return given

    def _rows(self, source: Any, inputs: Any) -> Batch:
        """The rows of a source; without one, those that were learned from."""
        if isinstance(source, Batch):
            return source
        if source is not None:
            return self.data(source, inputs)
        if inputs is not None:
            raise InputError("These are inputs without their rows: pass the rows too, or leave both out.")
        if not self._given:
            raise InputError(f"{self._name} does not contain the observations: pass a file, an array or a table.")
        first, *others = (self.data(*given) for given in self._given)
        return reduce(Batch.then, others, first)

    def filter(self, source: Any = None, inputs: Any = None) -> Laws:
        """The distribution of the state at each row, given the rows up to it.

        This uses the final result of learning for all rows. `filtered` has the estimates from while learning.

        Args:
            source: A file, an array, a Series, a table, or the output of `data`. An array must have the observed
                columns in their order. Default: the rows used for learning. A run opened with `load` does not contain
                them.
            inputs: The inputs of the rows, if the source is an array and the model has inputs.

        Returns:
            Means and covariances, with `mean`, `std()` and `interval(level)`. Rows that cannot be used are NaN, and
            `warnings` says why.

        Raises:
            InputError: If the source does not match the run, or there is no source.
        """
        batch = self._rows(source, inputs)
        return self._by_stream(batch, lambda p, q, ys, inputs, _: posterior.filter(p, q, ys, inputs))

    def smooth(self, source: Any = None, inputs: Any = None) -> Laws:
        """The distribution of the state at each row, given all rows of the source.

        The arguments, the return value and the errors are those of `filter`.
        """
        batch = self._rows(source, inputs)
        return self._by_stream(
            batch,
            lambda p, q, ys, inputs, length: posterior.smooth(p, q, ys, inputs, key=self._key(1), length=length),
        )

    def _by_stream(self, batch: Batch, law: Callable[..., Laws]) -> Laws:
        """The law of each row, in the order of the rows; where there are many streams, for each by itself. Rows that
        cannot be used are NaN, and `warnings` says why."""
        if batch.keys is None:
            return law(self.learned.model, self.learned.q, batch.ys, batch.inputs, None)
        d, fleet = self.learned.q.state_dim, None if self.config.fleet.common else self.learned.fleet

        def blank(shape) -> Any:
            return np.full((len(batch.ys), *shape), np.nan, batch.ys.dtype)

        laws: Any = posterior.Marginals(*map(blank, ((d,), (d, d))))
        begun = False
        for problem in batch.problems.values():
            self._warn(f"{problem.reason} The row is passed over.")
        for name, rows in rows_of_streams(batch).items():
            if fleet is not None and name not in fleet.members:
                self._warn(f"{self._name} holds nothing of the stream {name!r}: it has ended, or was never there.")
                continue
            p, q = self.learned.model, self.learned.q
            if fleet is not None:
                state = self.stream(name)
                p, q = fleet.panel.learner.current_model(state), state.result()
            data = _filled_up(batch.ys[rows], None if batch.inputs is None else batch.inputs[rows])
            found = law(p, q, *data, len(rows))
            if not begun:
                laws, begun = jax.tree.map(lambda part: blank(part.shape[1:]), found), True
            for whole, part in zip(jax.tree.leaves(laws), jax.tree.leaves(found), strict=True):
                whole[rows] = np.asarray(part)[: len(rows)]
        return jax.tree.map(jnp.asarray, laws)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def forecast(
        self, horizon: int, inputs: Any = None, num_samples: int = 1000, stream: str | None = None
    ) -> posterior.Forecast:
        """Simulates the states and observations after the last row.

        Args:
            horizon: The number of rows to forecast.
            inputs: The inputs of these rows, of shape [horizon, k] or [horizon], if the model has inputs.
            num_samples: The number of simulated futures.
            stream: The name of the stream, if there are many.

        Returns:
            `states` and `observations`, with `mean()`, `std()`, `interval(level)`, `to_arrow()` and `to_pandas()`.

        Raises:
            InputError: If inputs or the name of the stream are missing, or there is no such stream.
        """
        whose = f"the next {horizon} rows with inputs=... (in plot: future_inputs=...)."
        inputs = self._inputs(inputs, horizon, whose)
        learned, model = self.learned, self.learned.model
        state = learned.state
        if learned.fleet is not None:
            if stream is None:
                raise InputError(f"{self._name} is a run of many streams: name one with stream=.")
            state = self.stream(stream)
            model = learned.fleet.panel.learner.current_model(state)
        assert state is not None
        law = posterior.present_law(state.result(), state.filtered)
        return posterior.forecast(model, law, horizon, num_samples, inputs, key=self._key(2))

    def plot(
        self,
        source: Any = None,
        inputs: Any = None,
        *,
        horizon: int = 0,
        future_inputs: Any = None,
        last: int | None = None,
        path: str | Path | None = None,
    ) -> Any:
        """Draws the observations, the states with 90 % bands, and a forecast; below them, if the rows are those used
        for learning, how well they were predicted: the histogram of their PIT values and the log score over time.

        Args:
            source: The rows to draw, as for `filter`. Default: the rows used for learning.
            inputs: The inputs of the rows, if the source is an array.
            horizon: The number of rows to forecast.
            future_inputs: The inputs of the forecast, if the model has inputs.
            last: Draw only this many of the last rows.
            path: A file for the picture.

        Returns:
            A matplotlib figure.
        """
        from backstream import plots

        from .picture import Shown, draw

        batch, scores = self._rows(source, inputs), self.filtered if source is None else None
        if batch.keys is not None:
            raise InputError("Give the rows of one stream: a picture is of one stream.")
        ahead = self.forecast(horizon, future_inputs) if horizon else None
        shown = Shown(batch, self.filter(batch), self.smooth(batch), ahead, scores)
        figure = draw(self.model, self.config.columns.observed, shown, last=last, key=self._key(3))
        if path is not None:
            plots.save(figure, path, self.config.text())
        return figure

    def _key(self, purpose: int) -> jax.Array:
        """Draws that are the same each time, and not those of the learner."""
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.learning.seed), 2**31), purpose)


def _filled_up(ys: np.ndarray, inputs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """With missing rows up to the next power of two: streams of a thousand lengths need few compiled programs."""
    more = max(16, 1 << (len(ys) - 1).bit_length()) - len(ys)
    ys = np.concatenate([ys, np.full((more, ys.shape[1]), np.nan, ys.dtype)])
    return ys, None if inputs is None else np.concatenate([inputs, np.repeat(inputs[-1:], more, 0)])
