"""How good an estimate of the hidden states is, compared with the raw observation and with the best possible one."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from backstream.models.base import StateSpaceModel, prior_law, transition_law
from backstream.models.density import log_emission, log_transitions


def rmse(estimate: Any, states: Any) -> float:
    """The root mean square error over all times and coordinates. Where the truth is missing (NaN) it is left out.

    >>> rmse([[3.0], [4.0]], [[0.0], [float("nan")]])
    3.0
    >>> round(rmse([[3.0], [4.0]], [[0.0], [0.0]]), 4)
    3.5355
    """
    return float(np.sqrt(np.nanmean(_errors(estimate, states) ** 2)))


def delta(estimate: Any, states: Any) -> float:
    """The paper's Δ_T (for smoothed means) and κ²_T (for filtered ones): the mean over t of the root mean square over
    coordinates; with one state, the mean absolute error. Times at which the truth is missing (NaN) are left out.

    >>> delta([[3.0], [4.0]], [[0.0], [0.0]])
    3.5
    """
    return float(np.nanmean(np.sqrt(np.mean(_errors(estimate, states) ** 2, axis=-1))))


def kappa_one(previous_means: Any, states: Any) -> float:
    """The paper's κ¹_T: means of X_{t-1} given y_{0:t}, t = 1, …, T − 1, against the states of times 0, …, T − 2."""
    return delta(previous_means, np.asarray(states)[: len(previous_means)])


def _errors(estimate: Any, states: Any) -> np.ndarray:
    estimate, states = np.asarray(estimate, float), np.asarray(states, float)
    if estimate.shape != states.shape:
        raise ValueError(f"The estimates have shape {estimate.shape}, the states {states.shape}.")
    return estimate - states


def coverage(lower: Any, upper: Any, states: Any) -> float:
    """The share of coordinates that lie inside their intervals; near the intervals' level where they are honest."""
    lower, upper, states = (np.asarray(part, float) for part in (lower, upper, states))
    inside = (lower <= states) & (states <= upper)
    return float(inside[~np.isnan(states)].mean())


def calibration(law: Any, states: Any, levels: Any) -> Float[np.ndarray, " n"]:
    """The coverage of a law's central intervals at each of the levels: the levels again, where the law is honest.

    `law` is anything with an `interval`: `Marginals`, or the draws of a forecast.
    """
    intervals = [law.interval(float(level)) for level in levels]
    return np.array([coverage(lower, upper, states) for lower, upper in intervals])


class PredictiveScores(NamedTuple):
    """How well rows were predicted before they were read. No true state is needed."""

    rows: int
    """That have a score."""
    log_score: float
    """The mean log density of a row given those before it, in nats."""
    log_score_error: float
    """Its standard error."""
    coverage: list[float | None]
    """For each column the share of values inside the central 90 % bands; None for labels, which have no order."""
    pit_mean: list[float | None]
    """For each column: 0.5 where predictions are honest."""
    pit_variance: list[float | None]
    """For each column: 1/12 where predictions are honest; more where they are too narrow."""
    residual_correlation: list[float | None]
    """For each column: of PIT values, as normal numbers, with those of the row before; 0 for exact predictions."""
    crps: list[float | None]
    """For each column the mean continuous ranked probability score, in its unit; None where there is none."""


def predictive_scores(log_score: Any, pit: Any, crps: Any = None) -> PredictiveScores:
    """A summary of the scores of rows [T], their PIT values [T, dy] and CRPS [T, dy], of which some may be NaN."""
    log_score, pit = np.asarray(log_score, float), np.asarray(pit, float)
    known = log_score[np.isfinite(log_score)]
    error = known.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else np.nan

    def each(what: Any, least: int = 1, values: np.ndarray = pit) -> list[float | None]:
        columns = [column[np.isfinite(column)] for column in values.T]
        return [float(what(column)) if len(column) >= least else None for column in columns]

    def correlation(column):
        z = np.asarray(ndtri(np.clip(column, 1e-6, 1 - 1e-6)))
        return np.mean(z[1:] * z[:-1])

    return PredictiveScores(
        len(known),
        float(known.mean()) if len(known) else np.nan,
        float(error),
        each(lambda column: np.mean(np.abs(column - 0.5) < 0.45)),
        each(np.mean),
        each(lambda column: np.mean((column - 0.5) ** 2)),
        each(correlation, 2),
        each(np.mean, 1, np.full_like(pit, np.nan) if crps is None else np.asarray(crps, float)),
    )


class ParticleLimit(NamedTuple):
    """The means of the true filtering and smoothing laws, up to Monte Carlo error, and the log-likelihood per step."""

    filtered: Float[Array, "t d"]
    one_step: Float[Array, " t-1 d"]
    """E[X_{t-1} | y_{0:t}], t = 1, …, T − 1."""
    smoothed: Float[Array, "t d"]
    log_likelihood: Float[Array, ""]


def particle_limit(
    p: StateSpaceModel,
    ys: Any,
    inputs: Any = None,
    num_particles: int = 10_000,
    num_trajectories: int = 200,
    *,
    key: Array,
) -> ParticleLimit:
    """A bootstrap particle filter with systematic resampling, and backward simulation (Godsill, Doucet and West 2004).

    With infinitely many particles no method can beat it on average. With few, in many dimensions, some do. The smoothed
    mean is over `num_trajectories` draws: its error is a fraction 1/√num_trajectories of the smoothing standard
    deviation.
    """
    for name, value in (("num_particles", num_particles), ("num_trajectories", num_trajectories)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    return _particle_limit(p, jnp.asarray(ys), inputs, num_particles, num_trajectories, key)


@eqx.filter_jit
def _particle_limit(p, ys, inputs, num_particles, num_trajectories, key):
    def resample(log_w, key):  # systematic
        cumulative = jnp.cumsum(jax.nn.softmax(log_w))
        points = (jnp.arange(num_particles) + jax.random.uniform(key)) / num_particles
        return jnp.minimum(jnp.searchsorted(cumulative, points * cumulative[-1]), num_particles - 1)

    def weigh(x, y, u):
        return jax.vmap(lambda x: log_emission(p, x, y, u))(x)

    def filter_step(carry, scanned):
        x, log_w = carry
        t, y, u = scanned
        key_resample, key_move = jax.random.split(jax.random.fold_in(key, t))
        ancestors = resample(log_w, key_resample)
        keys = jax.random.split(key_move, num_particles)
        moved = jax.vmap(lambda x, key: transition_law(p, x, u).sample(key))(x[ancestors], keys)
        log_w = weigh(moved, y, u)
        w = jax.nn.softmax(log_w)
        increment = jax.nn.logsumexp(log_w) - jnp.log(num_particles)
        return (moved, log_w), (moved, log_w, w @ moved, w @ x[ancestors], increment)

    u0, later = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in (0, slice(1, None)))
    x0 = prior_law(p, u0).sample(jax.random.fold_in(key, 0), (num_particles,))
    log_w0 = weigh(x0, ys[0], u0)
    scanned = (jnp.arange(1, len(ys)), ys[1:], later)
    (x, log_w), (xs, log_ws, means, one_step, increments) = jax.lax.scan(filter_step, (x0, log_w0), scanned)
    filtered = jnp.concatenate([(jax.nn.softmax(log_w0) @ x0)[None], means])

    def draw(log_w, key):  # one index for each row, by inversion
        cumulative = jnp.cumsum(jax.nn.softmax(log_w, axis=-1), axis=-1)
        points = jax.random.uniform(key, (num_trajectories,), log_w.dtype) * cumulative[:, -1]
        return jnp.minimum(jax.vmap(jnp.searchsorted)(cumulative, points), num_particles - 1)

    key_back = jax.random.fold_in(key, len(ys))
    last = x[draw(jnp.broadcast_to(log_w, (num_trajectories, num_particles)), key_back)]

    def backward_step(x_next, scanned):
        t, x, log_w, u = scanned
        index = draw(log_w + log_transitions(p, x, x_next, u), jax.random.fold_in(key_back, t))
        return x[index], x[index].mean(0)

    history = (jnp.concatenate([x0[None], xs[:-1]]), jnp.concatenate([log_w0[None], log_ws[:-1]]))
    _, smoothed = jax.lax.scan(backward_step, last, (jnp.arange(len(ys) - 1), *history, later), reverse=True)
    total = jax.nn.logsumexp(log_w0) - jnp.log(num_particles) + increments.sum()
    return ParticleLimit(filtered, one_step, jnp.concatenate([smoothed, last.mean(0)[None]]), total / len(ys))
