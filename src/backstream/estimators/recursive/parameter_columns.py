"""What of λ a function reads, and the columns that belong to it in a matrix with a column for each number of λ."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.families.base import BackwardFamily


class ParameterColumns(NamedTuple):
    """Adjacent columns of a matrix with a row for each sample and a column for each number in λ."""

    start: int
    values: Float[Array, "*n k"]


def reads(function: Callable[..., Any], *arguments: Any) -> Any:
    """Which leaves of its arguments the result of a traceable function can depend on: a tree of booleans.

    XLA does not simplify products with zeros: what cannot depend on a_t should not be multiplied by ∂a_t/∂λ.
    """
    leaves, tree = jax.tree.flatten(arguments)
    jaxpr = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)))(*leaves).jaxpr
    sources: dict[Any, frozenset[int]] = {variable: frozenset([k]) for k, variable in enumerate(jaxpr.invars)}

    def reached(variables) -> frozenset[int]:
        return frozenset().union(*(sources.get(v, frozenset()) for v in variables if not hasattr(v, "val")))

    for equation in jaxpr.eqns:
        through = frozenset() if equation.primitive.name == "stop_gradient" else reached(equation.invars)
        sources.update((variable, through) for variable in equation.outvars)
    used = reached(jaxpr.outvars)
    return tree.unflatten([k in used for k in range(len(leaves))])


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


def columns(starts: list[int], rows: list[Float[Array, "n ..."]]) -> list[ParameterColumns]:
    """Rows of cotangents of such arrays, those of adjacent ones joined: to be added in one pass."""
    joined: list[ParameterColumns] = []
    for start, values in zip(starts, (leaf.reshape(len(leaf), -1) for leaf in rows), strict=True):
        last = joined[-1] if joined else None
        if last and last.start + last.values.shape[-1] == start:
            joined[-1] = ParameterColumns(last.start, jnp.concatenate([last.values, values], axis=-1))
        else:
            joined.append(ParameterColumns(start, values))
    return joined


def add_columns(total: Float[Array, "*n p"], parts: list[ParameterColumns]) -> Float[Array, "*n p"]:
    """A vector or a matrix with the parts added in their columns."""
    for start, values in parts:
        corner = (0, start) if total.ndim == 2 else (start,)
        old = jax.lax.dynamic_slice(total, corner, values.shape)
        total = jax.lax.dynamic_update_slice(total, old + values, corner)
    return total
