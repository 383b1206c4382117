"""Cotangents of natural parameters on their way back to λ.

A score term is the pullback of a cotangent of η through η(λ, a(λ)): directly to those arrays of λ that η reads, and to
the state a, whose own dependence on λ a sensitivity knows. There are N such rows, of P columns each. Both parts stay
small here, as the columns that are read and as cotangents of the state, until they are added to what they belong to.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from backstream.families.base import BackwardFamily

from .sensitivity import Pull, reads


class Columns(NamedTuple):
    """Adjacent columns of a matrix with a row for each sample and a column for each number in λ."""

    start: int
    values: Float[Array, "*n k"]


class Cotangents(NamedTuple):
    """Rows of cotangents: of λ directly, and of the flat states a_{t-1} and a_t (None where nothing reads them)."""

    direct: list[Columns]
    to_previous: Float[Array, "*n a"] | None
    to_now: Float[Array, "*n a"] | None

    def centred(self, row: Float[Array, " n"]) -> "Cotangents":
        """Less their mean under the weights `row`."""
        return self._map(lambda rows: rows - row @ rows)

    def mean(self, row: Float[Array, " n"]) -> "Cotangents":
        """One row: their mean under the weights `row`."""
        return self._map(lambda rows: row @ rows)

    def _map(self, function: Callable[[Array], Array]) -> "Cotangents":
        states = (None if rows is None else function(rows) for rows in (self.to_previous, self.to_now))
        return Cotangents([Columns(start, function(values)) for start, values in self.direct], *states)

    def add_to(self, total: Float[Array, "*n p"], pull: Pull) -> Float[Array, "*n p"]:
        """All of it pulled back to λ, and added."""
        if self.to_previous is not None or self.to_now is not None:
            total = total + pull(self.to_previous, self.to_now)
        for start, values in self.direct:
            total = total.at[..., start : start + values.shape[-1]].add(values)
        return total


def pull_back(
    function: Callable[[BackwardFamily, PyTree, Array], Array],
    q: BackwardFamily,
    state: PyTree,
    cotangents: Float[Array, "n s"],
    points: Float[Array, "n d"],
) -> Cotangents:
    """Cotangents of function(q, a, x^i) to λ and to a, for each i; those of a are `to_now`."""
    arrays, static = eqx.partition(q, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    a, restore = ravel_pytree(state)

    def rebuilt(leaves, a, x):
        return function(eqx.combine(tree.unflatten(leaves), static), restore(a), x)

    reads_leaf, reads_state, _ = reads(rebuilt, leaves, a, points[0])
    chosen = [k for k, read in enumerate(reads_leaf) if read]

    def one(x, cotangent):
        def of_what_is_read(some, a):
            every = list(leaves)
            for k, leaf in zip(chosen, some, strict=True):
                every[k] = leaf
            return rebuilt(every, a if reads_state else jax.lax.stop_gradient(a), x)

        _, vjp = jax.vjp(of_what_is_read, [leaves[k] for k in chosen], a)
        some, to_state = vjp(cotangent)
        return [leaf.ravel() for leaf in some], to_state

    some, to_state = jax.vmap(one)(points, cotangents)
    starts = np.cumsum([0, *(leaf.size for leaf in leaves)])
    direct: list[Columns] = []
    for k, rows in zip(chosen, some, strict=True):
        if direct and direct[-1].start + direct[-1].values.shape[-1] == starts[k]:
            rows = jnp.concatenate([direct[-1].values, rows], axis=-1)
            direct[-1] = Columns(direct[-1].start, rows)
        else:
            direct.append(Columns(int(starts[k]), rows))
    return Cotangents(direct, None, to_state if reads_state else None)
