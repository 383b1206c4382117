"""One stream, read once by the default learner."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import backstream as bs
from backstream.learning import build
from backstream.learning.theta import current_parameters

WARM = 512
"""Rows that are read before the clock starts: two compiled blocks."""


class Online(NamedTuple):
    """The estimate in the unconstrained parameters, its standard errors, and the price."""

    theta: np.ndarray
    errors: np.ndarray
    names: tuple[str, ...]
    restarts: int
    settled: bool
    microseconds: float
    """Of processor time, for each row."""
    history: list[tuple[int, np.ndarray, np.ndarray]]
    """Rows read, values and standard errors in the model's own terms."""


def learn(start: bs.StateSpaceModel, ys: np.ndarray, inputs: Any = None, looks: int = 1, **settings) -> Online:
    """The default learner without its monitor, whose estimate is noted `looks` times."""
    u = None if inputs is None else inputs[0]
    watched, q, key = build(start, bs.Settings(**{"learn_model": True, **settings}), u)
    learner, done, spent, history = watched.learner, WARM, 0.0, []
    state = learner.init(q, u, key=key)
    state, _ = learner.scan(state, ys[:WARM], None if inputs is None else inputs[:WARM])
    for end in np.linspace(WARM, len(ys), looks + 1).astype(int)[1:]:
        began = time.process_time()
        state, _ = learner.scan(state, ys[done:end], None if inputs is None else inputs[done:end])
        jax.block_until_ready(state.t)
        spent += time.process_time() - began
        done = end
        told = current_parameters(learner, state)
        if told is not None:
            values, errors = np.array(list(told.values())).T
            history.append((int(end), values, errors))
    steps, price = state.model_optimizer, 1e6 * spent / (len(ys) - WARM)
    if steps is None:
        return Online(np.zeros(0), np.zeros(0), (), 0, True, price, history)
    covariance = np.asarray(learner.model_optimizer.covariance(steps), float)
    return Online(
        np.asarray(ravel_pytree(state.theta_average)[0], float),
        np.sqrt(np.diag(covariance)),
        learner._parameters().names(),
        int(steps.restarts),
        bool(steps.settled),
        price,
        history,
    )
