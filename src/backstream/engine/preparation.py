"""A learner that fits a model, a configuration and the columns of a source."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from backstream.data.columns import Columns
from backstream.data.sources import listed
from backstream.errors import InputError
from backstream.estimators import LogScore
from backstream.families import BackwardFamily, Guided
from backstream.families.guided import Place
from backstream.learning import WatchedLearner, WatchedState, build
from backstream.learning.component_check import CHECKED_ROWS, MOST_STATES, SEVERAL
from backstream.learning.parameters import free_parameters
from backstream.models import StateSpaceModel, check_model
from backstream.runs.config import Config

MOST_PLACES = 12
"""Where a model is read beside the surroundings of its prior: beyond it a plan that does not hold is only doubted."""


class Prepared(NamedTuple):
    """A learner that fits a model and a configuration."""

    watched: WatchedLearner
    q: BackwardFamily
    key: Array
    example: tuple[np.ndarray, np.ndarray | None]
    """A row of observations, whose shape and type are what counts, and the inputs of the first row, if there are
    any."""

    components: int | None = 1
    """Of the posterior; None as long as a run with one has not read the rows that decide whether it takes several."""
    places: tuple[Place, ...] = ()
    """Where the posterior has read the model, beside the surroundings of its prior."""

    def first_inputs(self) -> list[float] | None:
        """As a checkpoint records them."""
        return None if self.example[1] is None else self.example[1][0].tolist()

    def record(self) -> dict[str, Any]:
        """What a checkpoint has to say, so that `prepare` makes the same learner again."""
        places = [place.record() for place in self.places]
        return {"inputs": self.first_inputs(), "components": self.components, "places": places}

    def blank(self) -> WatchedState:
        """The shapes of its state, into which a checkpoint is read."""
        state = self.watched.blank(self.q, *self.example, key=self.key)
        return state if self.components is not None else state._replace(first=self.first_rows())

    def first_rows(self) -> Any:
        """Room for the rows and inputs that decide how many components there will be."""
        return jax.tree.map(lambda leaf: np.zeros((CHECKED_ROWS, *leaf.shape[1:]), leaf.dtype), self.example)


def check_fit(model: StateSpaceModel, config: Config) -> None:
    """Raises InputError where the model does not fit the columns or the precision. No data is needed."""
    dtype, columns = config.precision, config.columns
    if np.dtype(dtype) != jax.dtypes.canonicalize_dtype(float):
        raise InputError(f"The run is in {dtype}: set jax_enable_x64 to {dtype == 'float64'} before any array is made.")
    u = np.zeros(len(columns.inputs) + columns.elapsed, dtype) if columns.has_inputs() else None
    try:
        shape = check_model(model, u)
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"The model cannot be used{_with_inputs(columns, error)} {error}") from error
    if not shape.state_dim or not shape.obs_dim:
        raise InputError("The model has no states or no observations: it needs at least one of each.")
    if shape.obs_dim != len(columns.observed):
        raise InputError(
            f"The model observes {shape.obs_dim} columns, but the source gives {len(columns.observed)} "
            f"({listed(list(columns.observed))}): choose them by name, or change the model's dimension."
        )
    if config.learning.learns_model:
        try:
            free_parameters(model, config.learning.learn_parameters)
        except ValueError as error:
            raise InputError(str(error)) from error


def _with_inputs(columns: Columns, error: Exception) -> str:
    """Which inputs the model had, where they may be the reason: not where a sentence names another one."""
    if type(error) is ValueError and "inputs" not in str(error):
        return ":"
    inputs = f"the inputs {', '.join(columns.inputs)}" if columns.inputs else "no input columns"
    return f" with {inputs}; choose its input columns by name."


def require_writable(config: Config) -> None:
    """Raises InputError where a run has steps that are functions, and could not be opened again."""
    if config.model_optimizer is not None:
        raise InputError("Steps that are functions cannot be written into a run directory: keep this run in memory.")


def prepare(model: StateSpaceModel, config: Config, record: dict[str, Any]) -> Prepared:
    """The learner of a run. The record has the inputs of its first row, None where the model has none: the posterior
    reads the model with them before it reads any row. It also has the number of components, where that was decided, and
    the places where the model was read later."""
    check_fit(model, config)
    columns, inputs, decided = config.columns, record.get("inputs"), record.get("components")
    expected = (len(columns.inputs) + columns.elapsed,) if columns.has_inputs() else None
    try:
        u = None if inputs is None else np.asarray(inputs, config.precision)
        if expected != (None if u is None else u.shape):
            raise ValueError(f"The first row must have {expected or 'no'} inputs, not {inputs!r}.")
        if decided not in (None, 1, SEVERAL, config.learning.components):
            raise ValueError(f"A run cannot have decided on {decided!r} components.")
        decided = None if decided is None else int(decided)
        places = tuple(Place.restored(place, config.precision) for place in record.get("places", ()))
        if len(places) > MOST_PLACES:
            raise ValueError(f"A run cannot have read its model at {len(places)} places.")
        learning = config.learning if decided is None else replace(config.learning, components=decided)
        watched, q, key = build(model, learning, u, config.model_optimizer, places)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    row = np.full((1, len(columns.observed)), np.nan, config.precision)
    example = row, None if u is None else u[None]
    components = _components(config, watched, q) if decided is None else decided
    if components is None and isinstance(q, Guided) and q.plan.has_jumps:
        return prepare(model, config, {**record, "components": SEVERAL})
    return Prepared(watched, q, key, example, components, places)


def _components(config: Config, watched: WatchedLearner, q: BackwardFamily) -> int | None:
    """How many there are, before any row; None where the first rows will decide: they also show whether a model that is
    linear and Gaussian near its prior is so where they are."""
    if config.learning.components != "auto":
        return config.learning.components
    one_stream, scored = config.columns.key is None, isinstance(watched.learner.estimator, LogScore)
    return None if one_stream and scored and isinstance(q, Guided) and q.state_dim <= MOST_STATES else 1
