"""The default family with several components: for posteriors with several modes."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from backstream.families.kernels import AffineKernel, Kernel
from backstream.laws.gaussian import Gaussian, scaled_cholesky
from backstream.laws.mixture import Mixture
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law

from .components import Pieces, cut_finely
from .family import Guided, GuidedState, PlannedFamily
from .laws import Row
from .places import Place
from .plan import make_plan
from .prediction import AffineLaw, backward_kernel, predict
from .reduction import reduce
from .updates import Predicted

MOST_SIBLINGS = 6
"""Pieces of one component that are left when those of all components are compared."""


class MixtureKernel(Kernel):
    """q_{t-1|t}, from j normal pieces of the prediction with an affine kernel each.

    At x the j-th has a weight proportional to w_j N(x; m_j, P_j), with the moments of its prediction.
    """

    predicted: Pieces
    law: AffineLaw
    """With a leading axis of j."""

    def at(self, before: Gaussian | Mixture, x: Float[Array, " d"]) -> Mixture:
        predicted = Mixture(*self.predicted)
        log_weight = predicted.log_weight + predicted.component_log_probs(x)
        mean = self.law.mean + self.law.gain @ x
        return Mixture(jax.nn.log_softmax(log_weight), mean, jax.vmap(scaled_cholesky)(self.law.cov))

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        raise TypeError("The kernel of a mixture is no normal potential: it can be sampled and evaluated, with `at`.")

    def affine(self, before: Gaussian) -> AffineKernel:
        raise TypeError("The kernel of a mixture is not affine: it can be sampled and evaluated, with `at`.")


class MixtureState(NamedTuple):
    """a_t: q_t, and the kernel q_{t-1|t}."""

    t: Int[Array, ""]
    """How many rows have been read."""
    law: Mixture
    kernel: MixtureKernel
    log_score: Float[Array, ""]
    """log p(y_t | y_{0:t-1}), a by-product of the update; 0 for a missing row."""
    failed: Bool[Array, ""]
    """Whether the row could not be read: it is not possible under the model, or nothing finite came of it."""


class GuidedMixture(PlannedFamily):
    """q_t is a mixture of normal laws, each of which reads the model at every row as `Guided` does.

    A row: each component is cut where the transition bends over it, and with one state the piece that bends most is cut
    again; the pieces are moved; where the emission reads few directions, a coarse grid shows whether prediction ×
    emission has two modes, and cuts it between them; each piece is read; and pieces that are alike are merged, until as
    many are left as there are components. The masses of the pieces add up to the log score. Nothing is drawn.

    λ is one number, the logarithm of a factor of the covariance of the model's noise, as for `Guided`.

    >>> from backstream.models import Growth
    >>> from backstream.posterior import filter
    >>> q = GuidedMixture.from_model(Growth(), jnp.array(0.0), components=4)
    >>> filter(Growth(), q, jnp.array([[2.0]]), jnp.array([0.0])).weight.shape
    (1, 4)
    """

    affine: ClassVar[bool] = False
    amortized: ClassVar[bool] = True
    gaussian: ClassVar[bool] = False

    components: int = eqx.field(static=True)

    def __check_init__(self):
        if self.components < 1:
            raise ValueError(f"components must be at least 1, not {self.components}.")

    @classmethod
    def from_model(
        cls,
        p: StateSpaceModel,
        u: Inputs = None,
        dtype=None,
        places: Sequence[Place] = (),
        other: StateSpaceModel | None = None,
        *,
        components: int = 4,
    ) -> "GuidedMixture":
        """Args:
        p: The model.
        u: The inputs of the first row, where it has any.
        dtype: The precision; JAX's default unless given.
        places: Where else to read the model, beside the surroundings of its prior.
        other: The model with other parameters, if they are to be learned.
        components: How many normal laws q_t is made of.
        """
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(make_plan(p, u, dtype, places, other), jnp.zeros((), dtype), components)

    def taken_over(self, state):
        law = state.law
        start = self._start(Pieces(jnp.log(law.weight), law.mean, law.factor))
        return start._replace(t=state.t, log_score=state.log_score, failed=state.failed)

    @classmethod
    def beside(
        cls, q: Guided, p: StateSpaceModel, state: GuidedState, components: int
    ) -> tuple["GuidedMixture", MixtureState]:
        """The family with several components that reads the model as `q` does, and its state where that of `q` is
        `state`: all weight is on one component."""
        several = cls(q.plan, q.log_inflation, components)
        start = several._start(Pieces(jnp.zeros(1), state.mean[None], state.factor[None]))
        return several, start._replace(t=state.t)

    def init(self, p, u=None):
        parts = self.plan.prior.parts(prior_law(p, u), self.log_inflation.dtype)
        return self._start(Pieces(parts.log_weight, parts.mean, jax.vmap(scaled_cholesky)(parts.dense())))

    def _start(self, pieces: Pieces) -> MixtureState:
        """The state before any row. Components that are not needed have no weight."""
        dtype = self.log_inflation.dtype
        pieces = reduce(pieces, self.components)
        count = len(pieces.log_weight)
        own = np.minimum(np.arange(self.components), count - 1)
        weight = jnp.exp(pieces.log_weight)[own] * (np.arange(self.components) < count)
        law = Mixture.of(weight.astype(dtype), pieces.mean[own], pieces.factor[own])
        pieces = self._cut(law, _no_bends)
        # There is no kernel before the second row, and nothing of this one is used.
        return MixtureState(jnp.zeros((), int), law, self._unmoved(pieces), jnp.zeros((), dtype), jnp.asarray(False))

    def marginal(self, state):
        return state.law

    def moments(self, state):
        return state.law.moments()

    def sample(self, state, *, key):
        return state.law.sample(key=key)

    def kernel(self, p, state):
        return state.kernel

    def update(self, p, state, y, u=None):
        row = Row.of(emission_law(p, state.law.mean[0], u), y, self.plan.fill.value)
        kernel = jax.lax.cond(
            state.t == 0,
            lambda: self._unmoved(self._cut(state.law, _no_bends)),
            lambda: self._moved(p, state.law, u),
        )
        pieces = self._read(p, row, u, kernel.predicted, state.t)
        log_mass = jax.nn.logsumexp(pieces.log_weight)
        failed = ~jnp.isfinite(log_mass)
        # Where no piece could be read the prediction stays.
        unread = jnp.repeat(kernel.predicted.log_weight, len(pieces.log_weight) // len(kernel.predicted.log_weight))
        law = self._merged(pieces._replace(log_weight=jnp.where(failed, unread, pieces.log_weight)))
        score = jnp.where(failed | ~row.seen.any(), 0.0, log_mass)
        return MixtureState(state.t + 1, law, kernel, score, failed)

    def _cut(self, law: Mixture, bends: Callable[[Pieces], Float[Array, "j d"]]) -> Pieces:
        """Components in narrower pieces, where the transition is not affine."""
        if self.plan.transition.affine:
            return Pieces(law.log_weight, law.mean, law.factor)
        pieces = jax.vmap(lambda mean, factor: cut_finely(mean, factor, bends))(law.mean, law.factor)
        pieces = pieces._replace(log_weight=law.log_weight[:, None] + pieces.log_weight)
        return Pieces(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in pieces))

    def _unmoved(self, pieces: Pieces) -> MixtureKernel:
        """Before the first row no time passes. The kernel is there for its shape, with as many pieces as later."""
        count = self.plan.transition.noise.count
        pieces = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, 0), pieces)
        pieces = pieces._replace(log_weight=pieces.log_weight - math.log(count))
        cov = pieces.factor @ jnp.swapaxes(pieces.factor, 1, 2)
        return MixtureKernel(pieces, AffineLaw(pieces.mean, jnp.zeros_like(cov), cov))

    def _moved(self, p: StateSpaceModel, law: Mixture, u: Inputs) -> MixtureKernel:
        """Cut, and moved by the transition."""
        inflation, noise = jnp.exp(self.log_inflation), self.plan.transition.noise

        def move(mean, factor, part=0):
            found = predict(p, self.plan.transition, mean, factor, u, inflation, part)
            return found, backward_kernel(mean, factor, found)

        def move_parts(mean, factor):
            log_weight = noise.parts(transition_law(p, mean, u), mean.dtype).log_weight
            return log_weight, *jax.vmap(lambda part: move(mean, factor, part))(jnp.arange(noise.count))

        def bends(pieces: Pieces):
            return jax.vmap(lambda mean, factor: move(mean, factor)[0].bend)(pieces.mean, pieces.factor)

        pieces = self._cut(law, bends)
        if noise.count == 1:
            found, back = jax.vmap(move)(pieces.mean, pieces.factor)
            return MixtureKernel(Pieces(pieces.log_weight, found.mean, found.factor), back)
        share, found, back = jax.vmap(move_parts)(pieces.mean, pieces.factor)
        moved = Pieces(pieces.log_weight[:, None] + share, found.mean, found.factor)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), MixtureKernel(moved, back))

    def _read(self, p: StateSpaceModel, row: Row, u: Inputs, predicted: Pieces, t: Array) -> Pieces:
        """Prediction × emission, with the masses in the weights: none for pieces of which nothing could be computed."""
        tilted = self.plan.update.pieces(p, row, u, Predicted(predicted.mean, predicted.factor, t))
        count, d = tilted.log_mass.shape[1], self.plan.state_dim
        good = jnp.isfinite(tilted.log_mass)
        good = good & jnp.isfinite(tilted.mean).all(2) & jnp.isfinite(tilted.factor).all((2, 3))
        eye = jnp.eye(d, dtype=predicted.mean.dtype)
        mean = jnp.where(good[..., None], tilted.mean, 0.0)
        factor = jnp.where(good[..., None, None], tilted.factor, eye)
        log_mass = jnp.where(good, tilted.log_mass, -jnp.inf)
        # A row that is missing says nothing: the prediction is not cut either.
        unseen = ~row.seen.any()
        mean, factor = jnp.where(unseen, 0.0, mean), jnp.where(unseen, eye, factor)
        log_mass = jnp.where(unseen, -math.log(count), log_mass)
        pieces = Pieces(
            predicted.log_weight[:, None] + log_mass,
            predicted.mean[:, None] + jnp.einsum("jab,jmb->jma", predicted.factor, mean),
            predicted.factor[:, None] @ factor,
        )
        return Pieces(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in pieces))

    def _merged(self, pieces: Pieces) -> Mixture:
        """First among the pieces of the same component, which is cheap, then among all."""
        siblings = Pieces(*(leaf.reshape(self.components, -1, *leaf.shape[1:]) for leaf in pieces))
        siblings = jax.vmap(lambda own: reduce(own, MOST_SIBLINGS))(siblings)
        found = reduce(Pieces(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in siblings)), self.components)
        covs = found.factor @ jnp.swapaxes(found.factor, 1, 2)
        return Mixture.of(jax.nn.softmax(found.log_weight), found.mean, jax.vmap(scaled_cholesky)(covs))


def _no_bends(pieces: Pieces) -> Float[Array, "j d"]:
    """Of a step in which no time passes."""
    return jnp.zeros_like(pieces.mean)
