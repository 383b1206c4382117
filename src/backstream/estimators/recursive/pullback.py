"""Cotangents of natural parameters on their way back to λ.

A score term is the pullback of a cotangent of η through η(λ, a(λ)): directly to those arrays of λ that η reads, and to
the state a, whose own dependence on λ a sensitivity knows. There are N such rows, of P columns each. Both parts stay
small here, as the columns that are read and as cotangents of the state, until they are added to what they belong to.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PyTree

from backstream.estimators.base import flatten
from backstream.families.base import BackwardFamily

from .parameter_columns import ParameterColumns, columns, read_arrays
from .sensitivity import Cotangents


def pull_back(
    function: Callable[[BackwardFamily, PyTree, Array], Array],
    q: BackwardFamily,
    state: PyTree,
    cotangents: Float[Array, "n s"],
    points: Float[Array, "n d"],
) -> Cotangents:
    """Cotangents of function(q, a, x^i) to λ and to a, for each i; those of a are `to_now`."""
    read, some, a, starts, reads_state = _reading(function, q, state, points[0])

    def one(x, cotangent):
        _, vjp = jax.vjp(lambda some, a: read(some, a if reads_state else jax.lax.stop_gradient(a), x), some, a)
        return vjp(cotangent)

    rows, to_state = jax.vmap(one)(points, cotangents)
    return Cotangents(columns(starts, rows), None, to_state if reads_state else None)


def pull_back_mean(
    function: Callable[[BackwardFamily, PyTree, Array], Array],
    q: BackwardFamily,
    state: PyTree,
    cotangents: Float[Array, "n s"],
    points: Float[Array, "n d"],
    row: Float[Array, " n"],
) -> Cotangents:
    """The mean of these rows under the weights `row`, by a single pullback: none of them is ever formed."""
    read, some, a, starts, reads_state = _reading(function, q, state, points[0])

    def mean(some, a):
        return (row[:, None] * cotangents * jax.vmap(lambda x: read(some, a, x))(points)).sum()

    to_some, to_state = jax.grad(mean, argnums=(0, 1))(some, a)
    direct = [ParameterColumns(start, values[0]) for start, values in columns(starts, [leaf[None] for leaf in to_some])]
    return Cotangents(direct, None, to_state if reads_state else None)


def _reading(function, q: BackwardFamily, state: PyTree, point: Float[Array, " d"]):
    """The same function of the arrays of λ that it reads, of the flat state and of x; those arrays, the flat state,
    where in λ the arrays start, and whether the state is read."""
    a, restore = flatten(state)

    def flat(q, a, x):
        return function(q, restore(a), x)

    some, starts, rebuild, (reads_state, _) = read_arrays(flat, q, a, point)
    return lambda some, a, x: flat(rebuild(some), a, x), some, a, starts, reads_state
