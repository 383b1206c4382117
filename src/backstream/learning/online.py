"""Learning from a stream: each observation is used once, moves λ (and θ, if asked), and is forgotten."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from backstream._jax.batched_cond import branch
from backstream._jax.compiling import compiled
from backstream.estimators.base import Estimate, OnlineEstimate, OnlineEstimator
from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.families.guided.family import PlannedFamily
from backstream.models.base import StateSpaceModel
from backstream.models.density import check_inputs, check_model, check_observations

from .averaging import Averaging
from .parameters import ModelParameters
from .predictive import Predictive, predictive_scores
from .records import Filters, Info, LearnerState, Moved, all_finite, blank_infos, dtype_of, like_family
from .steps import Settling
from .tally import Evidence, Tally
from .unlearned import Turn, Unlearned, first_or_both, swapped_if

PREDICTIVE_DRAWS = 2**31
"""Folded into the key of a row for the draws of its prediction."""


class OnlineLearner(eqx.Module):
    """λ_{t+1} = λ_t + γ · (direction of the estimator's objective), through an optax transformation.

    `optimizer` descends, as optax does; it is fed minus the increment. `model_optimizer`, if given, makes θ move too
    (the estimator must then have `learn_model`), except what `free` leaves out: a further transformation,
    or `Settling()`, which needs no tuning and has an average of its own. `averaging` makes the result of the others;
    `model_averaging`, if given, that of θ.
    `block` is the number of observations that one compiled call takes at most; results do not depend on it. The first
    `quick_rows` are read by a program that is compiled in half the time and is somewhat slower.

    An update that is not finite is refused: λ, θ and the carry stay as they were, and it is counted. After `patience`
    refusals in a row the recursion starts again from the next observation, with the λ it has. `num_draws` are taken of
    the prediction of each row, for its PIT values and residuals; with none there are no such scores. `fallback` says
    that a family which scores itself is reported as it was before it learned, where that predicts the rows better.

        learner = OnlineLearner(model, estimator, optax.adam(1e-3))
        state = learner.init(q, key=key)
        state, infos = learner.scan(state, ys)
        state.average
    """

    model: StateSpaceModel
    estimator: OnlineEstimator
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    model_optimizer: optax.GradientTransformation | Settling | None = eqx.field(static=True, default=None)
    free: PyTree = None
    averaging: Averaging = Averaging()
    model_averaging: Averaging | None = None
    block: int = eqx.field(static=True, default=256)
    patience: int = eqx.field(static=True, default=10)
    num_draws: int = eqx.field(static=True, default=32)
    fallback: bool = eqx.field(static=True, default=True)
    quick_rows: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.block < 1:
            raise ValueError(f"block must be at least 1, not {self.block}.")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, not {self.patience}.")
        learns = getattr(self.estimator, "learn_model", False)
        if learns != (self.model_optimizer is not None):
            raise ValueError(
                "To learn the model, give both a model_optimizer and an estimator with learn_model=True; "
                f"here model_optimizer is {'given' if self.model_optimizer else 'None'} and learn_model is {learns}."
            )

    def init(self, q: BackwardFamily, u: Any = None, *, key: Array) -> LearnerState:
        """The state before any row. `u` are the inputs of the first row, where the model takes any."""
        check_model(self.model, u)
        check_inputs(jax.tree.map(lambda leaf: np.asarray(leaf)[None], u), 0)
        return _blank(self, q, u, key)

    def step(self, state: LearnerState, y: Array | np.ndarray, u: Any = None) -> tuple[LearnerState, Info]:
        """Reads one more. The state given is used up: its buffers become those of the new one."""
        inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], u)
        state, infos = _scan(self, state, np.asarray(y)[None], inputs)
        return state, Info(*(leaf[0] for leaf in infos))

    def scan(self, state: LearnerState, ys: Array | np.ndarray, inputs: Any = None) -> tuple[LearnerState, Info]:
        """Reads many, in blocks. The state given is used up. However the stream is cut, the bits are the same."""
        return _scan(self, state, ys, inputs)

    def taken_over(self, q: PlannedFamily, state: LearnerState, u: Any = None) -> LearnerState:
        """The state from which this learner goes on with `q`, where `state` is that of a learner whose posterior reads
        the same model by another plan. λ is learned anew from where it was."""

        def at(family: Any) -> PlannedFamily:
            return eqx.tree_at(lambda q: q.log_inflation, q, family.log_inflation)

        blank, filtered = self.init(q, u, key=state.key), q.taken_over(state.filtered)
        unlearned = None if blank.unlearned is None else blank.unlearned._replace(state=filtered)
        state = state._replace(
            q=at(state.q),
            average=at(state.average),
            optimizer=blank.optimizer,
            carry=blank.carry._replace(state=filtered),
            filtered=filtered,
            unlearned=unlearned,
        )
        # Each block uses up the buffers of the state: no two leaves may share one.
        return jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state)

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

    def _see(self, state: LearnerState, y: Array, u: Any) -> tuple[PyTree, OnlineEstimate, Filters]:
        """What one observation says under the λ and θ that the state has: the estimator's carry and estimate, and a_t
        of the result. It is the first where t is 0: carry and filtered state are then not looked at."""
        carry, estimate = self._estimated(state, y, u)
        fixed = self.estimator.fixed_filter(carry)
        p = self.current_model(state)
        predicted = self._predicted(p, state, y, u)
        if fixed is not None:
            return carry, estimate, Filters(fixed, None, predicted)

        def advance(q, filtered):
            before = branch(
                state.t == 0,
                lambda p, q, filtered, u: q.init(p, u),
                lambda p, q, filtered, u: filtered,
                *(p, q, filtered, u),
            )
            return _filtered(p, q, before, y, u)

        if state.unlearned is None:
            return carry, estimate, Filters(advance(state.average, state.filtered), None, predicted)
        turn, unlearned = Turn.of(state.t), state.unlearned
        reported = state.result(), state.filtered
        other = unlearned.other(state.average), unlearned.state
        return carry, estimate, Filters(*first_or_both(advance, turn, reported, other), predicted)

    def _estimated(self, state: LearnerState, y: Array, u: Any) -> tuple[PyTree, OnlineEstimate]:
        """The estimator's carry and estimate after one observation."""
        p, key = self._model(state.theta), jax.random.fold_in(state.key, state.t)
        start = state.t == 0
        if not self.estimator.survives:
            start = start | (state.refused_in_a_row >= self.patience)
        carry = self.estimator.restarted(p, state.q, state.carry, start, u)
        return self.estimator.step(p, state.q, carry, y, u, key=key)

    def _predicted(self, p: StateSpaceModel, state: LearnerState, y: Array, u: Any) -> Predictive:
        """How the row compares with what the result predicted of it."""
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.t), PREDICTIVE_DRAWS)
        return predictive_scores(p, state.result(), state.filtered, state.t == 0, y, u, self.num_draws, key=key)

    def _ascend(self, state, carry, estimate: OnlineEstimate, filters: Filters) -> tuple[LearnerState, Info]:
        moved, finite = self._move(state, estimate.increment)
        finite = finite & all_finite((estimate.increment.elbo, estimate.increment.gradient))
        settled, info = self._settle(state, carry, estimate, filters, finite)
        return settled._replace(**self._averaged(state, moved, finite)), info

    def _move(
        self, state: LearnerState, increment: Estimate, length: Array | float = 1.0, rows: Array | float = 1.0
    ) -> tuple[Moved, Array]:
        """λ and θ one step further along an increment, the mean of those of `rows` rows, `length` times as far, and
        whether they are finite."""

        def apply(values, updates):
            longer = jax.tree.map(lambda leaf: jnp.asarray(length, leaf.dtype) * leaf, updates)
            return optax.apply_updates(values, longer)

        lam = eqx.filter(state.q, eqx.is_inexact_array)
        updates, optimizer = self.optimizer.update(jax.tree.map(jnp.negative, increment.gradient), state.optimizer, lam)
        lam, theta, model_optimizer = apply(lam, updates), state.theta, state.model_optimizer
        if self.model_optimizer is not None:
            gradient = jax.tree.map(jnp.negative, self._parameters().pull(theta, increment.model_gradient))
            if isinstance(self.model_optimizer, Settling):
                bounded = self._parameters().bounded()
                updates, model_optimizer = self.model_optimizer.update(gradient, model_optimizer, theta, rows, bounded)
                theta = optax.apply_updates(theta, updates)
            else:
                updates, model_optimizer = self.model_optimizer.update(gradient, model_optimizer, theta)
                theta = apply(theta, updates)
        return Moved(lam, theta, optimizer, model_optimizer), all_finite((lam, theta))

    def _averaged(self, state: LearnerState, moved: Moved, accepted: Array) -> dict[str, PyTree]:
        """What of a state changes with λ and θ: they move if that is accepted, and enter the running means."""
        lam, static = eqx.partition(state.q, eqx.is_inexact_array)
        old = Moved(lam, state.theta, state.optimizer, state.model_optimizer)
        kept = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), moved, old)
        average = self.averaging.update(eqx.filter(state.average, eqx.is_inexact_array), kept.lam, state.t)
        if isinstance(self.model_optimizer, Settling):
            theta_average = self.model_optimizer.estimate(kept.model_optimizer, kept.theta)
        else:
            averaging = self.averaging if self.model_averaging is None else self.model_averaging
            theta_average = averaging.update(state.theta_average, kept.theta, state.t)
        return {
            "q": eqx.combine(kept.lam, static),
            "average": eqx.combine(average, static),
            "theta": kept.theta,
            "theta_average": theta_average,
            "optimizer": kept.optimizer,
            "model_optimizer": kept.model_optimizer,
        }

    def _settle(self, state, carry, estimate: OnlineEstimate, filters: Filters, finite) -> tuple[LearnerState, Info]:
        """The stream's own part of the state after one observation, and its info."""
        if not self.estimator.survives:
            carry = jax.tree.map(lambda a, b: jnp.where(finite, a, b), carry, state.carry)
        q, unlearned, filtered = state.average, state.unlearned, filters.reported
        score = gain = jnp.full_like(estimate.increment.elbo, jnp.nan)
        if isinstance(q, ScoringFamily):
            score = q.log_score(filtered)
        if unlearned is not None:
            unlearned, gain, turned = unlearned.next(state.t, score, unlearned.q.log_score(filters.other))
            filtered, other = swapped_if(turned, filtered, filters.other)
            unlearned = unlearned._replace(state=other)
        mean, cov = q.moments(filtered)
        info = Info(
            state.t,
            estimate.increment.elbo,
            optax.tree.norm(estimate.increment.gradient),
            estimate.ess,
            estimate.acceptance,
            ~finite,
            mean,
            jnp.sqrt(jnp.diag(cov)),
            jnp.where(finite, score, jnp.nan),
            filters.predicted.pit,
            filters.predicted.residual,
            filters.predicted.crps,
        )
        lost = ~finite | ~all_finite((mean, cov))
        evidence = Evidence(lost, info.log_score, info.elbo, gain, filters.predicted)
        state = state._replace(
            t=state.t + 1,
            carry=carry,
            filtered=filtered,
            unlearned=unlearned,
            tally=state.tally.add(evidence),
            refused=state.refused + ~finite,
            refused_in_a_row=jnp.where(finite, 0, state.refused_in_a_row + 1),
        )
        return state, info


# Functions, not methods: a method of a module is an object of its own, created at each call, which takes as long as
# a tenth of a step.
def _scan(learner: OnlineLearner, state: LearnerState, ys: Any, inputs: Any) -> tuple[LearnerState, Info]:
    lengths = {len(leaf) for leaf in jax.tree.leaves(inputs)}
    if lengths - {len(ys)}:
        raise ValueError(f"There are {len(ys)} rows of observations, but {max(lengths)} of inputs.")
    if not len(ys):
        return state, jax.tree.map(np.asarray, blank_infos(0, state.q, dtype_of(state.q)))
    first, collected = int(state.t), []
    observed = _observed(learner.model, state.q, ys, inputs, first)
    for rows, quickly in _blocks(learner, first, len(observed)):
        n = rows.stop - rows.start
        y, u = jax.tree.map(lambda leaf, rows=rows: _pad(np.asarray(leaf)[rows], learner.block), (observed, inputs))
        state, infos = (_advance_quickly if quickly else _advance)(learner, state, y, u, np.asarray(n))
        collected.append([np.asarray(leaf)[:n] for leaf in infos])
    told: Any = collected[0] if len(collected) == 1 else map(np.concatenate, zip(*collected, strict=True))
    return state, Info(*told)


def _blocks(learner: OnlineLearner, first: int, count: int) -> Iterator[tuple[slice, bool]]:
    """The blocks of `count` rows from row `first` on, and whether the quickly compiled program reads them. Which
    program reads a row depends on its number only."""
    start = 0
    while start < count:
        quick = max(learner.quick_rows - first - start, 0)
        stop = min(count, start + learner.block, start + quick if quick else count)
        yield slice(start, stop), quick > 0
        start = stop


def _observed(p: StateSpaceModel, q: BackwardFamily, ys: Any, inputs: Any, first_row: int = 0) -> np.ndarray:
    """Rows of observations in the precision of λ, once they are known to be some, there too, with finite inputs."""
    shape, given = check_model(p, jax.tree.map(lambda leaf: leaf[0], inputs)), np.asarray(ys)
    check_inputs(inputs, first_row)
    check_observations(shape, given, first_row)
    observed = like_family(q, given)
    if observed is not given:  # what is finite in one precision may not be in another
        check_observations(shape, observed, first_row)
    return observed


def blank_state(learner: OnlineLearner, q: BackwardFamily, u: Any, key: Array) -> LearnerState:
    """The state before any row, under jit. Carry and filters are zeros: the first row makes them."""
    theta = model_optimizer = None
    if learner.model_optimizer is not None:
        theta = learner._parameters().unconstrained()
        model_optimizer = learner.model_optimizer.init(theta)
    p, estimator = learner._model(theta), learner.estimator
    carry = _zeros(eqx.filter_eval_shape(lambda: estimator.init(p, q, u)), key)
    filtered, unlearned = _zeros(eqx.filter_eval_shape(lambda: q.init(p, u)), key), None
    if isinstance(q, ScoringFamily) and estimator.learns_family:
        unlearned = Unlearned.begin(q, filtered, learner.fallback, q.log_score(filtered).dtype)
    zero = jnp.zeros((), jnp.uint32)
    state = LearnerState(
        zero,
        key,
        q,
        q,
        theta,
        theta,
        learner.optimizer.init(eqx.filter(q, eqx.is_inexact_array)),
        model_optimizer,
        carry,
        filtered,
        unlearned,
        Tally.begin(q.obs_dim, dtype_of(q)),
        zero,
        zero,
    )
    # Weakly typed leaves would become strong in the first block, and the second would be compiled again.
    return jax.tree.map(_strongly_typed, state)


def _strongly_typed(leaf: Any) -> Any:
    is_number = eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.lax.convert_element_type(leaf, leaf.dtype) if is_number else leaf


def _zeros(shapes: PyTree, key: Array) -> PyTree:
    """Arrays of the given shapes; keys, which have no zero, are copies of one."""

    def one(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jnp.broadcast_to(key, leaf.shape) if is_key else jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(one, shapes)


_blank = eqx.filter_jit(blank_state)


def _read_block(learner: OnlineLearner, state: LearnerState, ys, inputs, n):
    """The first n of a block of observations. One program for every n, so that how a stream is cut changes no bit."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def read(k, loop):
        arrays, infos = loop
        y, u = jax.tree.map(lambda leaf: leaf[k], (ys, inputs))
        state, info = learner._read(eqx.combine(arrays, static), y, u)
        infos = jax.tree.map(lambda buffer, leaf: buffer.at[k].set(leaf), infos, info)
        return eqx.filter(state, eqx.is_array), infos

    arrays, infos = jax.lax.fori_loop(0, n, read, (arrays, blank_infos(len(ys), state.q, ys.dtype)))
    return eqx.combine(arrays, static), infos


_advance, _advance_quickly = (compiled(donate=1, quickly=quickly)(_read_block) for quickly in (False, True))


def _filtered(p: StateSpaceModel, q: BackwardFamily, before: PyTree, y: Array, u: Any) -> PyTree:
    """The state after one more row, or that before it where it would not be finite."""
    after = q.update(p, before, y, u)
    finite = all_finite(after)
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), after, before)


def _pad(rows: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros((length, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded
