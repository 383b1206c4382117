"""A choice between two computations that stays a choice when many streams advance together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, PyTree


def branch(predicate: Bool[Array, ""], yes: Callable, no: Callable, *operands: PyTree) -> Any:
    """yes(*operands) if the predicate holds, no(*operands) otherwise.

    `jax.lax.cond` under `jax.vmap` computes both for everyone. This computes each of them only if somebody takes it: in
    a panel whose streams have all filled their windows, nothing is spent on how a window starts. The functions use
    nothing but their operands, and nothing is differentiated through the choice.
    """
    arrays, static = eqx.partition(operands, eqx.is_array)

    def taking(function):
        return lambda arrays: function(*eqx.combine(arrays, static))

    @custom_vmap
    def chosen(predicate, arrays):
        return jax.lax.cond(predicate, taking(yes), taking(no), arrays)

    @chosen.def_vmap
    def for_many(size, batched, predicate, arrays):
        axes = jax.tree.map(lambda axis: 0 if axis else None, batched[1])

        def mapped(function):
            return jax.vmap(taking(function), (axes,), axis_size=size)

        def if_any(wanted, function):
            shapes = jax.eval_shape(mapped(function), arrays)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.cond(wanted.any(), mapped(function), lambda _: nothing, arrays)

        predicate = jnp.broadcast_to(predicate, (size,))
        one, other = if_any(predicate, yes), if_any(~predicate, no)

        def select(a, b):
            return jnp.where(predicate.reshape(size, *[1] * (a.ndim - 1)), a, b)

        result = jax.tree.map(select, one, other)
        return result, jax.tree.map(lambda _: True, result)

    return chosen(predicate, arrays)
