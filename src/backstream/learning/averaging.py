"""Averages of iterates: at a constant rate λ wanders, and its running mean is what is worth keeping."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


class Averaging(eqx.Module):
    """A running mean that forgets the start and, in the end, everything older than `horizon` updates.

    The t-th iterate enters with weight max(1/horizon, (power + 1)/(t + power + 1)): while t is small the mean is over
    the latest t/power iterates or so (polynomial-decay averaging, Shamir and Zhang 2013), later it is exponential.
    """

    horizon: float = eqx.field(static=True, default=4000.0)
    power: float = eqx.field(static=True, default=4.0)

    def __check_init__(self):
        if not self.horizon >= 1:
            raise ValueError(f"The horizon of the averaging must be at least 1, not {self.horizon}.")
        if not self.power >= 0:
            raise ValueError(f"The power of the averaging must not be negative, but it is {self.power}.")

    def update(self, average: PyTree, iterate: PyTree, t: Array) -> PyTree:
        """The mean after iterate number t (the first has t = 0)."""
        weight = jnp.maximum(1 / self.horizon, (self.power + 1) / (t + self.power + 1))
        return jax.tree.map(lambda a, v: a + weight.astype(a.dtype) * (v - a), average, iterate)
