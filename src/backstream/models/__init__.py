"""State-space models p^θ: the interface, densities with missing values, and the models that come with the library."""

from backstream.models.base import StateSpaceModel
from backstream.models.chaotic_rnn import ChaoticRNN
from backstream.models.density import (
    ModelShape,
    check_model,
    check_observations,
    factorises,
    log_emission,
    log_prior,
    log_transitions,
    log_transitions_at,
    obs_dim,
    state_dim,
)
from backstream.models.growth import Growth
from backstream.models.linear_gaussian import LinearGaussian, Matrices
from backstream.models.stochastic_volatility import StochasticVolatility
from backstream.models.structural import Structural, structural

__all__ = [
    "ChaoticRNN",
    "Growth",
    "LinearGaussian",
    "Matrices",
    "ModelShape",
    "StateSpaceModel",
    "StochasticVolatility",
    "Structural",
    "check_model",
    "check_observations",
    "factorises",
    "log_emission",
    "log_prior",
    "log_transitions",
    "log_transitions_at",
    "obs_dim",
    "state_dim",
    "structural",
]
