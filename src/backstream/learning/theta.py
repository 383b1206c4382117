"""θ as people read it: each number by its name, with its standard error, and whether its steps have settled."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jax.flatten_util import ravel_pytree

from .online import OnlineLearner
from .records import LearnerState
from .steps import Settling

MOST_NAMED = 64
"""Numbers of θ up to which each is reported. A network has more, and their values say nothing."""
PATIENCE = 5000
"""Rows after which a search that goes on is stuck."""


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
    values, errors = map(np.asarray, _read(learner, state.theta_average, state.model_optimizer))
    names = learner._parameters().names()
    return {name: Parameter(float(v), float(e)) for name, v, e in zip(names, values, errors, strict=True)}


class Evidence(NamedTuple):
    """What the steps of θ have seen of themselves: whether they have settled, are stuck, or follow a change."""

    rows: int
    settled: bool
    misfit: float
    """The size of the mean score over the latest complete block, against what chance makes it: about 1 where θ fits
    the rows. Infinite before a block is complete."""
    rows_since_restart: int | None
    """How long ago the rows no longer fitted, so that the steps became larger again; None for never."""
    restarts: int
    horizon: int | None
    uninformed: tuple[str, ...]
    """Parameters that the rows say nothing about: they stay where they were."""

    @property
    def stuck(self) -> bool:
        """Whether the search for θ has gone on for long."""
        since = self.rows if self.rows_since_restart is None else self.rows_since_restart
        return not self.settled and since >= PATIENCE


def step_evidence(learner: OnlineLearner, state: LearnerState) -> Evidence | None:
    """None where θ is not learned by `Settling`, the default."""
    if not isinstance(learner.model_optimizer, Settling):
        return None
    steps = state.model_optimizer
    known = np.isfinite(np.diagonal(np.asarray(learner.model_optimizer.covariance(steps))))
    names = learner._parameters().names() if bool(steps.settled) else ()
    restarts = int(steps.restarts)
    return Evidence(
        int(steps.rows),
        bool(steps.settled),
        float(steps.misfit),
        int(steps.rows - steps.restarted_at) if restarts else None,
        restarts,
        learner.model_optimizer.horizon,
        tuple(name for name, informed in zip(names, known, strict=False) if not informed),
    )


def parameter_warnings(learner: OnlineLearner, state: LearnerState, window: int) -> list[str]:
    """What is wrong with the steps of θ after a window of so many rows."""
    evidence, found = step_evidence(learner, state), []
    if evidence is None:
        return []
    if evidence.stuck:
        found.append(
            f"The parameters have not settled after {evidence.rows:,} rows: the mean score of the latest block is "
            f"{evidence.misfit:.1f} times what chance makes it, or a block says too little about one of them."
        )
    if evidence.rows_since_restart is not None and evidence.rows_since_restart < window:
        found.append(
            "The rows no longer fit the parameters that were learned: they have changed, or had not been found. "
            "Their steps are larger again."
        )
    return found


@eqx.filter_jit
def _read(learner, theta, model_optimizer):
    parameters = learner._parameters()
    values = parameters.values(theta)
    if not isinstance(learner.model_optimizer, Settling):
        return values, values * np.nan
    return values, parameters.errors(theta, learner.model_optimizer.covariance(model_optimizer))
