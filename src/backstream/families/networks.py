"""The networks inside the families: one hidden layer each."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


def apart(x: Array) -> Array:
    """x, by a product with the identity, which XLA fuses with nothing.

    At the end of a network it keeps apart what a cotangent comes from and the product with the hidden units that it
    goes into. Fused, all of the former would be computed again for each weight.
    """
    return x @ jnp.eye(len(x), dtype=x.dtype)


def perceptron(
    in_size: int,
    out_size: int,
    width: int,
    activation: Callable[[Array], Array] = jnp.tanh,
    last_gain: float = 1.0,
    *,
    key: Array,
    dtype,
) -> eqx.nn.MLP:
    """A network with one hidden layer. `last_gain` shrinks the weights of its last layer, whose bias starts at zero."""
    if width < 1:
        raise ValueError(f"width, the number of hidden units, must be at least 1, not {width}.")
    net = eqx.nn.MLP(in_size, out_size, width, depth=1, activation=activation, dtype=dtype, key=key)
    last = net.layers[-1]
    start = last_gain * last.weight, jnp.zeros(out_size, dtype)
    return eqx.tree_at(lambda net: (net.layers[-1].weight, net.layers[-1].bias), net, start)


def positive(raw: Array) -> Array:
    """softplus, kept off zero, where its square root would have no derivative."""
    return jnp.maximum(jax.nn.softplus(raw), 1e-30)
