"""Updates for columns that read more than three directions of the state, where no grid can follow."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.models.base import emission_law

from . import small_matrices as small
from .closed_forms import Tilted, condition
from .importance import reweigh
from .laws import column_log_probs
from .predictors import Predictors
from .propagation import propagate
from .updates import NormalColumns, Update

REACH = 3.0
"""The squared distance of the points along each axis, as in the prediction."""
MAX_TURNS = 15
TOLERANCE = 0.02
WIDEST = 1.0
"""The posterior variance of an opaque law is at most so many times that of the prediction. More would add up over rows
that say little: the wider the prediction, the less a row says."""


class Line(NamedTuple):
    """A function of z ~ N(0, I) as a straight line with a rest: centre + slope z + rest w, w another N(0, I)."""

    centre: Float[Array, "*v"]
    slope: Float[Array, "d *v"]
    rest: Float[Array, "d *v"]


def regress(function: Callable[[Array], Array], d: int, dtype) -> Line:
    """Statistical linear regression under N(0, I), by second-order divided differences: 2d + 1 points."""
    reach = math.sqrt(REACH) * jnp.eye(d, dtype=dtype)
    values = jax.vmap(function)(jnp.concatenate([jnp.zeros((1, d), dtype), reach, -reach]))
    centre, ahead, behind = values[0], values[1 : d + 1], values[d + 1 :]
    second = ahead + behind - 2 * centre
    return Line(
        centre + second.sum(0) / (2 * REACH),
        (ahead - behind) / (2 * math.sqrt(REACH)),
        second * (math.sqrt(REACH - 1) / (2 * REACH)),
    )


def _first(tilted: Tilted, d: int) -> Tilted:
    """The law of the first d coordinates, not further from the prediction than a regression under it can be trusted."""
    mean, factor = tilted.mean[:d], tilted.factor[:d]
    limit = 4 + math.sqrt(d)
    mean = mean * jnp.minimum(1.0, limit / jnp.maximum(jnp.sqrt((mean**2).sum()), 1e-6))
    return Tilted(mean, jnp.linalg.cholesky(factor @ factor.T), tilted.log_mass)


class RegressedNormal(Update):
    """Normal columns around a function of many states: the mean regressed, its rest as noise that the columns share."""

    columns: NormalColumns = NormalColumns()

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype

        def location(z):
            return self.columns.location(emission_law(p, predicted.at(z), u)).astype(dtype)

        centre = location(jnp.zeros(d, dtype))
        whiten, log_scale = self.columns.whitener(emission_law(p, predicted.mean, u), row)
        line = regress(lambda z: whiten(location(z) - centre), d, dtype)
        slope = jnp.concatenate([line.slope, line.rest]).T
        tilted = _first(condition(slope, whiten(row.y - centre) - line.centre), d)
        tilted = tilted._replace(log_mass=tilted.log_mass - log_scale)
        return reweigh(
            lambda z: column_log_probs(emission_law(p, predicted.at(z), u), row).sum(), [tilted], predicted.t
        )


class Regressed(Update):
    """Columns with predictors that read many states: the predictors regressed, their rests as further coordinates that
    all columns share, and a grid along each column's own predictors."""

    predictors: Predictors

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype
        line = regress(lambda z: self.predictors.of(emission_law(p, predicted.at(z), u)).astype(dtype), d, dtype)
        size = jnp.sqrt((line.slope**2 + line.rest**2).sum(0))
        size = jnp.where(jnp.isfinite(size) & (size > 0), size, 1.0)
        directions = jnp.moveaxis(jnp.concatenate([line.slope, line.rest]) / size, 0, -1)
        directions = jnp.where(jnp.isfinite(directions), directions, 0.0)
        law = emission_law(p, predicted.mean, u)
        density = jax.tree_util.Partial(_along_predictors, self.predictors, law, row, line.centre, size)
        tilted = _first(propagate(density, directions), d)
        return reweigh(
            lambda z: column_log_probs(emission_law(p, predicted.at(z), u), row).sum(), [tilted], predicted.t
        )


def _along_predictors(predictors: Predictors, law, row, centre, size, s, lift):
    values = centre[:, None] + size[:, None] * s
    return jax.vmap(lambda at: predictors.log_prob(law, at, row), 1, 1)(values)


class Joint(Update):
    """Any law of many states: the normal law nearest in the sense of KL(q|p), by damped natural gradients.

    Expected gradient and Hessian of the log likelihood under the current law come from Stein's identity and 2d + 1
    points.
    """

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype

        def log_likelihood(z, p=p, predicted=predicted):
            return column_log_probs(emission_law(p, predicted.at(z), u), row).sum()

        held = _without_derivative((p, predicted))
        gradients = jax.vmap(jax.grad(lambda z: log_likelihood(z, *held)))

        def turn(loop):
            i, mean, factor, _ = loop
            rate = jnp.where(i == 0, 0.7, jnp.where(i > 5, 0.5, 0.8)).astype(dtype)
            mean, factor, moved = _natural_step(gradients, mean, factor, rate)
            return i + 1, mean, factor, moved

        start = (jnp.zeros((), int), jnp.zeros(d, dtype), jnp.eye(d, dtype=dtype), jnp.ones((), dtype))
        _, mean, factor, _ = jax.lax.while_loop(lambda loop: (loop[0] < MAX_TURNS) & (loop[3] > TOLERANCE), turn, start)
        guess = log_likelihood(mean) - 0.5 * (mean**2).sum() + small.log_det(factor)
        wide = Tilted(mean, 1.5 * factor, guess)
        return reweigh(log_likelihood, [wide, Tilted(mean, factor, guess)], predicted.t)


def _without_derivative(tree):
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree)


def _natural_step(gradients, mean, factor, rate) -> tuple[Array, Array, Array]:
    d, reach = len(mean), math.sqrt(REACH)
    points = jnp.concatenate([mean[None], mean + reach * factor.T, mean - reach * factor.T])
    found = gradients(points)
    found = jnp.where(jnp.isfinite(found), found, 0.0) @ factor
    centre, ahead, behind = found[0], found[1 : d + 1], found[d + 1 :]
    hessian = (ahead - behind) / (2 * reach)
    hessian = 0.5 * (hessian + hessian.T)
    slope = centre + (ahead + behind - 2 * centre).sum(0) / (2 * REACH) - factor.T @ mean
    # In the coordinates of the current law: its precision is to become FᵀF − E[∇²], reached by the power `rate`.
    precision, axes = jnp.linalg.eigh(factor.T @ factor - hessian)
    precision = jnp.clip(precision, 0.05, 1e12) ** rate
    step = axes @ ((axes.T @ slope) / jnp.maximum(precision, 1.0))
    length = jnp.sqrt((step**2).sum())
    step = rate * step * jnp.minimum(1.0, (2 + math.sqrt(d)) / jnp.maximum(length, 1e-6))
    narrower = factor @ (axes / jnp.sqrt(precision))
    variance, directions = jnp.linalg.eigh(narrower @ narrower.T)
    capped = (directions * jnp.clip(variance, 1e-12, WIDEST)) @ directions.T
    moved = jnp.maximum(jnp.abs(step).max(), jnp.abs(jnp.log(precision)).max())
    return mean + factor @ step, jnp.linalg.cholesky(capped), moved
