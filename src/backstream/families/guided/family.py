"""The default family: a Gaussian that is computed from the model at every row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from backstream.families.base import ScoringFamily, State
from backstream.families.kernels import AffineKernel, Kernel
from backstream.laws.gaussian import Gaussian, invert, scaled_cholesky
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law

from .components import FIRST, LEAST_BEND, Merged, Pieces, cut, merge
from .laws import Row, state_moments
from .places import Place
from .plan import Plan, make_plan
from .prediction import AffineLaw, backward_kernel, predict
from .updates import Predicted


class GuidedState(NamedTuple):
    """a_t: q_t = N(mean, factor factorᵀ), the kernel q_{t-1|t}, and the law q_{t-1} that it leads to."""

    t: Int[Array, ""]
    """How many rows have been read."""
    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    kernel: AffineLaw
    before: tuple[Float[Array, " d"], Float[Array, "d d"]]
    log_score: Float[Array, ""]
    """log p(y_t | y_{0:t-1}), a by-product of the update; 0 for a missing row."""
    failed: Bool[Array, ""]
    """Whether the row could not be read: it is not possible under the model, or nothing finite came of it."""


class GuidedKernel(Kernel):
    law: AffineLaw
    before: tuple[Float[Array, " d"], Float[Array, "d d"]]

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        """q_{t-1|t}(x, ·) / q_{t-1}. There is none where the noise of the transition is singular."""
        kernel = _natural(self.law.mean + self.law.gain @ x, self.law.cov)
        mean, factor = self.before
        before = _natural(mean, factor @ factor.T)
        return Gaussian(kernel.eta1 - before.eta1, kernel.eta2 - before.eta2)

    def affine(self, before: Gaussian) -> AffineKernel:
        return AffineKernel(self.law.mean, self.law.gain, scaled_cholesky(self.law.cov).T)


def _natural(mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> Gaussian:
    precision = invert(scaled_cholesky(cov))
    return Gaussian.from_precision(precision @ mean, precision)


class PlannedFamily(ScoringFamily):
    """A posterior that reads the model by a plan, with one normal law or several."""

    plan: Plan = eqx.field(static=True)
    log_inflation: Float[Array, ""]

    @property
    def state_dim(self) -> int:
        return self.plan.state_dim

    @property
    def obs_dim(self) -> int:
        return self.plan.obs_dim

    @property
    def exact(self) -> bool:
        """Whether the model is linear and Gaussian: q is then its smoothing law, and there is nothing to learn in λ."""
        return self.plan.exact

    @abstractmethod
    def taken_over(self, state: State) -> State:
        """A state of a family that reads the same model by another plan, as one of this."""

    def log_score(self, state):
        return jnp.where(state.failed, -jnp.inf, state.log_score)


class Guided(PlannedFamily):
    """The default posterior: a Gaussian with the moments of prediction × emission, read off the model at every row.

    The prediction has the moments of the transition under q_{t-1}. If the transition is nonlinear over q_{t-1}, the
    Gaussian is split into narrower pieces, which are propagated and updated one by one and then merged. How the
    emission is evaluated depends on its distribution, see `plan`. The backward kernel has the joint moments of the
    prediction and the previous state. For a linear Gaussian model, all of this is exact.

    λ is one number: the logarithm of a factor on the covariance of the model's noise. It corrects for what a Gaussian
    cannot represent, and starts at zero.

    >>> from backstream.models import ChaoticRNN
    >>> from backstream.posterior import filter
    >>> p = ChaoticRNN.random(3, key=jax.random.key(0))
    >>> filter(p, Guided.from_model(p), jnp.array([[0.1, jnp.nan, 0.3]])).mean.shape
    (1, 3)
    """

    affine: ClassVar[bool] = True
    amortized: ClassVar[bool] = True

    @classmethod
    def from_model(
        cls,
        p: StateSpaceModel,
        u: Inputs = None,
        dtype=None,
        places: Sequence[Place] = (),
        other: StateSpaceModel | None = None,
    ) -> "Guided":
        """Builds the posterior of a model.

        Args:
            p: The model.
            u: The inputs of the first row, if the model has inputs.
            dtype: The precision. Default: that of JAX.
            places: Where else to read the model, beside the surroundings of its prior.
            other: The model with other parameters, if they are to be learned.
        """
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(make_plan(p, u, dtype, places, other), jnp.zeros((), dtype))

    def taken_over(self, state):
        return state

    def init(self, p, u=None):
        dtype, d = self.log_inflation.dtype, self.plan.state_dim
        prior = state_moments(prior_law(p, u), self.plan.prior.known, dtype)
        law = prior.mean, scaled_cholesky(prior.dense())
        # Any law that has a density: there is no kernel before the second row, and nothing of this one is used.
        kernel = AffineLaw(prior.mean, jnp.zeros((d, d), dtype), prior.dense())
        return GuidedState(jnp.zeros((), int), *law, kernel, law, jnp.zeros((), dtype), jnp.asarray(False))

    def marginal(self, state):
        return _natural(*self.moments(state))

    def moments(self, state):
        return state.mean, state.factor @ state.factor.T

    def kernel(self, p, state):
        return GuidedKernel(state.kernel, state.before)

    def update(self, p, state, y, u=None):
        row = Row.of(emission_law(p, state.mean, u), y, self.plan.fill.value)
        if self.plan.transition.affine:
            merged = self._read(p, row, u, self._move(p, state, u), state.t)
        else:
            merged = self._read_pieces(p, row, u, state)
        before = state.mean, state.factor
        failed = ~jnp.isfinite(merged.log_mass)
        score = jnp.where(failed, 0.0, merged.log_mass)
        return GuidedState(state.t + 1, merged.mean, merged.factor, merged.kernel, before, score, failed)

    def _move(self, p: StateSpaceModel, state: GuidedState, u: Inputs) -> "_Moved":
        """The state before the row is read: moved by the transition, except before the first row."""

        def first():
            return self._unmoved(p, state, u)

        return jax.lax.cond(state.t == 0, first, lambda: self._predict(p, state.mean, state.factor, u))

    def _unmoved(self, p: StateSpaceModel, state: GuidedState, u: Inputs) -> "_Moved":
        """The prior, in as many parts as the transition has; as one where it has more itself."""
        count, dtype, no_bend = self.plan.transition.noise.count, state.mean.dtype, jnp.zeros_like(state.mean)
        if count == 1:
            return _Moved(state.mean, state.factor, state.kernel, no_bend, jnp.zeros((), dtype))
        parts = self.plan.prior.parts(prior_law(p, u), dtype) if 1 < self.plan.prior.count <= count else None
        laws = (
            (jnp.zeros(1, dtype), state.mean[None], state.factor[None])
            if parts is None
            else (parts.log_weight, parts.mean, jax.vmap(scaled_cholesky)(parts.dense()))
        )
        repeated = np.resize(np.arange(len(laws[0])), count)
        log_weight, mean, factor = (leaf[repeated] for leaf in laws)
        share = jnp.asarray(-np.log(np.bincount(repeated)[repeated]), dtype)
        kernel, no_bend = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), (state.kernel, no_bend)
        )
        return _Moved(mean, factor, kernel, no_bend, log_weight + share)

    def _predict(self, p: StateSpaceModel, mean: Array, factor: Array, u: Inputs) -> "_Moved":
        """Moved by each part of the transition, along a first axis where there are several."""
        noise, dtype = self.plan.transition.noise, mean.dtype

        def move(part) -> _Moved:
            found = predict(p, self.plan.transition, mean, factor, u, jnp.exp(self.log_inflation), part)
            back = backward_kernel(mean, factor, found)
            return _Moved(found.mean, found.factor, back, found.bend, jnp.zeros((), dtype))

        if noise.count == 1:
            return move(0)
        log_weight = noise.parts(transition_law(p, mean, u), dtype).log_weight
        return jax.vmap(move)(jnp.arange(noise.count))._replace(log_weight=log_weight)

    def _read(self, p: StateSpaceModel, row: Row, u: Inputs, moved: "_Moved", t: Array) -> Merged:
        """Prediction × emission, its parts merged."""
        if self.plan.transition.noise.count == 1:
            return self._read_part(p, row, u, moved, t)
        each = jax.vmap(lambda part: self._read_part(p, row, u, part, t))(moved)
        return _merged(moved.log_weight, each)

    def _read_part(self, p: StateSpaceModel, row: Row, u: Inputs, moved: "_Moved", t: Array) -> Merged:
        """Prediction × emission; the prediction where nothing is seen, or where nothing could be computed."""
        predicted = Predicted(moved.mean, moved.factor, t)
        tilted = self.plan.update(p, row, u, predicted)
        good = row.seen.any() & jnp.isfinite(tilted.log_mass)
        good = good & jnp.isfinite(tilted.mean).all() & jnp.isfinite(tilted.factor).all()
        eye = jnp.eye(len(moved.mean), dtype=moved.mean.dtype)
        mean, factor = jnp.where(good, tilted.mean, 0.0), jnp.where(good, tilted.factor, eye)
        log_mass = jnp.where(row.seen.any(), jnp.where(good, tilted.log_mass, -jnp.inf), 0.0)
        return Merged(predicted.at(mean), moved.factor @ factor, moved.kernel, log_mass)

    def _read_pieces(self, p: StateSpaceModel, row: Row, u: Inputs, state: GuidedState) -> Merged:
        """Where the transition bends over q_{t-1}: cut, moved and read piece by piece, and merged."""
        moved = self._move(p, state, u)
        bend = moved.bend.reshape(-1, len(state.mean)).max(0)
        log_weight, piece = cut(state.mean, state.factor, bend)

        def whole():
            return self._read(p, row, u, moved, state.t)

        def in_pieces():
            def read(_, i):
                return None, self._read(p, row, u, self._predict(p, *piece(i), u), state.t)

            return _merged(log_weight, jax.lax.scan(read, None, jnp.arange(FIRST.count))[1])

        return jax.lax.cond(moved.bend.max() > LEAST_BEND, in_pieces, whole)


class _Moved(NamedTuple):
    """A normal law before the row is read, with the kernel back to the law it came from."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    kernel: AffineLaw
    bend: Float[Array, " d"]
    log_weight: Float[Array, ""]
    """Of this part of the law, where it has several."""


def _merged(log_weight: Float[Array, " j"], each: Merged) -> Merged:
    """Pieces as one law: with the weights that they had before, where none of them could be read."""
    failed = ~(jnp.isfinite(log_weight) & jnp.isfinite(each.log_mass)).any()
    weights = jnp.where(failed, log_weight, log_weight + each.log_mass)
    merged = merge(Pieces(weights, each.mean, each.factor), each.kernel)
    return merged._replace(log_mass=jnp.where(failed, -jnp.inf, merged.log_mass))
