"""Control variates for score terms: Σ_j w_j ∇log q(x_j) r_j, with something subtracted from r."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractBaseline(eqx.Module):
    zero_sum: eqx.AbstractClassVar[bool]
    """Whether the coefficients of a row sum to zero, so that the log-normalizer of q drops out of the score term."""
    least_draws: eqx.AbstractClassVar[int]
    """How many draws the baseline needs to be defined."""

    @abstractmethod
    def center(self, w: Float[Array, "n k"], r: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """The coefficients C_ij of the scores: w_ij (r_ij − baseline)."""


class SameSample(AbstractBaseline):
    """The paper's: the mean of the very draws that it is subtracted from.

    It shrinks the score term: by (M − 1)/M with M equal weights, by 1 − Σ w² in general.
    """

    zero_sum: ClassVar[bool] = True
    least_draws: ClassVar[int] = 1

    def center(self, w, r):
        return w * (r - (w * r).sum(1, keepdims=True))


class LeaveOneOut(AbstractBaseline):
    """`SameSample` without the shrinking.

    Σ_j w_j s_j (r_j − r̄) / (1 − Σ w²) is the average of ½ (s_j − s_k)(r_j − r_k) over pairs j ≠ k with weights
    w_j w_k. With M equal weights it is the leave-one-out baseline, exactly: r_j − mean_{k≠j} r_k = M/(M−1) (r_j − r̄).
    With unequal weights, subtracting the mean of the others from each r_j would divide by 1 − w_j, and explode where
    one weight is near one. Here the division is by the same number for the whole row, and by no less than 1/cap:
    below an effective sample size of two, there is no second draw to correct with.
    """

    cap: float = eqx.field(static=True, default=2.0)
    zero_sum: ClassVar[bool] = True
    least_draws: ClassVar[int] = 2

    def __check_init__(self):
        if not self.cap >= 1:
            raise ValueError(f"The cap of the leave-one-out correction must be at least 1, not {self.cap}.")

    def center(self, w, r):
        shrink = 1 - (w**2).sum(1, keepdims=True)
        return w * (r - (w * r).sum(1, keepdims=True)) / jnp.maximum(shrink, 1 / self.cap)


class NoBaseline(AbstractBaseline):
    """Nothing is subtracted: the bare recursion, of high variance, whose G grows with t. For comparison only."""

    zero_sum: ClassVar[bool] = False
    least_draws: ClassVar[int] = 1

    def center(self, w, r):
        return w * r
