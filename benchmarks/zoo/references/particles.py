"""The posterior of a model with a few states: a particle filter and backward simulation, with enough particles.

The filter proposes with the law that is optimal one step ahead for a quadratic approximation of log p(y | x), taken
once a row at the mode of prediction × emission and shared by all particles. Weights are exact: the approximation only
decides how many particles are needed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from benchmarks.zoo import laws
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.scores import normalized_rmse

NEWTON_STEPS = 8
STEPS = 4
"""Of each kind that the smoother's trajectories try in a row."""


@dataclass(frozen=True)
class Particles:
    """Averages independent runs, twice as many until nothing moves when the particles are doubled.

    The half effort is as many runs with half the particles. Nothing moves when both errors change by less than 0.3 %
    and the log score by less than 0.001 nats a row. Transitions must be normal, with a regular covariance that does
    not depend on the state.
    """

    number: int = 16384
    most_runs: int = 8
    name: str = "particles"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        rows = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)
        full: list[Posterior] = []
        half: list[Posterior] = []
        while not full or (len(full) < self.most_runs and not converged(average(full), average(half), data.states)):
            for run in range(len(full), max(2 * len(full), 1)):
                for runs, number in ((full, self.number), (half, self.number // 2)):
                    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), run)
                    runs.append(Posterior(*map(np.asarray, particle_smoother(model, *rows, number, key))))
        effort = f"{self.number} particles" if len(full) == 1 else f"{len(full)} × {self.number} particles"
        return average(full), average(half), effort


def average(runs: list[Posterior]) -> Posterior:
    """The mean of the moments, and the logarithm of the mean predictive density of each row."""
    *moments, log_score = (np.stack(part) for part in zip(*runs, strict=True))
    top = log_score.max(0)
    return Posterior(*(part.mean(0) for part in moments), top + np.log(np.exp(log_score - top).mean(0)))


def converged(found: Posterior, half: Posterior, states: np.ndarray) -> bool:
    """Whether both errors moved by less than 0.3 % and the log score by less than 0.001 nats a row."""
    pairs = (found.filtered_mean, half.filtered_mean), (found.smoothed_mean, half.smoothed_mean)
    moved = [abs(normalized_rmse(one, states) / normalized_rmse(other, states) - 1) for one, other in pairs]
    return max(moved) < 0.003 and abs(found.log_score.mean() - half.log_score.mean()) < 0.001


class Cloud(NamedTuple):
    """Weighted particles of one row."""

    x: jax.Array  # (n, d)
    log_weight: jax.Array  # (n,), normalized
    ancestor: jax.Array  # (n,): the index of the particle of the row before that each was moved from


@eqx.filter_jit
def particle_smoother(model, ys: jax.Array, us, number: int, key: jax.Array) -> Posterior:
    """Filter, then backward simulation."""
    key_filter, key_smoother = jax.random.split(key)
    clouds, filtered, log_score = _filter(model, ys, us, number, key_filter)
    smoothed = _simulate_backward(model, clouds, us, key_smoother)
    return Posterior(*filtered, *smoothed, log_score)


@eqx.filter_jit
def particle_filter(model, ys: jax.Array, us, number: int, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Means (T, d), covariances and log scores of the filter alone."""
    _, moments, log_score = _filter(model, ys, us, number, key)
    return *moments, log_score


def _filter(
    model, ys: jax.Array, us, number: int, key: jax.Array
) -> tuple[Cloud, tuple[jax.Array, jax.Array], jax.Array]:
    """Of all rows: the particles, their moments and the log scores."""
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))

    def step(cloud, row):
        t, y, u, key = row
        first = t == 0
        moved = jax.vmap(lambda x: laws.mean(model.transition(x, u)))(cloud.x)
        centers = jnp.where(first, laws.mean(prior), moved)
        L = jnp.where(first, laws.normal_factor(prior), laws.normal_factor(model.transition(cloud.x[0], u)))
        cloud, score = _update(lambda x: laws.log_emission(model, x, y, u), cloud.log_weight, centers, L, key)
        return cloud, (cloud, _moments(cloud.x, jnp.exp(cloud.log_weight)), score)

    center = jnp.broadcast_to(laws.mean(prior), (number, prior.event_shape[0]))
    start = Cloud(center, jnp.full(number, -jnp.log(number)), jnp.arange(number, dtype=jnp.int32))
    rows = jnp.arange(len(ys)), ys, us, jax.random.split(key, len(ys))
    return jax.lax.scan(step, start, rows)[1]


def _update(log_g, log_weight: jax.Array, centers: jax.Array, L: jax.Array, key: jax.Array) -> tuple[Cloud, jax.Array]:
    """Particles of Σ_i w_i N(x; center_i, LL') g(x), and the logarithm of its integral."""
    number, d = centers.shape
    key_index, key_noise = jax.random.split(key)
    mean, cov = _moments(centers, jnp.exp(log_weight))
    mode, gradient, J = _quadratic(log_g, mean, jnp.linalg.cholesky(cov + L @ L.T))

    def approximate(x):
        away = x - mode
        return away @ gradient - 0.5 * ((away @ J) * away).sum(-1)

    # with x = center + Lv the quadratic is c + b'v − v'Av/2
    factor = jnp.linalg.cholesky(jnp.eye(d) + L.T @ J @ L)
    b = (gradient - (centers - mode) @ J) @ L
    reach = solve_triangular(factor, b.T, lower=True).T
    log_first = log_weight + approximate(centers) + 0.5 * (reach**2).sum(1) - jnp.log(jnp.diagonal(factor)).sum()
    log_total = logsumexp(log_first)
    chosen = _systematic(jnp.exp(log_first - log_total), key_index)
    noise = jax.random.normal(key_noise, (number, d), jnp.float32)  # in float64 it takes four times as long
    v = solve_triangular(factor.T, (reach[chosen] + noise).T, lower=False).T
    x = centers[chosen] + v @ L.T
    log_second = jax.vmap(log_g)(x) - approximate(x)
    log_second = jnp.where(jnp.isnan(log_second), -jnp.inf, log_second)
    log_sum = logsumexp(log_second)
    return Cloud(x, log_second - log_sum, chosen), log_total + log_sum - jnp.log(number)


def _quadratic(log_g, mean: jax.Array, C: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mode of N(mean, CC') g, and there the gradient of log g and its negative Hessian, made positive."""
    d = len(mean)

    def local(z):
        def of(z):
            return log_g(mean + C @ z)

        gradient, curvature = jax.grad(of)(z), -jax.hessian(of)(z)
        usable = jnp.isfinite(gradient).all() & jnp.isfinite(curvature).all()
        gradient, curvature = jnp.where(usable, gradient, 0.0), jnp.where(usable, curvature, 0.0)
        values, vectors = jnp.linalg.eigh(curvature)
        return gradient, (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    def newton(_, z):
        gradient, curvature = local(z)
        step = jnp.linalg.solve(curvature + jnp.eye(d), gradient - z)
        return z + step * jnp.minimum(1.0, 2.0 / jnp.linalg.norm(step))

    z = jax.lax.fori_loop(0, NEWTON_STEPS, newton, jnp.zeros(d))
    gradient, curvature = local(z)
    inverse = jnp.linalg.inv(C)
    return mean + C @ z, inverse.T @ gradient, inverse.T @ curvature @ inverse


def _systematic(weight: jax.Array, key: jax.Array) -> jax.Array:
    number = len(weight)
    points = (jnp.arange(number) + jax.random.uniform(key)) / number
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weight), points), number - 1).astype(jnp.int32)


def _moments(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = weight @ x
    return mean, (x - mean).T @ (weight[:, None] * (x - mean))


def _simulate_backward(model, clouds: Cloud, us, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means and covariances of the smoothing laws, from as many trajectories as there are particles.

    The ancestor of a particle is a draw of the backward kernel, since proposals are optimal for the quadratic. To keep
    trajectories from meeting, each moves on from its ancestor by Metropolis–Hastings steps among the particles, which
    leave the backward kernel invariant. The particles are sorted along a curve that keeps neighbors together, so that
    steps to near places on it are often accepted where the kernel is narrow.
    """
    last = jax.tree.map(lambda leaf: leaf[-1], clouds)
    number = len(last.log_weight)
    key_last, key = jax.random.split(key)

    def step(chosen, row):
        t, u_next, key = row
        cloud, later = (jax.tree.map(lambda leaf, at=at: leaf[at], clouds) for at in (t, t + 1))
        L = laws.normal_factor(model.transition(cloud.x[0], u_next))
        moved = jax.vmap(lambda x: laws.mean(model.transition(x, u_next)))(cloud.x)
        order = jnp.argsort(_place_on_curve(moved))
        here = solve_triangular(L, moved[order].T, lower=True)
        there = solve_triangular(L, later.x[chosen].T, lower=True)
        log_weight = cloud.log_weight[order]

        def log_density(at):
            return log_weight[at] - 0.5 * ((there - here[:, at]) ** 2).sum(0)

        at = jnp.zeros(number, jnp.int32).at[order].set(jnp.arange(number, dtype=jnp.int32))[later.ancestor[chosen]]
        density = log_density(at)
        for near, one_key in zip([True, False] * STEPS, jax.random.split(key, 2 * STEPS), strict=True):
            key_away, key_choice = jax.random.split(one_key)
            other = (at + _steps_along(number, near, key_away)) % number
            offered = log_density(other)
            taken = jnp.log(jax.random.uniform(key_choice, (number,), jnp.float32)) < offered - density
            at, density = jnp.where(taken, other, at), jnp.where(taken, offered, density)
        chosen = order[at].astype(jnp.int32)
        return chosen, _moments(cloud.x[chosen], jnp.full(number, 1 / number))

    steps = len(clouds.x) - 1
    ends = _systematic(jnp.exp(last.log_weight), key_last)
    rows = jnp.arange(steps), jax.tree.map(lambda leaf: leaf[1:], us), jax.random.split(key, steps)
    _, found = jax.lax.scan(step, ends, rows, reverse=True)
    end = _moments(last.x, jnp.exp(last.log_weight))
    return tuple(jnp.concatenate([part, at_end[None]]) for part, at_end in zip(found, end, strict=True))


def _place_on_curve(x: jax.Array) -> jax.Array:
    """The place of each point on the Morton curve through the box of all points: near places are near points."""
    d = x.shape[1]
    bits = 30 // d
    low, high = x.min(0), x.max(0)
    cell = jnp.minimum((x - low) / (high - low) * 2**bits, 2**bits - 1).astype(jnp.int32)
    place = jnp.zeros(len(x), jnp.int32)
    for bit in range(bits):
        for axis in range(d):
            place = place | (((cell[:, axis] >> bit) & 1) << (bit * d + axis))
    return place


def _steps_along(number: int, near: bool, key: jax.Array) -> jax.Array:
    """Steps to other places, as often up as down: of all sizes up to a sixteenth of the places, or anywhere."""
    if not near:
        return jax.random.randint(key, (number,), 0, number, jnp.int32)
    key_size, key_sign = jax.random.split(key)
    size = jnp.exp2(jax.random.uniform(key_size, (number,), jnp.float32) * np.log2(number / 16)).astype(jnp.int32)
    return jnp.where(jax.random.bernoulli(key_sign, shape=(number,)), size, -size)
