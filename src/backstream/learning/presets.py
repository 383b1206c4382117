"""The learner that the evidence recommends, see docs/decisions.md, and how to build it from a few settings."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from backstream.estimators import FixedLag, Forward, LogScore, MomentCorrected, OnlineEstimator, RecursiveScore, Renewal
from backstream.families import BackwardFamily, Conjugate, Guided, GuidedMixture, Recurrent, ScoringFamily
from backstream.families.guided import Place
from backstream.models.base import StateSpaceModel
from backstream.models.density import check_model
from backstream.settings import Method, Settings

from .averaging import Averaging
from .monitor import Monitor
from .online import OnlineLearner
from .parameters import ModelParameters, free_parameters
from .steps import Settling
from .watched_learner import WatchedLearner

RATES = {"log-score": 1e-2, "window": 3e-3, "recursion": 1e-3}
MODEL_RATE = 1e-2
HALVED_AFTER = 30_000
MOST_SCORED = 256
"""Parameters of a model up to which the log score's derivatives are carried forward; beyond, a window is taken."""
QUICK_ROWS = 2**14
"""Rows of a stream that are read by a quickly compiled program: only beyond them a quicker one pays for itself."""


def gradient_method(settings: Settings, p: StateSpaceModel) -> Method:
    """The method that the settings choose for a model."""
    if settings.method is not None:
        return settings.method
    if settings.family != "guided":
        return "window"
    if not settings.learns_model or settings.several:
        return "log-score"
    moving = eqx.filter(p, free_parameters(p, settings.learn_parameters))
    return "window" if sum(leaf.size for leaf in jax.tree.leaves(moving)) > MOST_SCORED else "log-score"


def default_learner(
    p: StateSpaceModel,
    settings: Settings | None = None,
    *,
    exact: bool = False,
    model_optimizer: optax.GradientTransformation | None = None,
) -> OnlineLearner:
    """Adam with clipped gradients and averaged iterates for λ, on the gradient that the settings choose; for θ, where
    that gradient is the log score's, steps that need no tuning, unless there is a `model_optimizer`.

    The rate falls like 1/(1 + t/30 000), to a tenth of what it was: fast at first, and never so slow that a change of
    regime goes unlearned. With an `exact` family there is nothing to learn in λ. A guided family's λ, a factor of the
    model's noise, stays as it is while the log score teaches the noise itself.
    """
    settings = Settings() if settings is None else settings
    method = gradient_method(settings, p)
    rate = RATES[method] if settings.learning_rate is None else settings.learning_rate
    free = free_parameters(p, settings.learn_parameters) if settings.learn_parameters else None
    return OnlineLearner(
        p,
        _estimator(settings, method, exact, free),
        _optimizer(rate, _halved_after(settings.learning_rate_halved_after, settings.horizon)),
        _model_optimizer(settings, method) if model_optimizer is None else model_optimizer,
        free,
        _averaging(settings.horizon),
        _averaging(settings.model_horizon),
        fallback=settings.fallback,
        quick_rows=QUICK_ROWS,
    )


def _model_optimizer(settings: Settings, method: Method) -> optax.GradientTransformation | Settling | None:
    if not settings.learns_model:
        return None
    if method == "log-score" and settings.model_learning_rate is None:
        return Settling(horizon=settings.model_horizon)
    rate = MODEL_RATE if settings.model_learning_rate is None else settings.model_learning_rate
    return _optimizer(rate, _halved_after(settings.model_learning_rate_halved_after, settings.model_horizon))


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
    model_optimizer: optax.GradientTransformation | None = None,
    places: Sequence[Place] = (),
) -> tuple[WatchedLearner, BackwardFamily, Array]:
    """The default learner with its monitor, the family it starts from, and the key of its draws.

    `u` holds the inputs of the first row, if the model has any; `model_optimizer` steps for θ other than those of the
    settings; `places` where a guided family reads the model beside the surroundings of its prior. The same model and
    settings give the same bits.
    """
    key_family, key_learner = jax.random.split(jax.random.key(settings.seed))
    free = free_parameters(p, settings.learn_parameters) if settings.learn_parameters else None
    other = ModelParameters(p, free).elsewhere() if settings.learns_model else None
    q = _family(p, settings, u, key_family, {"places": places, "other": other})
    exact = isinstance(q, ScoringFamily) and q.exact
    learner = default_learner(p, settings, exact=exact, model_optimizer=model_optimizer)
    monitor = Monitor(window=settings.monitor_every, check_components=settings.components == "auto")
    return WatchedLearner(learner, monitor), q, key_learner


def _family(p: StateSpaceModel, settings: Settings, u: Any, key: Array, reading: dict[str, Any]) -> BackwardFamily:
    if settings.family == "guided" and settings.several:
        return GuidedMixture.from_model(p, u, **reading, components=int(settings.components))
    if settings.family == "guided":
        return Guided.from_model(p, u, **reading)
    shape = check_model(p, u)
    if settings.family == "conjugate":
        return Conjugate.create(shape.state_dim, shape.obs_dim, settings.width, key=key)
    return Recurrent.create(shape.state_dim, shape.obs_dim, settings.width, key=key)


def falling(rate: float, halved_after: float = float(HALVED_AFTER), floor: float = 0.1) -> optax.Schedule:
    """rate / (1 + t / halved_after), but no less than floor · rate."""
    return lambda t: rate * jnp.maximum(floor, 1 / (1 + t / halved_after))


@cache  # an optimizer is made of functions: two that do the same would be compiled for apart
def _optimizer(rate: float, halved_after: int) -> optax.GradientTransformation:
    """Adam, at a constant rate where `halved_after` is 0."""
    schedule = falling(rate, float(halved_after)) if halved_after else rate
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))
