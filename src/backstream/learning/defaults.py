"""The learner that the evidence recommends, see docs/decisions.md, and how to build it from a few settings."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jaxtyping import Array

from backstream.estimators import MomentCorrected, RecursiveScore, Renewal
from backstream.families import BackwardFamily, Innovation
from backstream.models.base import StateSpaceModel

from .monitor import Monitor
from .online import OnlineLearner
from .watched import WatchedLearner


@dataclass(frozen=True)
class Settings:
    """What can be set about learning without writing Python. Built by `build`, written down with every run."""

    particles: int = 100
    """Samples that the recursion carries."""
    rate: float = 1e-3
    """The step size of Adam."""
    width: int = 64
    """Hidden units of the family's network."""
    seed: int = 0
    """Of the family's start and of every draw."""
    learn_model: bool = False
    """Whether θ is learned too."""
    model_rate: float = 1e-3
    """The step size of Adam for θ."""
    monitor_every: int = 500
    """How many observations the monitor looks at each time."""

    def __post_init__(self):
        for name, least in (("particles", 2), ("width", 1), ("monitor_every", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        if self.seed >= 2**31:
            raise ValueError(f"seed must be below 2**31, but is {self.seed}.")
        for name in ("rate", "model_rate"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)}.")


def default_learner(p: StateSpaceModel, rate: float = 1e-3, num_particles: int = 100) -> OnlineLearner:
    """Renewal objective with moment-corrected weights, Adam with clipped gradients, averaged iterates."""
    return OnlineLearner(p, _estimator(num_particles), _optimiser(rate))


def build(p: StateSpaceModel, settings: Settings, u: Any = None) -> tuple[WatchedLearner, BackwardFamily, Array]:
    """The default learner with its monitor, the family it starts from, and the key of its draws.

    `u` is an example of the model's inputs, if it has any. The same model and settings give the same bits.
    """
    key_family, key_learner = jax.random.split(jax.random.key(settings.seed))
    learner = default_learner(p, settings.rate, settings.particles)
    if settings.learn_model:
        estimator = _estimator(settings.particles, learn_model=True)
        learner = OnlineLearner(p, estimator, learner.optimiser, _optimiser(settings.model_rate))
    q = Innovation.from_model(p, settings.width, u, key=key_family)
    return WatchedLearner(learner, Monitor(window=settings.monitor_every)), q, key_learner


def _estimator(num_particles: int, learn_model: bool = False) -> RecursiveScore:
    return RecursiveScore(num_particles, MomentCorrected(), objective=Renewal(0.8), learn_model=learn_model)


def _optimiser(rate: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(rate))
