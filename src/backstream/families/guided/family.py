"""The default family: a normal law that reads the model at every row."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from backstream.models.base import Inputs, StateSpaceModel

from .components import LEAST_BEND, NUM_PIECES, Merged, Pieces, cut, merge
from .laws import Row, state_moments
from .plan import Plan, make_plan
from .prediction import AffineLaw, backward_kernel, predict, scaled_cholesky
from .updates import Predicted


class GuidedState(NamedTuple):
    """a_t: q_t = N(mean, factor factorᵀ), and the kernel q_{t-1|t}."""

    t: Int[Array, ""]
    """How many rows have been read."""
    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    kernel: AffineLaw
    log_score: Float[Array, ""]
    """log p(y_t | y_{0:t-1}), a by-product of the update; 0 for a missing row."""


class Guided(eqx.Module):
    plan: Plan = eqx.field(static=True)
    log_inflation: Float[Array, ""]

    @classmethod
    def from_model(cls, p: StateSpaceModel, u: Inputs = None, dtype=None) -> "Guided":
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(make_plan(p, u, dtype), jnp.zeros((), dtype))

    def init(self, p: StateSpaceModel, u: Inputs = None) -> GuidedState:
        dtype = self.log_inflation.dtype
        prior = state_moments(p.prior(u), self.plan.prior_known, dtype)
        d = self.plan.state_dim
        nothing = AffineLaw(jnp.zeros(d, dtype), jnp.zeros((d, d), dtype), jnp.zeros((d, d), dtype))
        zero = jnp.zeros((), int)
        return GuidedState(zero, prior.mean, scaled_cholesky(prior.dense()), nothing, jnp.zeros((), dtype))

    def update(self, p: StateSpaceModel, state: GuidedState, y: Float[Array, " dy"], u: Inputs = None) -> GuidedState:
        row = Row.of(y, self.plan.fill.value)
        if self.plan.transition.affine:
            merged = self._read(p, row, u, self._move(p, state, u), state.t)
        else:
            merged = self._read_pieces(p, row, u, state)
        return GuidedState(state.t + 1, merged.mean, merged.factor, merged.kernel, merged.log_mass)

    def _move(self, p: StateSpaceModel, state: GuidedState, u: Inputs) -> "_Moved":
        """The state before the row is read: moved by the transition, except before the first row."""

        def first():
            return _Moved(state.mean, state.factor, state.kernel, jnp.zeros_like(state.mean))

        return jax.lax.cond(state.t == 0, first, lambda: self._predict(p, state.mean, state.factor, u))

    def _predict(self, p: StateSpaceModel, mean: Array, factor: Array, u: Inputs) -> "_Moved":
        found = predict(p, self.plan.transition, mean, factor, u, jnp.exp(self.log_inflation))
        return _Moved(found.mean, found.factor, backward_kernel(mean, factor, found), found.bend)

    def _read(self, p: StateSpaceModel, row: Row, u: Inputs, moved: "_Moved", t: Array) -> Merged:
        """Prediction × emission; the prediction where nothing is seen, or where nothing could be computed."""
        predicted = Predicted(moved.mean, moved.factor, t)
        tilted = self.plan.update(p, row, u, predicted)
        good = jnp.isfinite(tilted.mean).all() & jnp.isfinite(tilted.factor).all() & row.seen.any()
        eye = jnp.eye(len(moved.mean), dtype=moved.mean.dtype)
        mean, factor = jnp.where(good, tilted.mean, 0.0), jnp.where(good, tilted.factor, eye)
        log_mass = jnp.where(row.seen.any(), tilted.log_mass, 0.0)
        return Merged(predicted.at(mean), moved.factor @ factor, moved.kernel, log_mass)

    def _read_pieces(self, p: StateSpaceModel, row: Row, u: Inputs, state: GuidedState) -> Merged:
        """Where the transition bends over q_{t-1}: cut, moved and read piece by piece, and merged."""
        moved = self._move(p, state, u)
        bends = moved.bend.max() > LEAST_BEND

        def in_pieces():
            pieces = cut(state.mean, state.factor, moved.bend)
            return pieces.log_weight, jax.vmap(lambda m, L: self._predict(p, m, L, u))(pieces.mean, pieces.factor)

        def in_one():
            weight = jnp.full(NUM_PIECES, -jnp.inf, moved.mean.dtype).at[0].set(0.0)
            return weight, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (NUM_PIECES, *leaf.shape)), moved)

        log_weight, every = jax.lax.cond(bends, in_pieces, in_one)

        def read(_, piece):
            weight, moved = piece
            skipped = Merged(moved.mean, moved.factor, moved.kernel, jnp.zeros_like(weight))
            present = jnp.isfinite(weight)
            return None, jax.lax.cond(present, lambda: self._read(p, row, u, moved, state.t), lambda: skipped)

        _, each = jax.lax.scan(read, None, (log_weight, every))
        return jax.lax.cond(
            bends,
            lambda: merge(Pieces(log_weight + each.log_mass, each.mean, each.factor), each.kernel),
            lambda: jax.tree.map(lambda leaf: leaf[0], each),
        )


class _Moved(NamedTuple):
    """A normal law before the row is read, with the kernel back to the law it came from."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    kernel: AffineLaw
    bend: Float[Array, " d"]
