"""What every worker does with its buckets: a learner, the posterior it starts from, and where λ lives."""

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Array

from backstream.errors import InputError
from backstream.families import BackwardFamily, ScoringFamily
from backstream.learning import OnlineLearner, Settings, build, default_learner
from backstream.models import StateSpaceModel

Sharing = Literal["own", "held", "common"]
"""Whose λ it is: each stream has its own; one for all that does not move; one for all that is learned from all."""


class Held(NamedTuple):
    """What was learned elsewhere, as `bs.spark.stream` holds it."""

    model: StateSpaceModel
    family: BackwardFamily


class Recipe(NamedTuple):
    """It goes to the workers by Spark's own serializer."""

    learner: OnlineLearner
    q: BackwardFamily
    key: Array
    u: np.ndarray | None
    """An example of the inputs of one row."""
    sharing: Sharing
    precision: str


def learned_alone(model: StateSpaceModel, settings: Settings, u: Any, precision: str, common: bool = False) -> Recipe:
    """The learner that the settings describe. Without learning λ is held."""
    try:
        watched, q, key = build(model, settings, u)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    sharing: Sharing = "held" if not settings.learn else "common" if common else "own"
    return Recipe(watched.learner, q, key, u, sharing, precision)


def held(model: StateSpaceModel, q: BackwardFamily, u: Any, precision: str) -> Recipe:
    """A posterior and a model that were learned elsewhere, and stay as they are."""
    if not isinstance(q, ScoringFamily):
        raise InputError(
            f"A {type(q).__name__} posterior has no log score, and cannot be held on Spark: deploy a run of the family "
            "'guided'."
        )
    still = Settings(learn=False)
    _, _, key = build(model, still, u)
    return Recipe(default_learner(model, still, exact=q.exact), q, key, u, "held", precision)
