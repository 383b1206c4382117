"""What the recursion ascends: the ELBO by its increments, or a discounted, renewed ELBO."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float


class AbstractObjective(eqx.Module):
    discount: eqx.AbstractVar[float]
    """γ: how much of H_{t-1} and G_{t-1} is carried on."""

    @abstractmethod
    def renew(self, H: Float[Array, " n"], log_q: Float[Array, " n"]) -> Float[Array, " n"]:
        """What replaces H_{t-1} in its recursion."""

    @abstractmethod
    def direction(self, total: Array, increment: Array) -> Array:
        """What one observation contributes, given the total and its change."""


class Increment(AbstractObjective):
    """The paper's: ∇L_t − ∇L_{t-1}, which telescopes to the ELBO (eq. online_updates)."""

    discount: ClassVar[float] = 1.0

    def renew(self, H, log_q):
        return H

    def direction(self, total, increment):
        return increment


class Renewal(AbstractObjective):
    """(1 − γ) ∇L^γ: the ELBO of a window of random, geometric length whose first state has the filter as its prior.

    γ H_{t-1} + (1 − γ) log q_{t-1} replaces H_{t-1}, with log q_{t-1} frozen, and γ G_{t-1} in that of
    G_{t-1}. γ = 0 is one-step filtering; γ = 1 is the paper's increments. The filter is trained directly, and bias
    accumulates over 1/(1 − γ) steps instead of without end.
    """

    gamma: float = eqx.field(static=True, default=0.8)

    def __check_init__(self):
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not at {self.gamma}.")

    @property
    def discount(self) -> float:
        return self.gamma

    def renew(self, H, log_q):
        return H if self.gamma == 1 else self.gamma * H + (1 - self.gamma) * log_q

    def direction(self, total, increment):
        return increment if self.gamma == 1 else (1 - self.gamma) * total
