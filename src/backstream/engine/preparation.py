"""A learner that fits a model, a configuration and the columns of a source."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from backstream.data.sources import listed
from backstream.errors import InputError
from backstream.families import BackwardFamily
from backstream.learning import WatchedLearner, WatchedState, build
from backstream.learning.parameters import free_parameters
from backstream.models import StateSpaceModel, check_model
from backstream.runs.config import Config


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


def require_writable(config: Config) -> None:
    """Raises InputError where a run has steps that are functions, and could not be opened again."""
    if config.model_optimiser is not None:
        raise InputError("Steps that are functions cannot be written into a run directory: keep this run in memory.")


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
        watched, q, key = build(model, config.learning, u, config.model_optimiser)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    row = np.full((1, len(columns.observed)), np.nan, config.precision)
    return Prepared(watched, q, key, (row, None if u is None else u[None]))
