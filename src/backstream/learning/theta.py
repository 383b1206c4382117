"""θ as people read it: each number by its name, with its standard error, and whether its steps have settled."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jax.flatten_util import ravel_pytree

from .online import LearnerState, OnlineLearner
from .steps import WATCH_BLOCK, Settling

MOST_NAMED = 64
"""Numbers of θ up to which each is reported. A network has more, and their values say nothing."""
PATIENCE = 5000
"""Rows after which a search that goes on is worth a warning."""


class Parameter(NamedTuple):
    """One number of θ, and its standard error: NaN as long as there is none."""

    value: float
    error: float


def current_parameters(learner: OnlineLearner, state: LearnerState) -> dict[str, Parameter] | None:
    """The learned numbers of θ by their names in the model; None where none is learned, or too many.

    Standard errors come with `Settling` alone: infinite for a number that the rows say nothing about.
    """
    if state.theta is None or ravel_pytree(state.theta)[0].size > MOST_NAMED:
        return None
    values, errors = map(np.asarray, _read(learner, state.theta_average, state.model_optimiser))
    names = learner._parameters().names()
    return {name: Parameter(float(v), float(e)) for name, v, e in zip(names, values, errors, strict=True)}


def parameter_warnings(learner: OnlineLearner, state: LearnerState, window: int) -> list[str]:
    """What is wrong with the steps of θ after a window of so many rows."""
    if not isinstance(learner.model_optimiser, Settling):
        return []
    steps, found = state.model_optimiser, []
    rows, age = float(steps.rows), float(steps.age)
    if not steps.settled and rows >= PATIENCE:
        found.append(
            f"The parameters have not settled after {rows:,.0f} rows: the mean score of the latest block is "
            f"{float(steps.misfit):.1f} times what chance makes it, or a block says too little about one of them."
        )
    if steps.restarts > 0 and age - WATCH_BLOCK < window and bool(steps.settled):
        found.append(
            "The rows no longer fit the parameters that were learned: they have changed, or had not been found. "
            "Their steps are larger again."
        )
    return found


@eqx.filter_jit
def _read(learner, theta, model_optimiser):
    parameters = learner._parameters()
    values = parameters.values(theta)
    if not isinstance(learner.model_optimiser, Settling):
        return values, values * np.nan
    return values, parameters.errors(theta, learner.model_optimiser.covariance(model_optimiser))
