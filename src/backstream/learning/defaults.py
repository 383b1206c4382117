"""The learner that the evidence recommends, see docs/decisions.md, and how to build it from a few settings."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from backstream.estimators import FixedLag, Forward, MomentCorrected, OnlineEstimator, RecursiveScore, Renewal
from backstream.families import BackwardFamily, Innovation
from backstream.models.base import StateSpaceModel

from .monitor import Monitor
from .online import OnlineLearner
from .watched import WatchedLearner

RATES = {"window": 3e-3, "recursion": 1e-3}
LEAST = {"lag": 1, "trajectories": 1, "particles": 2, "width": 1, "monitor_every": 2, "seed": 0}


@dataclass(frozen=True)
class Settings:
    """What can be set about learning without writing Python. Built by `build`, written down with every run."""

    method: Literal["window", "recursion"] = "window"
    """Where the gradient comes from: trajectories over a window, or the paper's recursion, for long memories."""
    lag: int = 16
    """Observations in the window."""
    trajectories: int = 4
    """Trajectories that are drawn through the window."""
    particles: int = 100
    """Samples that the recursion carries."""
    gamma: float = 0.8
    """How much of its past the recursion carries on: 1 is the paper's, less is steadier."""
    rate: float | None = None
    """The step size of Adam, which falls to a tenth over the first 270 000 observations. None is that of the method:
    3e-3 for the window, 1e-3 for the recursion, which a larger one makes unstable while it learns dynamics."""
    width: int = 64
    """Hidden units of the family's network."""
    shared: bool = False
    """Whether one network serves all columns, which then should be alike, and the dynamics are those of the model as
    given, linearised where the filter is, and not learned: quick to learn, and the choice for many columns."""
    seed: int = 0
    """Of the family's start and of every draw."""
    learn_model: bool = False
    """Whether θ is learned too."""
    model_rate: float = 1e-3
    """The step size of Adam for θ."""
    monitor_every: int = 500
    """How many observations the monitor looks at each time."""

    def __post_init__(self):
        if self.method not in ("window", "recursion"):
            raise ValueError(f"method must be 'window' or 'recursion', not {self.method!r}.")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        if self.shared and self.learn_model:
            raise ValueError("shared takes its dynamics from the model as given: it cannot go with learn_model.")
        if self.seed >= 2**31:
            raise ValueError(f"seed must be below 2**31, but is {self.seed}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not at {self.gamma}.")
        for name, value in (("rate", self.step_size()), ("model_rate", self.model_rate)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, not {value}.")

    def step_size(self) -> float:
        return RATES["window" if self.shared else self.method] if self.rate is None else self.rate

    def settled(self) -> "Settings":
        """With nothing left to the method: what a run writes down."""
        return replace(self, rate=self.step_size())

    def estimator(self) -> OnlineEstimator:
        if self.method == "window":
            return FixedLag(self.lag, self.trajectories, learn_model=self.learn_model)
        return RecursiveScore(
            self.particles,
            MomentCorrected(),
            Forward(self.gamma),
            objective=Renewal(self.gamma),
            learn_model=self.learn_model,
        )


def default_learner(p: StateSpaceModel, settings: Settings | None = None) -> OnlineLearner:
    """Reparameterised trajectories over a sliding window, Adam with clipped gradients, averaged iterates.

    The rate falls like 1/(1 + t/30 000), to a tenth of what it was: fast at first, and never so slow that a change of
    regime goes unlearned.
    """
    settings = Settings() if settings is None else settings
    model_optimiser = _optimiser(settings.model_rate) if settings.learn_model else None
    return OnlineLearner(p, settings.estimator(), _optimiser(settings.step_size()), model_optimiser)


def build(
    p: StateSpaceModel, settings: Settings, u: Any = None, clock: int | None = None
) -> tuple[WatchedLearner, BackwardFamily, Array]:
    """The default learner with its monitor, the family it starts from, and the key of its draws.

    `u` is an example of the model's inputs, if it has any, `clock` the place in it of the time since the last
    observation. The same model and settings give the same bits.
    """
    key_family, key_learner = jax.random.split(jax.random.key(settings.seed))
    shared = settings.shared
    q = Innovation.from_model(p, settings.width, u, clock=clock, shared=shared, tangent=shared, key=key_family)
    return WatchedLearner(default_learner(p, settings), Monitor(window=settings.monitor_every)), q, key_learner


def falling(rate: float, halved_after: float = 30_000.0, floor: float = 0.1) -> optax.Schedule:
    """rate / (1 + t / halved_after), but no less than floor · rate."""
    return lambda t: rate * jnp.maximum(floor, 1 / (1 + t / halved_after))


@cache  # an optimiser is made of functions: two that do the same would be compiled for apart
def _optimiser(rate: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(rate)))
