"""The non-amortized scheme on a stream: at each observation, many gradient steps on parameters of its own."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from backstream._jax.compiling import compiled
from backstream.estimators.base import OnlineEstimator
from backstream.families.per_step import PerStep
from backstream.models.base import StateSpaceModel, prior_law, transition_law
from backstream.models.density import check_inputs, check_observations
from backstream.models.laws import mean_of, variance_of

DRAWS = 1000
"""Of X_t, over which the mean of X_{t-1} is taken."""


class PerStepState(NamedTuple):
    t: Array
    key: Array
    q: PerStep
    """λ^t, after the last of its updates."""
    carry: Any


class PerStepInfo(NamedTuple):
    """q_t, the one-step smoothing law of X_{t-1}, and the ELBO's increment at the last update."""

    mean: Float[Array, " d"]
    std: Float[Array, " d"]
    previous_mean: Float[Array, " d"]
    """E[X_{t-1}] under q_{t-1:t}; NaN at t = 0."""
    elbo: Float[Array, ""]


class PerStepLearner(eqx.Module):
    """`num_updates` gradient steps at each t, on λ^t = (η_t, η̃_t) alone; the past is frozen.

    q_t starts from the linearized prediction of the model, the network of the kernel from where it was at t − 1. The
    optimizer is reset. Only λ^t and the estimator's carry are kept: to keep the history, collect `state.q`.
    """

    model: StateSpaceModel
    estimator: OnlineEstimator
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    num_updates: int = eqx.field(static=True, default=500)

    def __check_init__(self):
        if self.num_updates < 1:
            raise ValueError(f"num_updates must be at least 1, not {self.num_updates}.")

    def init(self, q: PerStep, u: Any = None, *, key: Array) -> PerStepState:
        """The state before any row. `u` are the inputs of the first row, where the model takes any."""
        carry = self.estimator.init(self.model, q, u)
        return PerStepState(jnp.zeros((), jnp.uint32), key, q, carry)

    def step(self, state: PerStepState, y: Array | np.ndarray, u: Any = None) -> tuple[PerStepState, PerStepInfo]:
        """One more row. At the first, q_0 starts from the prior's mean and standard deviation."""
        check_observations(self.model, np.asarray(y)[None], u=u)
        return _step(self, state, jnp.asarray(y), u)

    def scan(self, state: PerStepState, ys: Array | np.ndarray, inputs: Any = None) -> tuple[PerStepState, PerStepInfo]:
        """Many, in one compiled call."""
        check_observations(self.model, np.asarray(ys), u=jax.tree.map(lambda leaf: leaf[0], inputs))
        check_inputs(inputs)
        return _scan(self, state, jnp.asarray(ys), inputs)

    def _ascend(self, q, estimate, key):
        """From λ^t's start to its end. `estimate` maps (q, key) to a carry and an estimate."""
        lam, static = eqx.partition(q, eqx.is_inexact_array)

        def update(k, loop):
            lam, optimizer = loop
            _, found = estimate(eqx.combine(lam, static), jax.random.fold_in(key, k))
            descent = jax.tree.map(jnp.negative, found.increment.gradient)
            updates, moved = self.optimizer.update(descent, optimizer, lam)
            new = optax.apply_updates(lam, updates), moved
            finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(descent)]).all()
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, loop)

        start = lam, self.optimizer.init(lam)
        lam, _ = jax.lax.fori_loop(0, self.num_updates, update, start)
        q = eqx.combine(lam, static)
        return q, estimate(q, jax.random.fold_in(key, self.num_updates))


def _predict(p: StateSpaceModel, q: PerStep, previous: Any, u: Any) -> PerStep:
    """q with mean and standard deviation of the linearized prediction from q_{t-1}."""
    mean, cov = q.marginal(previous).moments()
    law = transition_law(p, mean, u)
    F = jax.jacfwd(lambda x: mean_of(transition_law(p, x, u)))(mean)
    variance = jnp.diag(F @ cov @ F.T) + variance_of(law)
    return _at(q, mean_of(law), variance)


def _at(q: PerStep, mean: Array, variance: Array) -> PerStep:
    values = mean.astype(q.mean.dtype), 0.5 * jnp.log(variance).astype(q.mean.dtype)
    return eqx.tree_at(lambda q: (q.mean, q.log_std), q, values)


def _read(learner, state, y, u):
    p, key = learner.model, jax.random.fold_in(state.key, state.t)
    before = state.q.init(p, u)  # a_{t-1}, which is q_{t-1} itself
    prior, first = prior_law(p, u), state.t == 0
    start = jax.tree.map(
        lambda a, b: jnp.where(first, a, b) if eqx.is_array(a) else a,
        _at(state.q, mean_of(prior), variance_of(prior)),
        _predict(p, state.q, before, u),
    )

    def estimate(q, key):
        return learner.estimator.step(p, q, state.carry, y, u, key=key)

    q, (carry, found) = learner._ascend(start, estimate, key)
    now = q.init(p, u)
    kernel = q.kernel(p, now)
    xi = q.marginal(now).sample((DRAWS,), key=jax.random.fold_in(key, learner.num_updates + 1))
    kernel_means = jax.vmap(lambda x: (q.marginal(before) * kernel.potential(x)).moments()[0])
    previous_mean = jnp.where(first, jnp.nan, kernel_means(xi).mean(0))
    info = PerStepInfo(q.mean, jnp.exp(q.log_std), previous_mean, found.increment.elbo)
    return PerStepState(state.t + 1, state.key, q, carry), info


@compiled()
def _step(learner, state, y, u):
    return _read(learner, state, y, u)


@compiled()
def _scan(learner, state, ys, inputs):
    arrays, static = eqx.partition(state, eqx.is_array)

    def step(arrays, scanned):
        state, info = _read(learner, eqx.combine(arrays, static), *scanned)
        return eqx.filter(state, eqx.is_array), info

    arrays, infos = jax.lax.scan(step, arrays, (ys, inputs))
    return eqx.combine(arrays, static), infos
