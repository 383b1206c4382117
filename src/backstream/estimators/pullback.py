"""Cotangents of natural parameters on their way back to λ.

A score term is the pullback of a cotangent of η through η(λ, a(λ)): directly to those arrays of λ that η reads, and to
the state a, whose own dependence on λ a sensitivity knows. There are N such rows, of P columns each. Both parts stay
small here, as the columns that are read and as cotangents of the state, until they are added to what they belong to.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from backstream.families.base import BackwardFamily

from .reading import Columns, columns, read_arrays
from .sensitivity import Pair, Pulled


class Cotangents(NamedTuple):
    """Rows of cotangents: of λ directly, and of the flat states a_{t-1} and a_t (None where nothing reads them)."""

    direct: list[Columns]
    to_previous: Float[Array, "*n a"] | None
    to_now: Float[Array, "*n a"] | None

    def centred(self, row: Float[Array, " n"]) -> "Cotangents":
        """Less their mean under the weights `row`, which is put below them as one row more."""

        def centre(rows):
            mean = row @ rows
            return jnp.concatenate([rows - mean, mean[None]])

        return self._map(centre)

    def mean(self, row: Float[Array, " n"]) -> "Cotangents":
        """One row: their mean under the weights `row`."""
        return self._map(lambda rows: row @ rows)

    def combine(self, coefficients: Float[Array, "m n"]) -> "Cotangents":
        """Linear combinations of the rows."""
        return self._map(lambda rows: coefficients @ rows)

    def _map(self, function: Callable[[Array], Array]) -> "Cotangents":
        states = (None if rows is None else function(rows) for rows in (self.to_previous, self.to_now))
        return Cotangents([Columns(start, function(values)) for start, values in self.direct], *states)

    @property
    def of_states(self) -> Pair:
        """What a `Pull` takes."""
        return self.to_previous, self.to_now

    def joined(self, pulled: Pulled) -> Pulled:
        """The direct part beside the one that went through the states."""
        return Pulled(pulled.everywhere, [*pulled.parts, *self.direct])


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
