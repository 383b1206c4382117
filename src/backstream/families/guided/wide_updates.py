"""Updates for columns that read more than three directions of the state, where no grid can follow."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from backstream.models.base import emission_law
from backstream.models.laws import ByName

from . import small_matrices as small
from .closed_forms import LOG_2PI, Tilted, condition
from .importance import affinity, reweigh
from .laws import column_log_probs
from .predictors import Predictors
from .propagation import propagate
from .updates import NormalColumns, Predicted, Update

LogLikelihood = Callable[[Float[Array, " d"]], Float[Array, ""]]
REACH = 3.0
"""The squared distance of the points along each axis, as in the prediction."""
MAX_TURNS = 15
TOLERANCE = 0.02
MORE_ROUNDS = 3
"""A law is linearized anew under what was found at most so often."""
MARGIN = 0.05
"""So much nearer, in nats of the affinity, must a law come that is found by linearizing anew."""
LOG_PRECISIONS, NUM_PRECISIONS = (-12.0, 4.0), 17
"""The grid of the log factors of a Student-t law's precision."""
WIDEST = 1.0
"""The posterior variance of an opaque law is at most so many times that of the prediction. More would add up over rows
that say little: the wider the prediction, the less a row says."""


class Line(NamedTuple):
    """A function of z ~ N(0, I) as a straight line with a rest: center + slope z + rest w, w another N(0, I)."""

    center: Float[Array, "*v"]
    slope: Float[Array, "d *v"]
    rest: Float[Array, "d *v"]


def regress(function: Callable[[Array], Array], at: Tilted) -> Line:
    """Statistical linear regression under the law `at`, by second-order divided differences: 2d + 1 points."""
    d, reach = len(at.mean), math.sqrt(REACH)
    away = reach * at.factor.T
    values = jax.vmap(function)(jnp.concatenate([at.mean[None], at.mean + away, at.mean - away]))
    center, ahead, behind = values[0], values[1 : d + 1], values[d + 1 :]
    second = ahead + behind - 2 * center
    across = (ahead - behind).reshape(d, -1) / (2 * reach)
    slope = solve_triangular(at.factor, across, lower=True, trans=1).reshape(ahead.shape)
    return Line(
        center + second.sum(0) / (2 * REACH) - jnp.tensordot(at.mean, slope, 1),
        slope,
        second * (math.sqrt(REACH - 1) / (2 * REACH)),
    )


def _first(tilted: Tilted, d: int) -> Tilted:
    """The law of the first d coordinates, not further from the prediction than a regression under it can be trusted."""
    mean, factor = tilted.mean[:d], tilted.factor[:d]
    limit = 4 + math.sqrt(d)
    mean = mean * jnp.minimum(1.0, limit / jnp.maximum(jnp.sqrt((mean**2).sum()), 1e-6))
    return Tilted(mean, jnp.linalg.cholesky(factor @ factor.T), tilted.log_mass)


def relinearize(linearize: Callable[[Tilted], Tilted], log_likelihood: LogLikelihood, predicted: Predicted) -> Tilted:
    """The moments of prediction × emission, from laws found by linearizing under the prediction, and then under the
    best law so far, as long as that comes nearer to the product.

    Where the row says much, the prediction is far wider than the posterior, and a line through it a poor guide there.
    Where the row says little, a line through one part of the prediction misses the rest. So nearness decides.
    """
    d, dtype = len(predicted.mean), predicted.mean.dtype
    first = linearize(Tilted(jnp.zeros(d, dtype), jnp.eye(d, dtype=dtype), jnp.zeros((), dtype)))

    def turn(best, _):
        law, nearness, improving = best

        def again():
            found = linearize(jax.tree.map(jax.lax.stop_gradient, law))
            near = affinity(log_likelihood, found, predicted.t)
            better = near > nearness + MARGIN
            return *jax.tree.map(lambda new, old: jnp.where(better, new, old), (found, near), (law, nearness)), better

        return jax.lax.cond(improving, again, lambda: best), None

    start = first, affinity(log_likelihood, first, predicted.t), jnp.asarray(True)
    best = jax.lax.scan(turn, start, None, length=MORE_ROUNDS)[0][0]
    return reweigh(log_likelihood, [first, best], predicted.t)


class RegressedNormal(Update):
    """Normal columns around a function of many states: the mean regressed, its rest as noise that the columns share."""

    columns: NormalColumns = NormalColumns()

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype

        def location(z):
            return self.columns.location(emission_law(p, predicted.at(z), u)).astype(dtype)

        center = location(jnp.zeros(d, dtype))
        whiten, log_scale = self.columns.whitener(emission_law(p, predicted.mean, u), row)

        residual = whiten(row.y - center)

        def moved(z):
            return whiten(location(z) - center)

        def linearize(at):
            line = regress(moved, at)
            tilted = _first(condition(jnp.concatenate([line.slope, line.rest]).T, residual - line.center), d)
            return tilted._replace(log_mass=tilted.log_mass - log_scale)

        def log_likelihood(z):
            return -0.5 * ((residual - moved(z)) ** 2).sum() - 0.5 * len(residual) * LOG_2PI - log_scale

        return relinearize(linearize, log_likelihood, predicted)

    def assumed(self, p, row, u, predicted, z):
        location = self.columns.location(emission_law(p, predicted.at(z), u)).astype(z.dtype)
        return self.columns.log_density(emission_law(p, predicted.mean, u), row, location)


class Regressed(Update):
    """Columns with predictors that read many states: the predictors regressed, their rests as further coordinates that
    all columns share, and a grid along each column's own predictors."""

    predictors: Predictors

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype
        emission = ByName.of(emission_law(p, predicted.mean, u))

        def linearize(at):
            line = regress(lambda z: self.predictors.of(emission_law(p, predicted.at(z), u)).astype(dtype), at)
            size = jnp.sqrt((line.slope**2 + line.rest**2).sum(0))
            size = jnp.where(jnp.isfinite(size) & (size > 0), size, 1.0)
            directions = jnp.moveaxis(jnp.concatenate([line.slope, line.rest]) / size, 0, -1)
            directions = jnp.where(jnp.isfinite(directions), directions, 0.0)
            density = jax.tree_util.Partial(_along_predictors, self.predictors, emission, row, line.center, size)
            return _first(propagate(density, directions), d)

        return relinearize(
            linearize, lambda z: column_log_probs(emission_law(p, predicted.at(z), u), row).sum(), predicted
        )

    def assumed(self, p, row, u, predicted, z):
        at = self.predictors.of(emission_law(p, predicted.at(z), u)).astype(z.dtype)
        return self.predictors.log_prob(emission_law(p, predicted.mean, u), at, row).sum()


def _along_predictors(predictors: Predictors, emission: ByName, row, center, size, s, lift):
    values, law = center[:, None] + size[:, None] * s, emission.law
    return jax.vmap(lambda at: predictors.log_prob(law, at, row), 1, 1)(values)


class RegressedStudent(Update):
    """A multivariate Student-t law around a function of many states: a mixture over one factor of its precision, and
    for each value of that factor a normal law, with the mean regressed."""

    def __call__(self, p, row, u, predicted):
        d, dtype = len(predicted.mean), predicted.mean.dtype

        def location(z):
            return jnp.broadcast_to(emission_law(p, predicted.at(z), u).loc, row.y.shape).astype(dtype)

        law = emission_law(p, predicted.mean, u)
        df, factor = jnp.asarray(law.df, dtype), jnp.asarray(law.scale_tril, dtype)
        center = location(jnp.zeros(d, dtype))
        residual = solve_triangular(factor, row.y - center, lower=True)
        log_scale = small.log_det(factor)

        def moved(z):
            return solve_triangular(factor, location(z) - center, lower=True)

        def linearize(at):
            line = regress(moved, at)
            slope = jnp.concatenate([line.slope, line.rest]).T
            tilted = _mixed_precision(df, slope, residual - line.center, d)
            return tilted._replace(log_mass=tilted.log_mass - log_scale)

        def log_likelihood(z):
            power = 0.5 * (df + len(residual))
            constant = gammaln(power) - gammaln(0.5 * df) - 0.5 * len(residual) * jnp.log(df * math.pi)
            return constant - power * jnp.log1p(((residual - moved(z)) ** 2).sum() / df) - log_scale

        return relinearize(linearize, log_likelihood, predicted)

    def assumed(self, p, row, u, predicted, z):
        law, loc = emission_law(p, predicted.mean, u), emission_law(p, predicted.at(z), u).loc
        moved = dist.MultivariateStudentT(law.df, jnp.broadcast_to(loc, row.y.shape), law.scale_tril)
        return moved.log_prob(row.y)


def _mixed_precision(df: Array, slope: Float[Array, "c d2"], residual: Float[Array, " c"], d: int) -> Tilted:
    """residual = slope z + N(0, I / w), w ~ Gamma(df/2, df/2), on a grid of log w; the moments of the first d of z."""
    log_w = jnp.linspace(*LOG_PRECISIONS, NUM_PRECISIONS, dtype=slope.dtype)
    root = jnp.exp(0.5 * log_w)
    each = jax.vmap(lambda r: _first(condition(r * slope, r * residual), d))(root)
    # The density of log w, and the columns' own scale 1/√w.
    half, spacing = 0.5 * df, log_w[1] - log_w[0]
    log_density = half * (jnp.log(half) + log_w - jnp.exp(log_w)) - gammaln(half)
    log_weight = each.log_mass + 0.5 * len(residual) * log_w + log_density + jnp.log(spacing)
    weight = jax.nn.softmax(log_weight)
    mean = weight @ each.mean
    apart = (each.mean - mean) * jnp.sqrt(weight)[:, None]
    cov = jnp.einsum("k,kij,klj->il", weight, each.factor, each.factor) + apart.T @ apart
    return Tilted(mean, jnp.linalg.cholesky(cov), jax.nn.logsumexp(log_weight))


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
    center, ahead, behind = found[0], found[1 : d + 1], found[d + 1 :]
    hessian = (ahead - behind) / (2 * reach)
    hessian = 0.5 * (hessian + hessian.T)
    slope = center + (ahead + behind - 2 * center).sum(0) / (2 * REACH) - factor.T @ mean
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
