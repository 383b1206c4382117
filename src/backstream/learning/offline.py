"""Learning from a sequence that is at hand as a whole: one update for each pass over it, or one for each
observation."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Integer

from backstream._jax.compiling import compiled
from backstream.estimators.base import OfflineEstimator
from backstream.families.base import BackwardFamily
from backstream.models.base import StateSpaceModel
from backstream.models.density import check_inputs, check_observations

from .online import OnlineLearner


class Fit(NamedTuple):
    """A learned family, and the ELBO per step that its estimator gave at each epoch."""

    q: BackwardFamily
    elbo: Float[Array | np.ndarray, " epochs"]
    refused: Integer[Array | np.ndarray, ""]
    """How many updates were not finite and were not made."""


def fit(
    p: StateSpaceModel,
    q: BackwardFamily,
    ys: Array | np.ndarray,
    inputs: Any = None,
    *,
    estimator: OfflineEstimator,
    optimizer: optax.GradientTransformation,
    num_epochs: int,
    key: Array,
) -> Fit:
    """Gradient ascent on L_T / T, one update for each pass over the sequence (eq. epoch_update)."""
    _check_epochs(num_epochs)
    check_observations(p, np.asarray(ys), u=jax.tree.map(lambda leaf: leaf[0], inputs))
    check_inputs(inputs)
    return _fit(p, q, jnp.asarray(ys), inputs, estimator, optimizer, num_epochs, key)


@compiled()
def _fit(p, q, ys, inputs, estimator, optimizer, num_epochs, key):
    lam, static = eqx.partition(q, eqx.is_inexact_array)

    def epoch(loop, k):
        lam, state, refused = loop
        estimate = estimator(p, eqx.combine(lam, static), ys, inputs, key=jax.random.fold_in(key, k))
        descent = jax.tree.map(lambda g: -g / len(ys), estimate.gradient)
        updates, new_state = optimizer.update(descent, state, lam)
        new = optax.apply_updates(lam, updates), new_state
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(descent)]).all()
        lam, state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (lam, state))
        return (lam, state, refused + ~finite), estimate.elbo / len(ys)

    start = (lam, optimizer.init(lam), jnp.zeros((), int))
    (lam, _, refused), elbo = jax.lax.scan(epoch, start, jnp.arange(num_epochs))
    return Fit(eqx.combine(lam, static), elbo, refused)


def fit_within_epochs(
    learner: OnlineLearner,
    q: BackwardFamily,
    ys: Array | np.ndarray,
    inputs: Any = None,
    *,
    num_epochs: int,
    restart_optimizer: bool = True,
    key: Array,
) -> Fit:
    """T updates in each pass over the sequence, by an online learner (eq. online_inside_epoch_update).

    Each epoch starts the recursion again from the λ that the last one ended with; the optimizer's state is reset
    too, or kept. The ELBO of an epoch is the sum of what its observations added, under a λ that moves meanwhile.
    """
    _check_epochs(num_epochs)
    elbo, refused, optimizer = [], 0, None
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    for epoch in range(num_epochs):
        state = learner.init(q, first, key=jax.random.fold_in(key, epoch))
        if optimizer is not None and not restart_optimizer:
            state = state._replace(optimizer=optimizer)
        state, infos = learner.scan(state, ys, inputs)
        q, optimizer = state.q, state.optimizer
        elbo.append(infos.elbo.sum() / len(ys))
        refused += int(state.refused)
    return Fit(q, np.asarray(elbo), np.asarray(refused))


def _check_epochs(num_epochs: int) -> None:
    if num_epochs < 1:
        raise ValueError(f"num_epochs must be at least 1, not {num_epochs}.")
