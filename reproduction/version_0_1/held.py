"""What a family keeps but does not learn."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class Held(eqx.Module):
    """A pytree, any model among them, that is no part of λ.

    λ is the floating-point arrays of a family. In here their bits are kept as integers: no gradient, optimizer, average
    or sensitivity meets them, while they are still copied, mapped and written down with everything else.

    >>> held = Held.of({"scale": jnp.array([1.0, 2.0]), "name": "noise"})
    >>> jax.tree.leaves(eqx.filter(held, eqx.is_inexact_array))
    []
    >>> held.value["scale"]
    Array([1., 2.], dtype=float32)
    """

    bits: Any
    dtypes: tuple[Any, ...] = eqx.field(static=True)
    """What the leaves were, in their order; None for one that is as it was."""

    @classmethod
    def of(cls, value: Any) -> "Held":
        leaves, tree = jax.tree.flatten(value)
        if any(_holds(leaf, jnp.complexfloating) for leaf in leaves):
            raise TypeError("Complex numbers cannot be held: give their real and imaginary parts.")
        leaves = [jnp.asarray(leaf) if _holds(leaf, jnp.floating) else leaf for leaf in leaves]
        dtypes = tuple(leaf.dtype if _holds(leaf, jnp.floating) else None for leaf in leaves)
        bits = [
            leaf if dtype is None else jax.lax.bitcast_convert_type(leaf, f"int{8 * dtype.itemsize}")
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        ]
        return cls(jax.tree.unflatten(tree, bits), dtypes)

    @property
    def value(self) -> Any:
        """The pytree again."""
        bits, tree = jax.tree.flatten(self.bits)
        leaves = [
            leaf if dtype is None else jax.lax.bitcast_convert_type(leaf, dtype)
            for leaf, dtype in zip(bits, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)


def _holds(leaf: Any, kind: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, kind)
