"""The learner that the evidence recommends, see docs/decisions.md, and how to build it from a few settings."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from backstream.estimators import FixedLag, Forward, LogScore, MomentCorrected, OnlineEstimator, RecursiveScore, Renewal
from backstream.families import BackwardFamily, Conjugate, Guided, GuidedMixture, Recurrent, ScoringFamily
from backstream.models.base import StateSpaceModel
from backstream.models.density import check_model

from .averaging import Averaging
from .monitor import Monitor
from .online import OnlineLearner
from .parameters import free_parameters
from .steps import WATCH_BLOCK, Settling
from .watched_learner import WatchedLearner

RATES = {"log-score": 1e-2, "window": 3e-3, "recursion": 1e-3}
MODEL_RATE = 1e-2
HALVED_AFTER = 30_000
LEAST = {"components": 1, "lag": 1, "trajectories": 1, "particles": 2, "width": 1, "monitor_every": 2, "seed": 0}
MOST = {"components": 2**10, "lag": 2**16, "trajectories": 2**16, "particles": 2**20, "width": 2**14}
"""Beyond these the arrays would take all memory: settings may come from a run that somebody else made."""
MOST_SCORED = 64
"""Parameters of a model up to which the log score's derivatives are carried forward; beyond, a window is taken."""
QUICK_ROWS = 2**14
"""Rows of a stream that are read by a quickly compiled program: only beyond them a quicker one pays for itself."""

Family = Literal["guided", "conjugate", "recurrent"]
Method = Literal["log-score", "window", "recursion"]


@dataclass(frozen=True)
class Settings:
    """Settings for learning. They are saved with every run.

    λ are the parameters of the posterior, θ those of the model.
    """

    family: Family = "guided"
    """The posterior. `guided` evaluates the model at every row. `conjugate` and `recurrent` are the families of the
    paper, which learn everything from the stream."""
    learn: bool = True
    """Whether the posterior learns. A guided one is good before it has: without learning a row costs microseconds."""
    components: int | Literal["auto"] = "auto"
    """How many normal laws a guided posterior is made of: more than one where it may have several modes. With `auto` a
    run begins with one, and takes four after the first rows where they predict those better."""
    method: Method | None = None
    """The gradient: from the log score of each row, from trajectories over a window, or from the recursion of the
    paper. Default: the log score for a guided posterior (the window if many parameters are learned), the window for
    others."""
    lag: int = 16
    """The number of rows in the window."""
    trajectories: int = 4
    """The number of sampled trajectories in the window."""
    particles: int = 100
    """The number of particles of the recursion."""
    gamma: float = 0.8
    """The discount of the recursion. 1 is the objective of the paper. A smaller value is more stable."""
    rate: float | None = None
    """The learning rate of Adam for λ. Default: 1e-2 for the log score, 3e-3 for the window, 1e-3 for the recursion."""
    rate_halved_after: int | None = None
    """The number of rows until the learning rate has halved. It falls like 1/(1 + t/rows), to a tenth. 0: constant.
    Default: 30 000, or constant if there is a `horizon`."""
    horizon: int | None = None
    """The number of rows over which λ is averaged. Older rows are forgotten. Default: up to 4 000."""
    width: int = 64
    """The number of hidden units of the network, for the families `conjugate` and `recurrent`."""
    seed: int = 0
    """The random seed."""
    learn_model: bool = False
    """Learn θ, that is every array of the model."""
    learn_parameters: tuple[str, ...] = ()
    """Learn only these fields of the model. `learn_model` is then not needed."""
    model_rate: float | None = None
    """The learning rate of Adam for θ. Default: with the log score, `Settling`, which needs no learning rate; with the
    window and the recursion, 1e-2."""
    model_rate_halved_after: int | None = None
    """As `rate_halved_after`, for θ."""
    model_horizon: int | None = None
    """The number of rows after which θ forgets, to follow parameters that change. Default: no forgetting while the rows
    agree with what was learned."""
    monitor_every: int = 500
    """The number of rows in each report of the monitor."""
    fallback: bool = True
    """Report the posterior from before learning if it predicts better than the learned one."""

    def __post_init__(self):
        for name, choices in (("family", get_args(Family)), ("method", (None, *get_args(Method)))):
            if getattr(self, name) not in choices:
                named = ", ".join(repr(choice) for choice in choices if choice is not None)
                raise ValueError(f"{name} must be one of {named}, not {getattr(self, name)!r}.")
        if isinstance(self.components, str) and self.components != "auto":
            raise ValueError(f"components must be a number or 'auto', not {self.components!r}.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value != "auto" and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}.")
        for name, most in MOST.items():
            value = getattr(self, name)
            if value != "auto" and value > most:
                raise ValueError(f"{name} must be at most {most}, not {value}.")
        if self.method == "log-score" and self.family != "guided":
            raise ValueError(f"The family {self.family!r} has no log score: choose the method 'window' or 'recursion'.")
        if self.several and (self.family != "guided" or self.method not in (None, "log-score")):
            what = f"the family {self.family!r}" if self.family != "guided" else f"the method {self.method!r}"
            raise ValueError(f"Several components are for the family 'guided' and its log score, not for {what}.")
        if not self.learn and (self.learns_model or self.family != "guided"):
            what = "the model" if self.learns_model else f"a {self.family} posterior"
            raise ValueError(f"Without learning there is nothing that could find {what}: leave learn at True.")
        if self.seed >= 2**31:
            raise ValueError(f"seed must be below 2**31, but is {self.seed}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not at {self.gamma}.")
        for name in ("rate", "model_rate"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, not {value}.")
        halved = "rate_halved_after", "model_rate_halved_after"
        for name, least in (("horizon", 1), ("model_horizon", WATCH_BLOCK), *((name, 0) for name in halved)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least} rows, not {value}.")

    @property
    def several(self) -> bool:
        """Whether several components were asked for."""
        return self.components != "auto" and self.components > 1

    @property
    def learns_model(self) -> bool:
        return self.learn_model or bool(self.learn_parameters)

    def method_for(self, p: StateSpaceModel) -> Method:
        if self.method is not None:
            return self.method
        if self.family != "guided":
            return "window"
        if not self.learns_model or self.several:
            return "log-score"
        moving = eqx.filter(p, free_parameters(p, self.learn_parameters))
        return "window" if sum(leaf.size for leaf in jax.tree.leaves(moving)) > MOST_SCORED else "log-score"


def default_learner(
    p: StateSpaceModel,
    settings: Settings | None = None,
    *,
    exact: bool = False,
    model_optimiser: optax.GradientTransformation | None = None,
) -> OnlineLearner:
    """Adam with clipped gradients and averaged iterates for λ, on the gradient that the settings choose; for θ, where
    that gradient is the log score's, steps that need no tuning, unless there is a `model_optimiser`.

    The rate falls like 1/(1 + t/30 000), to a tenth of what it was: fast at first, and never so slow that a change of
    regime goes unlearned. With an `exact` family there is nothing to learn in λ. A guided family's λ, a factor of the
    model's noise, stays as it is while the log score teaches the noise itself.
    """
    settings = Settings() if settings is None else settings
    method = settings.method_for(p)
    rate = RATES[method] if settings.rate is None else settings.rate
    free = free_parameters(p, settings.learn_parameters) if settings.learn_parameters else None
    return OnlineLearner(
        p,
        _estimator(settings, method, exact, free),
        _optimiser(rate, _halved_after(settings.rate_halved_after, settings.horizon)),
        _model_optimiser(settings, method) if model_optimiser is None else model_optimiser,
        free,
        _averaging(settings.horizon),
        _averaging(settings.model_horizon),
        fallback=settings.fallback,
        quick_rows=QUICK_ROWS,
    )


def _model_optimiser(settings: Settings, method: Method) -> optax.GradientTransformation | Settling | None:
    if not settings.learns_model:
        return None
    if method == "log-score" and settings.model_rate is None:
        return Settling(horizon=settings.model_horizon)
    rate = MODEL_RATE if settings.model_rate is None else settings.model_rate
    return _optimiser(rate, _halved_after(settings.model_rate_halved_after, settings.model_horizon))


def _halved_after(rows: int | None, horizon: int | None) -> int:
    return (HALVED_AFTER if horizon is None else 0) if rows is None else rows


def _averaging(horizon: int | None) -> Averaging:
    return Averaging() if horizon is None else Averaging(float(horizon))


def _estimator(settings: Settings, method: Method, exact: bool, free: PyTree) -> OnlineEstimator:
    learn_model = settings.learns_model
    if not settings.learn:
        return LogScore(learn_family=False)
    if method == "log-score":
        return LogScore(learn_model, learn_family=not (exact or learn_model), free=free)
    if method == "window":
        return FixedLag(settings.lag, settings.trajectories, learn_model=learn_model)
    return RecursiveScore(
        settings.particles,
        MomentCorrected(),
        Forward(settings.gamma),
        objective=Renewal(settings.gamma),
        learn_model=learn_model,
    )


def build(
    p: StateSpaceModel,
    settings: Settings,
    u: Any = None,
    model_optimiser: optax.GradientTransformation | None = None,
) -> tuple[WatchedLearner, BackwardFamily, Array]:
    """The default learner with its monitor, the family it starts from, and the key of its draws.

    `u` holds the inputs of the first row, if the model has any; `model_optimiser` steps for θ other than those of the
    settings. The same model and settings give the same bits.
    """
    key_family, key_learner = jax.random.split(jax.random.key(settings.seed))
    q = _family(p, settings, u, key_family)
    exact = isinstance(q, ScoringFamily) and q.exact
    learner = default_learner(p, settings, exact=exact, model_optimiser=model_optimiser)
    monitor = Monitor(window=settings.monitor_every, check_components=settings.components == "auto")
    return WatchedLearner(learner, monitor), q, key_learner


def _family(p: StateSpaceModel, settings: Settings, u: Any, key: Array) -> BackwardFamily:
    if settings.family == "guided" and settings.several:
        return GuidedMixture.from_model(p, u, components=int(settings.components))
    if settings.family == "guided":
        return Guided.from_model(p, u)
    shape = check_model(p, u)
    if settings.family == "conjugate":
        return Conjugate.create(shape.state_dim, shape.obs_dim, settings.width, key=key)
    return Recurrent.create(shape.state_dim, shape.obs_dim, settings.width, key=key)


def falling(rate: float, halved_after: float = float(HALVED_AFTER), floor: float = 0.1) -> optax.Schedule:
    """rate / (1 + t / halved_after), but no less than floor · rate."""
    return lambda t: rate * jnp.maximum(floor, 1 / (1 + t / halved_after))


@cache  # an optimiser is made of functions: two that do the same would be compiled for apart
def _optimiser(rate: float, halved_after: int) -> optax.GradientTransformation:
    """Adam, at a constant rate where `halved_after` is 0."""
    schedule = falling(rate, float(halved_after)) if halved_after else rate
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))
