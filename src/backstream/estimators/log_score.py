"""The gradient of the log score: how probable each row was, given those before it.

The log scores of a stream add up to its log-likelihood, as the family sees it. Where the family is exact their gradient
in θ is that of the likelihood.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from backstream._jax.batched_cond import branch
from backstream._jax.compensated_sums import CompensatedSum
from backstream.families.base import ScoringFamily, State
from backstream.models.base import StateSpaceModel

from .base import Estimate, OnlineEstimate, OnlineEstimator, check_case, check_sizes, flatten, like


class LogScoreCarry(NamedTuple):
    state: State
    sensitivity: Float[Array, "a p"]
    """∂a_t/∂(λ, θ)."""
    sums: CompensatedSum
    """The log score of all rows, and its gradient."""


class LogScore(OnlineEstimator):
    """The log score of each row and its derivative in λ, and in θ with `learn_model`.

    The state's derivatives are carried forward (real-time recurrent learning), so that the gradient is exact. It costs
    about one more update of the filter for each parameter, or for each number of the state where those are fewer.
    Without `learn_family` λ stays as it is.

        estimator = LogScore(learn_model=True)
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
        estimate.increment.model_gradient
    """

    learn_model: bool = eqx.field(static=True, default=False)
    learn_family: bool = eqx.field(static=True, default=True)
    free: PyTree = None
    """Which arrays of the model are learned, as a pytree of booleans: None for all. The gradient in others is zero."""
    estimates_elbo: ClassVar[bool] = False
    survives: ClassVar[bool] = True

    @property
    def learns_family(self) -> bool:
        return self.learn_family

    def fixed_filter(self, carry):
        return None if self.learn_family or self.learn_model else carry.state

    def init(self, p, q, u=None):
        if not isinstance(q, ScoringFamily):
            raise TypeError(f"{type(q).__name__} has no log score: LogScore needs a family that reads the model.")
        check_sizes(p, q, u)
        parameters, rebuild = self._parameters(p, q)
        arrays, restore = flatten(q.init(p, u))

        def start(parameters):
            return flatten(rebuild(parameters)[1].init(rebuild(parameters)[0], u))[0]

        sensitivity = jax.jacfwd(start)(parameters)
        sums = CompensatedSum.zeros((1 + parameters.size,), arrays.dtype)
        return LogScoreCarry(restore(arrays), sensitivity, sums)

    def restarted(self, p, q, carry, start, u=None):
        return branch(
            start,
            lambda estimator, p, q, carry, u: estimator.init(p, q, u),
            lambda estimator, p, q, carry, u: carry,
            *(self, p, q, carry, u),
        )

    def step(self, p, q, carry, y, u=None, *, key):
        check_case(p, q, y, u)
        parameters, rebuild = self._parameters(p, q)
        arrays, restore = flatten(carry.state)

        def advance(parameters, arrays):
            p, q = rebuild(parameters)
            state = q.update(p, restore(arrays), y, u)
            return jnp.append(flatten(state)[0], q.log_score(state)), state

        if parameters.size == 0:
            after, state = advance(parameters, arrays)
            slope = jnp.zeros((after.size, 0), after.dtype)
        elif parameters.size <= arrays.size:

            def along(direction, sensitivity):
                return jax.jvp(advance, (parameters, arrays), (direction, sensitivity), has_aux=True)

            eye = jnp.eye(parameters.size, dtype=parameters.dtype)
            # What does not depend on the direction is computed once, and without an axis for the directions.
            after, slope, state = jax.vmap(along, (0, 1), (None, 1, None))(eye, carry.sensitivity)
        else:
            after, back, state = jax.vjp(advance, parameters, arrays, has_aux=True)
            direct, before = jax.vmap(back)(jnp.eye(after.size, dtype=after.dtype))
            slope = direct + before @ carry.sensitivity
        score, sensitivity, gradient = after[-1], slope[:-1], slope[-1]
        finite = jnp.isfinite(score) & jnp.isfinite(gradient).all()
        sensitivity = jnp.where(jnp.isfinite(sensitivity).all(), sensitivity, 0.0)
        sums = carry.sums.add(jnp.where(finite, jnp.concatenate([score[None], gradient]), 0.0))
        nan = jnp.full_like(score, jnp.nan)
        increment = self._estimate(p, q, score, gradient)
        total = self._estimate(p, q, sums.total()[0], sums.total()[1:])
        return LogScoreCarry(state, sensitivity, sums), OnlineEstimate(total, increment, ess=nan, acceptance=nan)

    def _parameters(self, p: StateSpaceModel, q: Any) -> tuple[Array, Any]:
        """What is learned as one vector, and the way back to model and family."""
        (lam, to_q), (theta, to_p) = flatten(q), flatten(self._moving(p))
        size = lam.size if self.learn_family else 0

        def rebuild(vector):
            return (
                eqx.combine(to_p(vector[size:].astype(theta.dtype)), p) if self.learn_model else p,
                to_q(vector[:size]) if self.learn_family else q,
            )

        parts = [lam] * self.learn_family + [theta.astype(lam.dtype)] * self.learn_model
        return jnp.concatenate(parts) if parts else jnp.zeros(0, lam.dtype), rebuild

    def _estimate(self, p, q, score: Array, gradient: Array) -> Estimate:
        size = flatten(q)[0].size if self.learn_family else 0
        lam = gradient[:size] if self.learn_family else jnp.zeros_like(flatten(q)[0])
        if not self.learn_model:
            return Estimate(score, like(q, lam), None)
        still = jax.tree.map(jnp.zeros_like, eqx.filter(p, eqx.is_inexact_array))
        return Estimate(score, like(q, lam), eqx.combine(like(self._moving(p), gradient[size:]), still))

    def _moving(self, p: StateSpaceModel) -> PyTree:
        return p if self.free is None else eqx.filter(p, self.free)
