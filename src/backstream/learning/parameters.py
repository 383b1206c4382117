"""θ as the optimizer sees it: unconstrained, and only what is to be learned."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from numpyro.distributions import biject_to, constraints

from backstream.models.base import StateSpaceModel
from backstream.models.matrices import known

ALL_PARAMETERS = "all"
"""The name of all parameters."""


class ModelParameters(eqx.Module):
    """The map between a model and the unconstrained parameters that move.

    `free` chooses what is learned: a pytree of booleans like the model (an equinox filter), or None for every array.
    Fields named in the model's `constraints` go through the bijection of their constraint: a scale stays positive, an
    autoregression stays stable, without any clipping.
    """

    template: StateSpaceModel
    free: PyTree

    def __init__(self, template: StateSpaceModel, free: PyTree = None):
        self.template = template
        self.free = jax.tree.map(eqx.is_inexact_array, template) if free is None else free

    def unconstrained(self) -> PyTree:
        """What is learned, at the template's values."""
        return eqx.filter(self._map(self.template, lambda transform, value: transform.inv(value)), self.free)

    def model(self, raw: PyTree) -> StateSpaceModel:
        """The model with what is learned put in its place."""
        frozen = self._map(self.template, lambda transform, value: transform.inv(value))
        whole = eqx.combine(raw, frozen)
        return self._map(whole, lambda transform, value: transform(value))

    def elsewhere(self) -> StateSpaceModel:
        """The model with other parameters, some tenths away from the template's: a factor of zero hides what it
        multiplies."""
        rng = np.random.default_rng(4)

        def move(leaf):
            step = rng.uniform(0.05, 0.15, leaf.shape) * rng.choice([-1.0, 1.0], leaf.shape)
            return leaf + jnp.asarray(step, leaf.dtype) * jnp.where(leaf == 0, 1.0, abs(leaf))

        return self.model(jax.tree.map(move, self.unconstrained()))

    def pull(self, raw: PyTree, gradient: PyTree) -> PyTree:
        """The gradient in θ turned into that of the unconstrained parameters."""
        _, vjp = jax.vjp(lambda r: eqx.filter(self.model(r), eqx.is_inexact_array), raw)
        return vjp(gradient)[0]

    def bounded(self) -> PyTree:
        """One for each unconstrained number that is a logarithm, log odds or the like, zero for others."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf, self.template)
        return eqx.filter(self._map(zeros, lambda transform, value: jnp.ones_like(transform.inv(value))), self.free)

    def names(self) -> tuple[str, ...]:
        """One for each number that is learned, in the order of `ravel_pytree`: phi, A[0,1], flow.layers[0].bias[2]."""
        leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(self.template, self.free))
        return tuple(name for path, leaf in leaves for name in _numbered(_named(path), leaf.shape))

    def values(self, raw: PyTree) -> Float[Array, " p"]:
        """What is learned as one vector, in the model's own terms."""
        return ravel_pytree(eqx.filter(self.model(raw), self.free))[0]

    def errors(self, raw: PyTree, covariance: Float[Array, "p p"]) -> Float[Array, " p"]:
        """Standard errors of `values`, from the covariance of the unconstrained parameters: the delta method."""
        vector, restore = ravel_pytree(raw)
        slope = jax.jacfwd(lambda vector: self.values(restore(vector)))(vector)
        return jnp.sqrt(jnp.einsum("ij,jk,ik->i", slope, covariance, slope))

    def _map(self, model, apply):
        for name, constraint in type(model).constraints.items():
            value = getattr(model, name)
            if not eqx.is_inexact_array(value):  # a Python number stays as it is
                continue
            transform = _PositiveFactor() if _is_factor(value, constraint) else biject_to(constraint)
            model = eqx.tree_at(lambda m, name=name: getattr(m, name), model, apply(transform, value))
        return model


def _is_factor(value: Any, constraint: Any) -> bool:
    """Whether a field is a lower-triangular matrix: a square one that is positive."""
    return constraint is constraints.positive and np.ndim(value) == 2 and np.shape(value)[0] == np.shape(value)[1]


class _PositiveFactor:
    """Lower-triangular matrices with a positive diagonal, and those with any: the diagonal goes through the
    logarithm."""

    def __call__(self, raw: Array) -> Array:
        return jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diag(raw)))

    def inv(self, factor: Array) -> Array:
        return jnp.tril(factor, -1) + jnp.diag(jnp.log(jnp.diag(factor)))


def free_parameters(p: StateSpaceModel, names: Sequence[str] = ()) -> PyTree:
    """The filter for `ModelParameters` that lets the named fields move: all arrays without any names.

    A name is that of a field, or of a part of one: "flow", "flow.bias". Raises ValueError for what cannot be learned.
    """
    everything = jax.tree.map(eqx.is_inexact_array, p)
    for name, constraint in p.constraints.items():
        value = getattr(p, name)
        if _is_factor(value, constraint) and known(value) and np.triu(value, 1).any():
            raise ValueError(
                f"{name} of {type(p).__name__} is a square matrix with the constraint positive, which is for "
                f"lower-triangular factors of a covariance, but it has numbers above its diagonal. If all its entries "
                f"are to be positive, make the field a vector and reshape it in the model."
            )
    if not names:
        if not any(jax.tree.leaves(everything)):
            raise ValueError(f"{type(p).__name__} has no array of numbers as a field: there is nothing to learn in it.")
        return everything
    free = jax.tree.map(lambda _: False, p)
    for name in names:
        _check_learnable(p, name)
        free = eqx.tree_at(lambda tree, name=name: _part(tree, name), free, _part(everything, name))
    return free


def steps_by_name(p: StateSpaceModel, steps: Mapping[str, Any]) -> optax.GradientTransformation:
    """Steps for θ that differ from parameter to parameter: those of the longest name that a parameter belongs to, or
    of "all" where it belongs to none.

    Raises ValueError for what cannot be learned, TypeError for what is no optax transformation.
    """
    for name, own in steps.items():
        if not isinstance(own, optax.GradientTransformation):
            raise TypeError(f"The steps of {name} must be an optax transformation, not {own!r}.")
    names = tuple(name for name in steps if name != ALL_PARAMETERS)
    free = free_parameters(p, names)
    raw = ModelParameters(p, None if ALL_PARAMETERS in steps else free).unconstrained()

    def label(path, leaf) -> str:
        own = _named(path)
        return max((name for name in names if _belongs(own, name)), key=len, default=ALL_PARAMETERS)

    return optax.partition({**steps}, jax.tree_util.tree_map_with_path(label, raw))


def _belongs(own: str, name: str) -> bool:
    return own.startswith(name) and own[len(name) : len(name) + 1] in ("", ".", "[")


def _check_learnable(p: StateSpaceModel, name: str) -> None:
    model = type(p).__name__
    try:
        value = _part(p, name)
    except AttributeError:
        known = ", ".join(field.name for field in dataclasses.fields(p) if _learnable(getattr(p, field.name)))
        raise ValueError(f"{model} has no parameter {name!r}. It has {known or 'none that can be learned'}.") from None
    if isinstance(value, bool | int | float):
        kind = type(value).__name__
        raise ValueError(
            f"{name} of {model} is a Python {kind}, which stays as it is: to have it learned, make it an array, "
            f"jnp.array({float(value)})."
        )
    if eqx.is_array(value) and not eqx.is_inexact_array(value):
        raise ValueError(f"{name} of {model} holds {value.dtype} numbers: only floating-point numbers can be learned.")
    if not _learnable(value):
        raise ValueError(f"{name} of {model} holds no numbers that could be learned.")


def _part(tree: PyTree, name: str) -> PyTree:
    for part in name.split("."):
        tree = getattr(tree, part)
    return tree


def _learnable(value: PyTree) -> bool:
    return any(leaf.size for leaf in jax.tree.leaves(eqx.filter(value, eqx.is_inexact_array)))


def _named(path: Sequence) -> str:
    """A path as it is written in Python."""
    return jax.tree_util.keystr(tuple(path)).lstrip(".")


def _numbered(name: str, shape: tuple[int, ...]) -> list[str]:
    if math.prod(shape) == 1:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
