"""Cotangents of natural parameters on their way back to λ.

A score term is the pullback of a cotangent of η through η(λ, a(λ)): directly to those arrays of λ that η reads, and to
the state a, whose own dependence on λ a sensitivity knows. There are N such rows, of P columns each. Both parts stay
small here, as the columns that are read and as cotangents of the state, until they are added to what they belong to.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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

    def combine(self, coefficients: Float[Array, "m n"]) -> "Cotangents":
        """Linear combinations of the rows."""
        return self._map(lambda rows: coefficients @ rows)

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


def read_arrays(
    function: Callable[..., Any], q: BackwardFamily, *arguments: Any
) -> tuple[list[Array], list[int], Callable[[list[Array]], BackwardFamily], Any]:
    """The arrays of λ that function(q, *arguments) reads; where in λ each starts; the way from such a list back to a
    family; and which of the arguments it reads."""
    arrays, static = eqx.partition(q, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)

    def rebuilt(leaves):
        return eqx.combine(tree.unflatten(leaves), static)

    reads_leaf, *others = reads(lambda leaves, *rest: function(rebuilt(leaves), *rest), leaves, *arguments)
    chosen = [k for k, read in enumerate(reads_leaf) if read]
    starts = np.cumsum([0, *(leaf.size for leaf in leaves)])

    def rebuild(some):
        every = list(leaves)
        for k, leaf in zip(chosen, some, strict=True):
            every[k] = leaf
        return rebuilt(every)

    return [leaves[k] for k in chosen], [int(starts[k]) for k in chosen], rebuild, others


def columns(starts: list[int], rows: list[Float[Array, "n ..."]]) -> list[Columns]:
    """Rows of cotangents of such arrays, those of adjacent ones joined."""
    joined: list[Columns] = []
    for start, values in zip(starts, (leaf.reshape(len(leaf), -1) for leaf in rows), strict=True):
        if joined and joined[-1].start + joined[-1].values.shape[-1] == start:
            joined[-1] = Columns(joined[-1].start, jnp.concatenate([joined[-1].values, values], axis=-1))
        else:
            joined.append(Columns(start, values))
    return joined


def pull_back(
    function: Callable[[BackwardFamily, PyTree, Array], Array],
    q: BackwardFamily,
    state: PyTree,
    cotangents: Float[Array, "n s"],
    points: Float[Array, "n d"],
) -> Cotangents:
    """Cotangents of function(q, a, x^i) to λ and to a, for each i; those of a are `to_now`."""
    a, restore = ravel_pytree(state)

    def flat(q, a, x):
        return function(q, restore(a), x)

    some, starts, rebuild, (reads_state, _) = read_arrays(flat, q, a, points[0])

    def one(x, cotangent):
        def of_what_is_read(some, a):
            return flat(rebuild(some), a if reads_state else jax.lax.stop_gradient(a), x)

        _, vjp = jax.vjp(of_what_is_read, some, a)
        return vjp(cotangent)

    rows, to_state = jax.vmap(one)(points, cotangents)
    return Cotangents(columns(starts, rows), None, to_state if reads_state else None)
