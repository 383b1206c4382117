"""The interface of a backward-factorized variational family q^λ."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float

from backstream.families.kernels import Kernel
from backstream.laws.gaussian import scaled_cholesky
from backstream.models.base import StateSpaceModel

State = Any
Inputs = Any


class BackwardFamily(eqx.Module):
    """q_{0:t}(x_{0:t}) = q_t(x_t) Π_s q_{s-1|s}(x_s, x_{s-1}), with q_{s-1|s}(x, ·) ∝ q_{s-1} ψ_s(·, x).

    q is a guide around the model p, which every method that may read it is given, at the θ of the moment. The inexact
    array leaves of the module are λ. `a_t`, the state, is a pytree of arrays of fixed shapes and types, computed from
    a_{t-1} and y_t. A NaN in y is a missing value; a row of NaN means: predict only.

    The state exists before any observation: `init` gives a_{-1}, and every row, the first one too, goes through
    `update`. No transition leads to the first row, so a state knows whether one leads to the next. The inputs of the
    first row may be such that the transition has no density, no derivative or no value there (no time has passed): an
    `update` that reads it computes it with `choosing.choose`, so that this reaches neither values nor derivatives.

    Estimators use these five methods and nothing else.
    """

    affine: eqx.AbstractClassVar[bool]
    """Whether the backward kernels are affine: η̃_t(x) affine in x in its first component, constant in its second."""
    amortized: eqx.AbstractClassVar[bool]
    """Whether λ is shared by all times, as opposed to one λ^t for each."""
    gaussian: ClassVar[bool] = True
    """Whether q_t and the backward kernels are normal laws. Others can be sampled and evaluated, and no more."""

    @property
    @abstractmethod
    def state_dim(self) -> int:
        """d."""

    @property
    @abstractmethod
    def obs_dim(self) -> int:
        """dy."""

    @abstractmethod
    def init(self, p: StateSpaceModel, u: Inputs = None) -> State:
        """a_{-1}, before any row. `u` holds the inputs of the first row, where the model has any."""

    @abstractmethod
    def update(self, p: StateSpaceModel, state: State, y: Float[Array, " dy"], u: Inputs = None) -> State:
        """a_t from a_{t-1} and y_t. The first one after `init` conditions the prior on y_0, and does not move it."""

    @abstractmethod
    def marginal(self, state: State) -> Any:
        """q_t, a `Gaussian` with natural parameter η_t, or a `Mixture`; the prior, or what stands for it, before the
        first row."""

    @abstractmethod
    def moments(self, state: State) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean and covariance of q_t. They exist where a density does not: the covariance may be singular."""

    def sample(self, state: State, *, key: Array) -> Float[Array, " d"]:
        """A draw from q_t, also where it has no density."""
        mean, cov = self.moments(state)
        return mean + scaled_cholesky(cov) @ jax.random.normal(key, mean.shape, mean.dtype)

    @abstractmethod
    def kernel(self, p: StateSpaceModel, state: State) -> Kernel:
        """q_{t-1|t}, from a_t. There is none at the first row: what is returned there is not used."""


class ScoringFamily(BackwardFamily):
    """A family whose update also says how probable the row was, given those before it."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether q is the smoothing law of the model itself. Log scores are then contributions to the ELBO."""

    @abstractmethod
    def log_score(self, state: State) -> Float[Array, ""]:
        """log p(y_t | y_{0:t-1}) as q sees it, from its prediction of the row; 0 for a row that is missing."""
