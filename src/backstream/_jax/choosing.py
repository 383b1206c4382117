"""A choice between two computations that is safe to differentiate, whatever the other one gives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def choose(predicate: Bool[Array, ""], yes: Callable, no: Callable, *operands: PyTree) -> Any:
    """yes(*operands) where the predicate holds, no(*operands) otherwise.

    Both are computed, and both return trees alike. Of the one that is not chosen nothing reaches the result, neither
    its values nor its derivatives, in either mode and under `jax.vmap`, even where they are not finite. With
    `jnp.where` alone a derivative of zero times infinity would: its other branch is differentiated too.

    Args:
        predicate: One boolean.
        yes: A function of the operands. Everything that it differentiates must be among them.
        no: The same.
        *operands: Trees of arrays and of whatever else, any module among them.

    >>> jax.grad(lambda x: choose(x > 0, jnp.sqrt, jnp.zeros_like, x))(0.0)
    Array(0., dtype=float32, weak_type=True)
    """

    def taken(function: Callable, holds: Array) -> Any:
        arrays, rest = eqx.partition(operands, eqx.is_inexact_array)
        # The same numbers, with a derivative only where the predicate holds: a cotangent that is not finite ends here.
        arrays = jax.tree.map(lambda leaf: jnp.where(holds, leaf, jax.lax.stop_gradient(leaf)), arrays)
        return function(*eqx.combine(arrays, rest))

    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), taken(yes, predicate), taken(no, ~predicate))
