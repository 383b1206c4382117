"""State-space models p^θ: the interface, densities with missing values, and the models that come with the library."""

from backstream.models.base import StateSpaceModel, emission_law, prior_law, transition_law
from backstream.models.chaotic_rnn import ChaoticRNN
from backstream.models.density import (
    ModelShape,
    check_inputs,
    check_model,
    check_observations,
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
from backstream.models.unconstrained import Unconstrained, unconstrained

__all__ = [
    "ChaoticRNN",
    "Growth",
    "LinearGaussian",
    "Matrices",
    "ModelShape",
    "StateSpaceModel",
    "StochasticVolatility",
    "Structural",
    "Unconstrained",
    "check_inputs",
    "check_model",
    "check_observations",
    "emission_law",
    "log_emission",
    "log_prior",
    "log_transitions",
    "log_transitions_at",
    "obs_dim",
    "prior_law",
    "state_dim",
    "structural",
    "transition_law",
    "unconstrained",
]
