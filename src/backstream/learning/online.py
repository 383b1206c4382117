"""Learning from a stream: each observation is used once, moves λ (and θ, if asked), and is forgotten."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from backstream.estimators.base import Estimate, OnlineEstimate, OnlineEstimator
from backstream.estimators.branching import branch
from backstream.estimators.compiling import compiled
from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.models.base import StateSpaceModel
from backstream.models.density import check_inputs, check_model, check_observations

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
    """a_t under the averaged λ, with the model at the averaged θ."""
    unlearned: "Unlearned | None"
    """The same family as it was before it learned, for families that score themselves; None for others."""
    refused: Array
    """How many observations have been refused, and how many of them just now, in a row."""
    refused_in_a_row: Array

    def result(self) -> BackwardFamily:
        """What is reported: q with the averaged λ, or as it was before it learned, whichever predicts the rows
        better."""
        if self.unlearned is None:
            return self.average
        return self.unlearned.choose(self.average, self.unlearned.q)

    def result_state(self) -> PyTree:
        """a_t of the result."""
        return self.filtered if self.unlearned is None else self.unlearned.choose(self.filtered, self.unlearned.state)


class Unlearned(NamedTuple):
    """The family that a learner started from, which reads the same rows."""

    q: ScoringFamily
    state: PyTree
    """a_t under its λ."""
    advantage: Array
    """By how much the learned family's log score is better, in nats per row: a running mean over the latest HORIZON."""

    def choose(self, learned: PyTree, unlearned: PyTree) -> PyTree:
        return jax.tree.map(
            lambda a, b: jnp.where(self.advantage > 0, a, b) if eqx.is_array(a) else a, learned, unlearned
        )

    def next(self, t: Array, state: PyTree, learned_score: Array) -> "Unlearned":
        """After one more row."""
        gain = learned_score - self.q.log_score(state)
        weight = jnp.maximum(1 / (t + 1.0), 1 / HORIZON).astype(self.advantage.dtype)
        advantage = self.advantage + jnp.where(jnp.isfinite(gain), weight * (gain - self.advantage), 0.0)
        return Unlearned(self.q, state, advantage)


HORIZON = 1000


class Info(NamedTuple):
    """What one observation told. `elbo` is its contribution to the objective; `mean` and `std` describe q_t of the
    result; `log_score` is the log density of the row given those before it, as the result predicted it, NaN where the
    family has none; `refused` says that the update was not finite and was not made."""

    t: Array
    elbo: Array
    gradient_norm: Array
    ess: Array
    acceptance: Array
    refused: Array
    mean: Float[Array, " d"]
    std: Float[Array, " d"]
    log_score: Array


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
        inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], u)
        return _first(self, q, _observed(self.model, q, np.asarray(y)[None], inputs)[0], u, key)

    def step(self, state: LearnerState, y: Array | np.ndarray, u: Any = None) -> tuple[LearnerState, Info]:
        """Reads one more. The state given is used up: its buffers become those of the new one."""
        inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], u)
        state, infos = _scan(self, state, np.asarray(y)[None], inputs)
        return state, Info(*(leaf[0] for leaf in infos))

    def scan(self, state: LearnerState, ys: Array | np.ndarray, inputs: Any = None) -> tuple[LearnerState, Info]:
        """Reads many, in blocks. The state given is used up. However the stream is cut, the bits are the same."""
        return _scan(self, state, ys, inputs)

    def current_model(self, state: LearnerState) -> StateSpaceModel:
        """p with the averaged θ, or as it was given where it is not learned."""
        if state.theta is None:
            return self.model
        return self._parameters().model(state.theta_average)

    def _parameters(self) -> ModelParameters:
        return ModelParameters(self.model, self.free)

    def _model(self, theta: PyTree) -> StateSpaceModel:
        return self.model if theta is None else self._parameters().model(theta)

    def _read(self, state: LearnerState, y: Array, u: Any) -> tuple[LearnerState, Info]:
        """One observation, under jit."""
        return self._ascend(state, *self._see(state, y, u))

    def _see(self, state: LearnerState, y: Array, u: Any) -> tuple[PyTree, OnlineEstimate, "Filters"]:
        """What one observation says under the λ and θ that the state has: the estimator's carry and estimate, and a_t
        under the averaged λ and θ. It is the first where t is 0: carry and filtered state are then not looked at."""
        p, key = self._model(state.theta), jax.random.fold_in(state.key, state.t)
        start = state.t == 0
        if not self.estimator.survives:
            start = start | (state.refused_in_a_row >= self.patience)
        carry, estimate = branch(
            start,
            lambda estimator, p, q, carry, y, u, key: estimator.init(p, q, y, u, key=key),
            lambda estimator, p, q, carry, y, u, key: estimator.step(p, q, carry, y, u, key=key),
            *(self.estimator, p, state.q, state.carry, y, u, key),
        )
        fixed = self.estimator.fixed_filter(carry)
        if fixed is not None:
            return carry, estimate, Filters(fixed, None)
        p = self.current_model(state)

        def advance(q, filtered):
            before = branch(
                state.t == 0,
                lambda p, q, filtered, u: q.init(p, u),
                lambda p, q, filtered, u: filtered,
                *(p, q, filtered, u),
            )
            return _filtered(p, q, before, y, u)

        unlearned = state.unlearned
        beside = None if unlearned is None else advance(unlearned.q, unlearned.state)
        return carry, estimate, Filters(advance(state.average, state.filtered), beside)

    def _ascend(self, state, carry, estimate: OnlineEstimate, filters: "Filters") -> tuple[LearnerState, Info]:
        moved, finite = self._move(state, estimate.increment)
        finite = finite & _all_finite((estimate.increment.elbo, estimate.increment.gradient))
        settled, info = self._settle(state, carry, estimate, filters, finite)
        return settled._replace(**self._averaged(state, moved, finite)), info

    def _move(self, state: LearnerState, increment: Estimate, length: Array | float = 1.0) -> tuple["Moved", Array]:
        """λ and θ one step further along an increment, `length` times as far, and whether they are finite."""

        def apply(values, updates):
            longer = jax.tree.map(lambda leaf: jnp.asarray(length, leaf.dtype) * leaf, updates)
            return optax.apply_updates(values, longer)

        lam = eqx.filter(state.q, eqx.is_inexact_array)
        updates, optimiser = self.optimiser.update(jax.tree.map(jnp.negative, increment.gradient), state.optimiser, lam)
        lam, theta, model_optimiser = apply(lam, updates), state.theta, state.model_optimiser
        if self.model_optimiser is not None:
            gradient = self._parameters().pull(theta, increment.model_gradient)
            updates, model_optimiser = self.model_optimiser.update(
                jax.tree.map(jnp.negative, gradient), model_optimiser, theta
            )
            theta = apply(theta, updates)
        return Moved(lam, theta, optimiser, model_optimiser), _all_finite((lam, theta))

    def _averaged(self, state: LearnerState, moved: "Moved", accepted: Array) -> dict[str, PyTree]:
        """What of a state changes with λ and θ: they move if that is accepted, and enter the running means."""
        lam, static = eqx.partition(state.q, eqx.is_inexact_array)
        old = Moved(lam, state.theta, state.optimiser, state.model_optimiser)
        kept = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), moved, old)
        average, theta_average = self.averaging.update(
            eqx.filter((state.average, state.theta_average), eqx.is_inexact_array), (kept.lam, kept.theta), state.t
        )
        return {
            "q": eqx.combine(kept.lam, static),
            "average": eqx.combine(average, static),
            "theta": kept.theta,
            "theta_average": theta_average,
            "optimiser": kept.optimiser,
            "model_optimiser": kept.model_optimiser,
        }

    def _settle(self, state, carry, estimate: OnlineEstimate, filters: "Filters", finite) -> tuple[LearnerState, Info]:
        """The stream's own part of the state after one observation, and what is told of it."""
        if not self.estimator.survives:
            carry = jax.tree.map(lambda a, b: jnp.where(finite, a, b), carry, state.carry)
        learned, unlearned = state.average, state.unlearned
        score = jnp.full_like(estimate.increment.elbo, jnp.nan)
        if isinstance(learned, ScoringFamily):
            score = learned.log_score(filters.learned)
        reported, mean, cov = score, *learned.moments(filters.learned)
        if unlearned is not None:
            unlearned = unlearned.next(state.t, filters.unlearned, score)
            beside = unlearned.q.log_score(filters.unlearned), *unlearned.q.moments(filters.unlearned)
            reported, mean, cov = unlearned.choose((score, mean, cov), beside)
        info = Info(
            state.t,
            estimate.increment.elbo,
            optax.tree.norm(estimate.increment.gradient),
            estimate.ess,
            estimate.acceptance,
            ~finite,
            mean,
            jnp.sqrt(jnp.diag(cov)),
            jnp.where(finite, reported, jnp.nan),
        )
        state = state._replace(
            t=state.t + 1,
            carry=carry,
            filtered=filters.learned,
            unlearned=unlearned,
            refused=state.refused + ~finite,
            refused_in_a_row=jnp.where(finite, 0, state.refused_in_a_row + 1),
        )
        return state, info


class Filters(NamedTuple):
    """a_t under the averaged λ, and under the λ before anything was learned, where that is kept."""

    learned: PyTree
    unlearned: PyTree


class Moved(NamedTuple):
    """What an optimiser has changed."""

    lam: PyTree
    theta: PyTree
    optimiser: PyTree
    model_optimiser: PyTree


# Functions, not methods: a method of a module is an object of its own, made anew at each call, which takes as long as
# a tenth of a step.
def _scan(learner: OnlineLearner, state: LearnerState, ys: Any, inputs: Any) -> tuple[LearnerState, Info]:
    lengths = {len(leaf) for leaf in jax.tree.leaves(inputs)}
    if lengths - {len(ys)}:
        raise ValueError(f"There are {len(ys)} rows of observations, but {max(lengths)} of inputs.")
    if not len(ys):
        return state, jax.tree.map(np.asarray, blank_infos(0, state.q.state_dim, _dtype(state.q)))
    observed, block, collected = _observed(learner.model, state.q, ys, inputs, int(state.t)), learner.block, []
    for start in range(0, len(observed), block):
        rows = slice(start, start + block)
        n = len(observed[rows])
        y, u = jax.tree.map(lambda leaf, rows=rows: _pad(np.asarray(leaf)[rows], block), (observed, inputs))
        state, infos = _advance(learner, state, y, u, np.asarray(n))
        collected.append([np.asarray(leaf)[:n] for leaf in infos])
    told: Any = collected[0] if len(collected) == 1 else map(np.concatenate, zip(*collected, strict=True))
    return state, Info(*told)


def _observed(p: StateSpaceModel, q: BackwardFamily, ys: Any, inputs: Any, first_row: int = 0) -> np.ndarray:
    """Rows of observations in the precision of λ, once they are known to be some, there too, with finite inputs."""
    shape, given = check_model(p, jax.tree.map(lambda leaf: leaf[0], inputs)), np.asarray(ys)
    check_inputs(inputs, first_row)
    check_observations(shape, given, first_row)
    observed = _like(q, given)
    if observed is not given:  # what is finite in one precision may not be in another
        check_observations(shape, observed, first_row)
    return observed


@eqx.filter_jit
def _first(learner: OnlineLearner, q, y, u, key):
    theta = model_optimiser = None
    if learner.model_optimiser is not None:
        theta = learner._parameters().unconstrained()
        model_optimiser = learner.model_optimiser.init(theta)
    p = learner._model(theta)
    carry, estimate = learner.estimator.init(p, q, y, u, key=jax.random.fold_in(key, 0))
    zero = jnp.zeros((), jnp.uint32)
    filtered, unlearned = _filtered(p, q, q.init(p, u), y, u), None
    if isinstance(q, ScoringFamily) and learner.estimator.learns_family:
        unlearned = Unlearned(q, filtered, jnp.zeros_like(estimate.increment.elbo))
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
        filtered,
        unlearned,
        zero,
        zero,
    )
    filters = Filters(filtered, None if unlearned is None else filtered)
    state, info = learner._ascend(state, carry, estimate, filters)
    # Weakly typed leaves would become strong in the first block, and the second would be compiled anew.
    return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype) if eqx.is_array(leaf) else leaf, state), info


@compiled(donate=1)
def _advance(learner: OnlineLearner, state: LearnerState, ys, inputs, n):
    """The first n of a block of observations. One program for every n, so that how a stream is cut changes no bit."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def read(k, loop):
        arrays, infos = loop
        y, u = jax.tree.map(lambda leaf: leaf[k], (ys, inputs))
        state, info = learner._read(eqx.combine(arrays, static), y, u)
        infos = jax.tree.map(lambda buffer, leaf: buffer.at[k].set(leaf), infos, info)
        return eqx.filter(state, eqx.is_array), infos

    arrays, infos = jax.lax.fori_loop(0, n, read, (arrays, blank_infos(len(ys), state.q.state_dim, ys.dtype)))
    return eqx.combine(arrays, static), infos


def blank_infos(length: int, dim: int, dtype) -> Info:
    """Room for what a block of observations tells: known beforehand, so that nothing is traced twice."""
    number, vector = jnp.zeros(length, dtype), jnp.zeros((length, dim), dtype)
    t, refused = jnp.zeros(length, jnp.uint32), jnp.zeros(length, bool)
    return Info(t, number, number, number, number, refused, vector, vector, number)


def _filtered(p: StateSpaceModel, q: BackwardFamily, before: PyTree, y: Array, u: Any) -> PyTree:
    """The state after one more row, or that before it where it would not be finite."""
    after = q.update(p, before, y, u)
    finite = _all_finite(after)
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), after, before)


def _all_finite(tree: PyTree) -> Array:
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.stack(leaves).all()


def _like(q: BackwardFamily, y: Array | np.ndarray) -> np.ndarray:
    """Observations in the precision of λ."""
    with np.errstate(over="ignore"):
        return np.asarray(y, _dtype(q))


def _dtype(q: BackwardFamily) -> np.dtype:
    return next(leaf.dtype for leaf in jax.tree.leaves(q) if eqx.is_inexact_array(leaf))


def _pad(rows: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros((length, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded
