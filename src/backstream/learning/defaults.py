"""The learner that the evidence recommends; see docs/decisions.md."""

import optax

from backstream.estimators import MomentCorrected, RecursiveScore, Renewal
from backstream.models.base import StateSpaceModel

from .online import OnlineLearner


def default_learner(p: StateSpaceModel, rate: float = 1e-3, num_particles: int = 100) -> OnlineLearner:
    """Renewal objective with moment-corrected weights, Adam with clipped gradients, averaged iterates."""
    estimator = RecursiveScore(num_particles, MomentCorrected(), objective=Renewal(0.8))
    return OnlineLearner(p, estimator, optax.chain(optax.clip_by_global_norm(100.0), optax.adam(rate)))
