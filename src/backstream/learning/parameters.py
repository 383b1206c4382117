"""θ as the optimiser sees it: unconstrained, and only what is to be learned."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from numpyro.distributions import biject_to, constraints

from backstream.models.base import StateSpaceModel


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

    def pull(self, raw: PyTree, gradient: PyTree) -> PyTree:
        """The gradient in θ turned into that of the unconstrained parameters."""
        _, vjp = jax.vjp(lambda r: eqx.filter(self.model(r), eqx.is_inexact_array), raw)
        return vjp(gradient)[0]

    def _map(self, model, apply):
        for name, constraint in type(model).constraints.items():
            value = getattr(model, name)
            if value.ndim == 2 and constraint is constraints.positive:
                transform = _PositiveFactor()
            else:
                transform = biject_to(constraint)
            model = eqx.tree_at(lambda m, name=name: getattr(m, name), model, apply(transform, value))
        return model


class _PositiveFactor:
    """Lower-triangular matrices with a positive diagonal, and those with any: the diagonal goes through the
    logarithm."""

    def __call__(self, raw: Array) -> Array:
        return jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diag(raw)))

    def inv(self, factor: Array) -> Array:
        return jnp.tril(factor, -1) + jnp.diag(jnp.log(jnp.diag(factor)))
