"""What estimators of the ELBO and of its gradient have in common."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from backstream.families.base import BackwardFamily, State
from backstream.models.base import StateSpaceModel
from backstream.models.density import ModelShape, check_model, check_observations

Inputs = Any
Carry = Any


class Estimate(NamedTuple):
    """An ELBO with its gradients: with respect to λ (a pytree like the family's arrays) and θ (like the model's, or
    None)."""

    elbo: Float[Array, ""]
    gradient: PyTree
    model_gradient: PyTree = None


class OnlineEstimate(NamedTuple):
    """What one observation gives.

    `total` is the objective so far, L_t and its gradient; `increment` is what this observation adds to it, the
    direction to ascend. `ess` is the effective sample size of the backward weights, `acceptance` the acceptance rate of
    accept-reject sampling (NaN where the estimator has no such thing), `functional` the expectation of the additive
    functional (None if there is none).
    """

    total: Estimate
    increment: Estimate
    ess: Float[Array, ""]
    acceptance: Float[Array, ""]
    functional: PyTree = None


class OnlineEstimator(eqx.Module):
    """Reads one observation at a time, in constant memory."""

    @abstractmethod
    def init(self, p: StateSpaceModel, q: BackwardFamily, u: Inputs = None) -> Carry:
        """The carry before any row. `u` are the inputs of the first row, where the model takes any."""

    @abstractmethod
    def step(
        self,
        p: StateSpaceModel,
        q: BackwardFamily,
        carry: Carry,
        y: Float[Array, " dy"],
        u: Inputs = None,
        *,
        key: Array,
    ) -> tuple[Carry, OnlineEstimate]:
        """One more row; the first is a row like the others."""

    @abstractmethod
    def restarted(
        self, p: StateSpaceModel, q: BackwardFamily, carry: Carry, start: Bool[Array, ""], u: Inputs = None
    ) -> Carry:
        """The carry, or, where `start` holds, one before any row."""

    estimates_elbo: ClassVar[bool] = True
    """Whether what it ascends is the ELBO, so that an unbiased estimate of that tells whether it can be trusted."""
    survives: ClassVar[bool] = False
    """Whether a carry is good even where its estimate is not finite, so that the stream goes on from there."""

    @property
    def learns_family(self) -> bool:
        """Whether there is a gradient in λ."""
        return True

    def by_sample(self, carry: Carry) -> PyTree:
        """Which leaves of a carry have one row for each sample, so that several devices can share them: a tree like the
        carry, of True and False."""
        return jax.tree.map(lambda _: False, carry)

    def fixed_filter(self, carry: Carry) -> State | None:
        """a_t, for an estimator under which neither λ nor θ ever moves; None for all others."""
        return None


def require_amortized(q: BackwardFamily) -> None:
    """Raises TypeError for a family that has the parameters of one time only: no sequence can be run through it."""
    if not q.amortized:
        raise TypeError(f"{type(q).__name__} holds the parameters of one time only: use RecursiveScore with Frozen().")


class OfflineEstimator(eqx.Module):
    """Reads a whole sequence, in one compiled program."""

    def __call__(
        self,
        p: StateSpaceModel,
        q: BackwardFamily,
        ys: Float[Array | np.ndarray, "t dy"],
        inputs: Inputs = None,
        *,
        key: Array | None,
    ) -> Estimate:
        """The ELBO of the sequence and its gradient."""
        check_case(p, q, ys, inputs)
        require_amortized(q)
        return _estimated(self, p, q, ys, inputs, key)

    @abstractmethod
    def estimate(self, p: Any, q: Any, ys: Any, inputs: Inputs, key: Any) -> Estimate:
        """The same, once it is known that model, family and observations fit together."""


@eqx.filter_jit
def _estimated(estimator, p, q, ys, inputs, key):
    return estimator.estimate(p, q, ys, inputs, key)


class Scan(OfflineEstimator):
    """An online estimator run over a fixed sequence with λ held still: the paper's offline computation."""

    online: OnlineEstimator

    def estimate(self, p, q, ys, inputs, key):
        def step(carry, scanned):
            t, y, u = scanned
            carry, estimate = self.online.step(p, q, carry[0], y, u, key=jax.random.fold_in(key, t))
            return (carry, estimate.total), None

        start = self.online.init(p, q, jax.tree.map(lambda leaf: leaf[0], inputs))
        learns_model = getattr(self.online, "learn_model", False)
        slopes = [jax.tree.map(jnp.zeros_like, eqx.filter(module, eqx.is_inexact_array)) for module in (q, p)]
        nothing = Estimate(jnp.zeros((), flatten(q)[0].dtype), slopes[0], slopes[1] if learns_model else None)
        (_, total), _ = jax.lax.scan(step, (start, nothing), (jnp.arange(len(ys)), ys, inputs))
        return total


def flatten(tree: PyTree) -> tuple[Float[Array, " n"], Callable[[Array], Any]]:
    """The inexact arrays of a module, or of a family's state, as one vector, and the way back. What else is in the tree
    stays as it is."""
    arrays, static = eqx.partition(tree, eqx.is_inexact_array)
    vector, unravel = ravel_pytree(arrays)
    return vector, lambda v: eqx.combine(unravel(v), static)


def like(module: eqx.Module, vector: Float[Array, " n"]) -> PyTree:
    """A vector as a pytree of the module's inexact arrays: the inverse of `flatten`, without what is not learned."""
    return eqx.filter(flatten(module)[1](vector), eqx.is_inexact_array)


def differentiate(
    objective: Callable[[Any, Any], Any],
    p: StateSpaceModel,
    q: BackwardFamily,
    learn_model: bool,
    *,
    has_aux: bool = False,
) -> Any:
    """The value of a differentiable objective(p, q) and its gradients, with respect to θ only where asked for.

    An `Estimate`, or, where the objective returns its value with something else, that something beside it.
    """
    if learn_model:
        result, (model_gradient, gradient) = eqx.filter_value_and_grad(lambda pq: objective(*pq), has_aux=has_aux)(
            (p, q)
        )
    else:
        result, gradient = eqx.filter_value_and_grad(lambda q: objective(p, q), has_aux=has_aux)(q)
        model_gradient = None
    if has_aux:
        return Estimate(result[0], gradient, model_gradient), result[1]
    return Estimate(result, gradient, model_gradient)


def check_case(p: StateSpaceModel, q: BackwardFamily, ys: Array | np.ndarray, inputs: Inputs = None) -> None:
    """Raises ValueError where model, family and observations ([dy], or [T, dy] with inputs alike) do not fit together.

    Sizes are checked always, values (infinities, missing coordinates) where they are known: not while JAX is tracing.
    """
    rows = ys[None] if ys.ndim == 1 else ys
    shape = check_sizes(p, q, inputs if ys.ndim == 1 else jax.tree.map(lambda leaf: leaf[0], inputs))
    if rows.ndim != 2 or rows.shape[1] != shape.obs_dim:
        raise ValueError(f"An observation has {shape.obs_dim} columns in this model, but its shape is {ys.shape}.")
    if not isinstance(rows, Tracer):
        check_observations(shape, np.asarray(rows))


def check_sizes(p: StateSpaceModel, q: BackwardFamily, u: Inputs = None) -> ModelShape:
    """The sizes of a model, once they are known to be those of the family. Raises ValueError otherwise."""
    shape = check_model(p, u)
    for name, of_model, of_family in (
        ("states", shape.state_dim, q.state_dim),
        ("columns of y", shape.obs_dim, q.obs_dim),
    ):
        if of_model != of_family:
            raise ValueError(f"The model has {of_model} {name}, the family {type(q).__name__} has {of_family}.")
    return shape
