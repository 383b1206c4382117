"""A choice between two computations that stays a choice when many streams advance together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Bool, PyTree


def branch(predicate: Bool[Array, ""], yes: Callable, no: Callable, *operands: PyTree) -> Any:
    """yes(*operands) if the predicate holds, no(*operands) otherwise.

    `jax.lax.cond` under `jax.vmap` computes both for everyone. This computes each of them only if somebody takes it: in
    a panel whose streams have all filled their windows, nothing is spent on how a window starts. The functions use
    nothing but their operands, and nothing is differentiated through the choice.
    """
    arrays, static = eqx.partition(operands, eqx.is_array)

    def traced(function):
        """Traced once: it will be wanted for one and for many, and its Python may be slow."""
        closed, shapes = jax.make_jaxpr(lambda arrays: function(*eqx.combine(arrays, static)), return_shape=True)(
            arrays
        )
        run = jaxpr_as_fun(closed)
        return lambda arrays: jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(arrays))), shapes

    (yes_again, shapes), (no_again, _) = traced(yes), traced(no)

    @custom_vmap
    def chosen(predicate, arrays):
        return jax.lax.cond(predicate, yes_again, no_again, arrays)

    @chosen.def_vmap
    def for_many(size, batched, predicate, arrays):
        axes = jax.tree.map(lambda axis: 0 if axis else None, batched[1])

        def if_any(wanted, function):
            nothing = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), shapes)
            return jax.lax.cond(wanted.any(), jax.vmap(function, (axes,), axis_size=size), lambda _: nothing, arrays)

        predicate = jnp.broadcast_to(predicate, (size,))
        one, other = if_any(predicate, yes_again), if_any(~predicate, no_again)

        def select(a, b):
            return jnp.where(predicate.reshape(size, *[1] * (a.ndim - 1)), a, b)

        result = jax.tree.map(select, one, other)
        return result, jax.tree.map(lambda _: True, result)

    return chosen(predicate, arrays)
