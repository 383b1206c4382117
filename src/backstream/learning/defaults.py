"""The learner that the evidence recommends; see docs/decisions.md."""

import jax.numpy as jnp
import optax

from backstream.estimators import FixedLag
from backstream.models.base import StateSpaceModel

from .online import OnlineLearner


def default_learner(p: StateSpaceModel, rate: float = 3e-3, lag: int = 8, num_trajectories: int = 4) -> OnlineLearner:
    """Reparameterised trajectories over a sliding window, Adam with clipped gradients, averaged iterates.

    The rate falls like 1/(1 + t/10 000), to a tenth of what it was: fast at first, and never so slow that a change of
    regime goes unlearned.
    """
    optimiser = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(rate)))
    return OnlineLearner(p, FixedLag(lag, num_trajectories), optimiser)


def falling(rate: float, halved_after: float = 10_000.0, floor: float = 0.1) -> optax.Schedule:
    """rate / (1 + t / halved_after), but no less than floor · rate."""
    return lambda t: rate * jnp.maximum(floor, 1 / (1 + t / halved_after))
