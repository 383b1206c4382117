"""The interface of a backward-factorised variational family q^λ."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from backstream.gaussian import Gaussian

State = Any
Inputs = Any


class BackwardFamily(eqx.Module):
    """q_{0:t}(x_{0:t}) = q_t(x_t) Π_s q_{s-1|s}(x_s, x_{s-1}), with q_{s-1|s}(x, ·) ∝ q_{s-1} ψ_s(·, x).

    The inexact array leaves of the module are λ. `a_t`, the state, is a pytree of arrays of fixed shapes,
    computed from a_{t-1} and y_t. A NaN in y is a missing value; a row of NaN means: predict only.

    Estimators use these four methods and nothing else.
    """

    affine: eqx.AbstractClassVar[bool]
    """Whether the backward kernels are affine: η̃_t(x) affine in x in its first component, constant in its second."""
    amortised: eqx.AbstractClassVar[bool]
    """Whether λ is shared by all times, as opposed to one λ^t for each."""

    @property
    @abstractmethod
    def state_dim(self) -> int:
        """d."""

    @property
    @abstractmethod
    def obs_dim(self) -> int:
        """dy."""

    @abstractmethod
    def init(self, y: Float[Array, " dy"], u: Inputs = None) -> State:
        """a_0."""

    @abstractmethod
    def update(self, state: State, y: Float[Array, " dy"], u: Inputs = None) -> State:
        """a_t from a_{t-1} and y_t."""

    @abstractmethod
    def marginal(self, state: State) -> Gaussian:
        """q_t, with natural parameter η_t."""

    @abstractmethod
    def potential(self, state: State, x: Float[Array, " d"]) -> Gaussian:
        """ψ_t(·, x), a function of x_{t-1}, with natural parameter η̃_t(x). `state` is a_t."""
