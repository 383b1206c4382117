"""Running sums whose rounding errors do not grow."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class CompensatedSum(NamedTuple):
    """A sum and the rounding error it has made so far (Neumaier): float32 keeps its digits over millions of terms."""

    value: Float[Array, "*s"]
    error: Float[Array, "*s"]

    @classmethod
    def zeros(cls, shape, dtype) -> "CompensatedSum":
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def add(self, term: Float[Array, "*s"], discount: float = 1.0) -> "CompensatedSum":
        """discount · sum + term."""
        kept = discount * self.value
        value = kept + term
        lost = jnp.where(jnp.abs(kept) >= jnp.abs(term), (kept - value) + term, (term - value) + kept)
        return CompensatedSum(value, discount * self.error + lost)

    def total(self) -> Float[Array, "*s"]:
        return self.value + self.error


class Running(NamedTuple):
    """A statistic known at N samples, centered; what was taken out of it, summed up; and what remains of its
    expectation.

    The expectation at t is discount · (sum up to t − 1) + now. `now` is an average of the statistic at t, perhaps
    with an outer term; taking `shift` out of the samples leaves `rest = now − shift` to be known at t + 1.
    """

    at_samples: Float[Array, "n *s"]
    sum: CompensatedSum
    rest: Float[Array, "*s"]

    @classmethod
    def zeros(cls, num_samples: int, shape, dtype) -> "Running":
        return cls(jnp.zeros((num_samples, *shape), dtype), CompensatedSum.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def advance(
        self,
        at_samples: Float[Array, "n *s"],
        now: Float[Array, "*s"],
        shift: Float[Array, "*s"],
        discount: float = 1.0,
    ) -> tuple["Running", Float[Array, "*s"], Float[Array, "*s"]]:
        """The statistic at the next time, from which `shift` has been taken out, its expectation, and the change of
        the expectation."""
        total = self.sum.add(now, discount).total()
        running = Running(at_samples, self.sum.add(shift, discount), now - shift)
        return running, total, now - self.rest
