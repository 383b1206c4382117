"""Learning from a stream: each observation is used once, moves λ (and θ, if asked), and is forgotten."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from backstream.estimators.base import OnlineEstimate, OnlineEstimator
from backstream.families.base import BackwardFamily
from backstream.models.base import StateSpaceModel
from backstream.models.density import ModelShape, check_model, check_observations

from .averaging import Averaging
from .parameters import ModelParameters


class LearnerState(NamedTuple):
    """Everything a learner knows: one pytree, one checkpoint."""

    t: Array
    """How many observations have been read."""
    key: Array
    q: BackwardFamily
    """The current λ."""
    average: BackwardFamily
    """The running mean of λ: the result."""
    theta: PyTree
    """The current unconstrained θ, and its running mean; None where the model is not learned."""
    theta_average: PyTree
    optimiser: PyTree
    model_optimiser: PyTree
    carry: PyTree
    """The estimator's."""
    filtered: PyTree
    """a_t under the averaged λ."""
    refused: Array
    """How many observations have been refused, and how many of them just now, in a row."""
    refused_in_a_row: Array


class Info(NamedTuple):
    """What one observation told. `elbo` is its contribution to the objective; `mean` and `std` describe q_t under
    the averaged λ; `refused` says that the update was not finite and was not made."""

    t: Array
    elbo: Array
    gradient_norm: Array
    ess: Array
    acceptance: Array
    refused: Array
    mean: Float[Array, " d"]
    std: Float[Array, " d"]


class OnlineLearner(eqx.Module):
    """λ_{t+1} = λ_t + γ · (direction of the estimator's objective), through an optax transformation.

    `optimiser` descends, as optax does; it is fed minus the increment. `model_optimiser`, if given, makes θ move too
    (the estimator must then have `learn_model`), except what `free` leaves out. `averaging` makes the result. `block`
    is the number of observations that one compiled call takes at most; results do not depend on it.

    An update that is not finite is refused: λ, θ and the carry stay as they were, and it is counted. After `patience`
    refusals in a row the recursion starts anew from the next observation, with the λ it has.

        learner = OnlineLearner(model, estimator, optax.adam(1e-3))
        state, info = learner.init(q, ys[0], key=key)
        state, infos = learner.scan(state, ys[1:])
        state.average
    """

    model: StateSpaceModel
    estimator: OnlineEstimator
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    model_optimiser: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    free: PyTree = None
    averaging: Averaging = Averaging()
    block: int = eqx.field(static=True, default=256)
    patience: int = eqx.field(static=True, default=10)

    def __check_init__(self):
        if self.block < 1:
            raise ValueError(f"block must be at least 1, not {self.block}.")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, not {self.patience}.")
        learns = getattr(self.estimator, "learn_model", False)
        if learns != (self.model_optimiser is not None):
            raise ValueError(
                "To learn the model, give both a model_optimiser and an estimator with learn_model=True; "
                f"here model_optimiser is {'given' if self.model_optimiser else 'None'} and learn_model is {learns}."
            )

    def init(self, q: BackwardFamily, y: Array | np.ndarray, u: Any = None, *, key: Array) -> tuple[LearnerState, Info]:
        """Reads the first observation."""
        check_observations(self._shape(u), np.asarray(y)[None])
        return _first(self, q, _like(q, y), u, key)

    def step(self, state: LearnerState, y: Array | np.ndarray, u: Any = None) -> tuple[LearnerState, Info]:
        """Reads one more. The state given is used up: its buffers become those of the new one."""
        inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], u)
        state, infos = self.scan(state, jnp.asarray(y)[None], inputs)
        return state, jax.tree.map(lambda leaf: leaf[0], infos)

    def scan(self, state: LearnerState, ys: Array | np.ndarray, inputs: Any = None) -> tuple[LearnerState, Info]:
        """Reads many, in blocks. The state given is used up. However the stream is cut, the bits are the same."""
        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        check_observations(self._shape(first), np.asarray(ys), first_row=int(state.t))
        observed, collected = _like(state.q, ys), []
        for start in range(0, len(observed), self.block):
            rows = slice(start, start + self.block)
            n = len(observed[rows])
            y, u = jax.tree.map(lambda leaf, rows=rows: _pad(np.asarray(leaf)[rows], self.block), (observed, inputs))
            state, infos = _advance(self, state, y, u, jnp.asarray(n))
            collected.append(jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], infos))
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *collected)

    def current_model(self, state: LearnerState) -> StateSpaceModel:
        """p with the averaged θ, or as it was given where it is not learned."""
        if state.theta is None:
            return self.model
        return self._parameters().model(state.theta_average)

    def _parameters(self) -> ModelParameters:
        return ModelParameters(self.model, self.free)

    def _shape(self, u: Any) -> ModelShape:
        return check_model(self.model, u)

    def _model(self, theta: PyTree) -> StateSpaceModel:
        return self.model if theta is None else self._parameters().model(theta)

    def _read(self, state: LearnerState, y: Array, u: Any) -> tuple[LearnerState, Info]:
        """One observation, under jit."""
        p, key = self._model(state.theta), jax.random.fold_in(state.key, state.t)
        restart = state.refused_in_a_row >= self.patience
        carry, estimate = jax.lax.cond(
            restart,
            lambda: self.estimator.init(p, state.q, y, u, key=key),
            lambda: self.estimator.step(p, state.q, state.carry, y, u, key=key),
        )
        filtered = state.average.update(state.filtered, y, u)
        return self._ascend(state, carry, estimate, filtered)

    def _ascend(self, state, carry, estimate: OnlineEstimate, filtered) -> tuple[LearnerState, Info]:
        increment = estimate.increment
        lam, static = eqx.partition(state.q, eqx.is_inexact_array)
        updates, optimiser = self.optimiser.update(jax.tree.map(jnp.negative, increment.gradient), state.optimiser, lam)
        moved = (optax.apply_updates(lam, updates), optimiser)
        theta_moved = (state.theta, state.model_optimiser)
        if self.model_optimiser is not None:
            gradient = self._parameters().pull(state.theta, increment.model_gradient)
            updates, optimiser = self.model_optimiser.update(
                jax.tree.map(jnp.negative, gradient), state.model_optimiser, state.theta
            )
            theta_moved = (optax.apply_updates(state.theta, updates), optimiser)

        finite = _all_finite((increment.elbo, increment.gradient, moved[0], theta_moved[0]))
        old = (lam, state.optimiser), (state.theta, state.model_optimiser), state.carry
        new = moved, theta_moved, carry
        ((lam, optimiser), (theta, model_optimiser), carry) = jax.tree.map(
            lambda a, b: jnp.where(finite, a, b), new, old
        )
        q = eqx.combine(lam, static)
        average, theta_average = self.averaging.update(
            eqx.filter((state.average, state.theta_average), eqx.is_inexact_array), (lam, theta), state.t
        )
        keep_filtered = _all_finite(filtered)
        filtered = jax.tree.map(lambda a, b: jnp.where(keep_filtered, a, b), filtered, state.filtered)
        mean, cov = state.average.marginal(filtered).moments()
        info = Info(
            state.t,
            increment.elbo,
            optax.tree.norm(increment.gradient),
            estimate.ess,
            estimate.acceptance,
            ~finite,
            mean,
            jnp.sqrt(jnp.diag(cov)),
        )
        state = LearnerState(
            state.t + 1,
            state.key,
            q,
            eqx.combine(average, static),
            theta,
            theta_average,
            optimiser,
            model_optimiser,
            carry,
            filtered,
            state.refused + ~finite,
            jnp.where(finite, 0, state.refused_in_a_row + 1),
        )
        return state, info


@eqx.filter_jit
def _first(learner: OnlineLearner, q, y, u, key):
    theta = model_optimiser = None
    if learner.model_optimiser is not None:
        theta = learner._parameters().unconstrained()
        model_optimiser = learner.model_optimiser.init(theta)
    carry, estimate = learner.estimator.init(learner._model(theta), q, y, u, key=jax.random.fold_in(key, 0))
    zero = jnp.zeros((), jnp.uint32)
    state = LearnerState(
        zero,
        key,
        q,
        q,
        theta,
        theta,
        learner.optimiser.init(eqx.filter(q, eqx.is_inexact_array)),
        model_optimiser,
        carry,
        q.init(y, u),
        zero,
        zero,
    )
    state, info = learner._ascend(state, carry, estimate, state.filtered)
    # Weakly typed leaves would become strong in the first block, and the second would be compiled anew.
    return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype) if eqx.is_array(leaf) else leaf, state), info


@eqx.filter_jit(donate="all-except-first")
def _advance(learner: OnlineLearner, state: LearnerState, ys, inputs, n):
    """The first n of a block of observations. One program for every n, so that how a stream is cut changes no bit."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def read(k, loop):
        arrays, infos = loop
        y, u = jax.tree.map(lambda leaf: leaf[k], (ys, inputs))
        state, info = learner._read(eqx.combine(arrays, static), y, u)
        infos = jax.tree.map(lambda buffer, leaf: buffer.at[k].set(leaf), infos, info)
        return eqx.filter(state, eqx.is_array), infos

    arrays, infos = jax.lax.fori_loop(0, n, read, (arrays, _blank(len(ys), state.q.state_dim, ys.dtype)))
    return eqx.combine(arrays, static), infos


def _blank(length: int, dim: int, dtype) -> Info:
    """Room for what a block of observations tells: known beforehand, so that nothing is traced twice."""
    number, vector = jnp.zeros(length, dtype), jnp.zeros((length, dim), dtype)
    t, refused = jnp.zeros(length, jnp.uint32), jnp.zeros(length, bool)
    return Info(t, number, number, number, number, refused, vector, vector)


def _all_finite(tree: PyTree) -> Array:
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.stack(leaves).all()


def _like(q: BackwardFamily, y: Array | np.ndarray) -> np.ndarray:
    """Observations in the precision of λ."""
    return np.asarray(y, jax.tree.leaves(eqx.filter(q, eqx.is_inexact_array))[0].dtype)


def _pad(rows: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros((length, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded
