"""Whether the model is, at the rows that were read, what the posterior takes it to be.

A plan is made from the model near its prior, with inputs near those of the first row. Some models are others elsewhere:
a sensor that saturates, a switch. What a plan takes for granted, that a transition is affine or that a column reads two
directions of the state only, is compared with the model itself around the filter, at rows that were read, with their
inputs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream._jax.compiling import compiled
from backstream.families import BackwardFamily
from backstream.families.guided import Place
from backstream.families.guided.family import PlannedFamily
from backstream.families.guided.laws import Row, column_log_probs
from backstream.families.guided.places import REACH, points
from backstream.families.guided.plan import Plan
from backstream.families.guided.updates import Predicted
from backstream.models.base import Inputs, StateSpaceModel, emission_law, transition_law

from .records import Info

CHECKED_ROWS = 256
"""Of those that were read: one program for any number."""
LEAST_STEP = 0.05
"""What a transition may be off, in standard deviations of the prediction. A bend that small is not cut either."""
LEAST_NATS, ROUNDING = 0.1, 1e-3
"""What the log density of a row may be off, in nats, and relative to its size."""
LEAST_SHARE, LEAST_ROWS = 0.01, 2
"""Of rows where it is off, before that matters."""
NUM_PLACES = 2
"""That are remembered of each method."""


class PlanNews(NamedTuple):
    """What has become of the plan since the first row."""

    row: int = 0
    """Up to which it was an older one; 0 where it still is the first."""
    contradicted: str = ""
    """Where the model was not what it says when that was last looked at, and no better one was found."""

    @classmethod
    def restored(cls, record: Any) -> "PlanNews":
        """From a checkpoint. Raises TypeError or ValueError where it is of another shape."""
        row, contradicted = record
        if type(row) is not int or not isinstance(contradicted, str):
            raise TypeError("what has become of a plan is a row and a sentence")
        return cls(row, contradicted)


UNCHANGED = PlanNews()


class Contradiction(NamedTuple):
    """Where the model is not what the plan says."""

    share: dict[str, float]
    """Of the rows, by the method of the model."""
    places: tuple[Place, ...]
    """The worst of them."""

    def sentence(self) -> str:
        found = " and ".join(f"its {name} in {share:.0%} of the latest rows" for name, share in self.share.items())
        return f"Where the states are now, the model differs from what it is near its prior: {found}."


def find_contradiction(
    p: StateSpaceModel, q: BackwardFamily, infos: Info, ys: np.ndarray, inputs: Inputs = None
) -> Contradiction | None:
    """None where the model is what the plan says, or where there is no plan.

    Args:
        p: The model.
        q: The posterior.
        infos: What it has found at some consecutive rows.
        ys: These rows.
        inputs: Their inputs, where the model has any.
    """
    if not isinstance(q, PlannedFamily) or len(ys) < 2:
        return None
    rows = np.linspace(1, len(ys) - 1, CHECKED_ROWS).astype(int)
    inputs = jax.tree.map(np.asarray, inputs)
    found = [np.asarray(leaf, q.log_inflation.dtype) for leaf in (infos.mean, infos.std)]
    before, now = ([leaf[which] for leaf in found] for which in (rows - 1, rows))
    us = jax.tree.map(lambda leaf: leaf[rows], inputs)
    observed = np.asarray(ys, q.log_inflation.dtype)[rows]
    moved, emitted = (np.asarray(part, float) for part in _deviations(p, q, before, now, observed, us))
    rows, first = np.unique(rows, return_index=True)
    enough = max(LEAST_ROWS, int(np.ceil(LEAST_SHARE * len(rows))))
    share, places = {}, []
    for name, off, at in (("transition", moved / LEAST_STEP, rows - 1), ("emission", emitted / LEAST_NATS, rows)):
        off = off[first]
        if (off > 1).sum() < enough:
            continue
        share[name] = float((off > 1).mean())
        for i in np.argsort(-off, kind="stable")[:NUM_PLACES]:
            mean, std = (leaf[at[i]] for leaf in found)
            places.append(Place(mean, std, jax.tree.map(lambda leaf, i=i: leaf[rows[i]], inputs)))
    return Contradiction(share, tuple(places)) if share else None


@compiled(quickly=True)
def _deviations(
    p: StateSpaceModel, q: PlannedFamily, before: Any, now: Any, ys: Array, inputs: Any
) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """Of each row: what the transition to it is off, in standard deviations, and its log density, in nats."""

    def one(before, now, y, u):
        return _of_transition(p, q.plan, before[0], before[1], u), _of_emission(p, q.plan, now[0], now[1], y, u)

    return jax.vmap(one)(before, now, ys, inputs)


def _of_transition(p: StateSpaceModel, plan: Plan, mean: Array, std: Array, u: Inputs) -> Array:
    """How far the transition is from affine in its mean, or from constant in its noise."""
    if not plan.transition.affine:
        return jnp.zeros_like(mean[0])

    def look(x):
        parts = plan.transition.noise.parts(transition_law(p, x, u), x.dtype)
        return parts.mean, jnp.diagonal(parts.dense(), 0, 1, 2)

    away = jnp.asarray(points(len(mean)), mean.dtype) * std
    (center, variance), slope = look(mean), jax.jacfwd(lambda x: look(x)[0])(mean)
    moved, variances = jax.vmap(look)(mean + away)
    straight = jnp.einsum("mij,kj->kmi", slope, away)
    rounding = 64 * jnp.finfo(mean.dtype).eps * (abs(center) + abs(slope) @ abs(mean))
    bent = jnp.maximum(abs(moved - center - straight) - rounding, 0.0)
    size = variance + ((slope * std) ** 2).sum(-1)
    return jnp.maximum(_largest(bent / jnp.sqrt(size)), _largest(abs(variances - variance) / size))


def _of_emission(p: StateSpaceModel, plan: Plan, mean: Array, std: Array, y: Array, u: Inputs) -> Array:
    row = Row.of(emission_law(p, mean, u), y, plan.fill.value)
    predicted = Predicted(mean, jnp.diag(REACH * std), jnp.zeros((), int))

    def differ(z):
        actual = column_log_probs(emission_law(p, predicted.at(z), u), row).sum()
        return abs(plan.update.assumed(p, row, u, predicted, z) - actual) - ROUNDING * abs(actual)

    away = jnp.asarray(points(len(mean)) / REACH, mean.dtype)
    return jnp.where(row.seen.any(), _largest(jax.vmap(differ)(away)), 0.0)


def _largest(values: Array) -> Array:
    """Of those that are finite: far states may be ones at which the model is not meant to be called."""
    return jnp.where(jnp.isfinite(values), values, 0.0).max()
