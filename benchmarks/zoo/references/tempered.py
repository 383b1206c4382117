"""A particle filter for rows that say much about many states: each row is taken in by steps.

The particles start at the prediction. The emission is then raised to powers that grow from 0 to 1, each chosen so that
half of the particles count; after each they are resampled and moved by Metropolis–Hastings steps that leave transition
× emission to that power invariant. No proposal has to be right for this to converge: more particles are nearer.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from benchmarks.zoo import laws

MOVES = 4
"""Metropolis–Hastings steps after each power."""
MOST_POWERS = 60
BISECTIONS = 25
SHARE = 0.5
"""Of the particles that must count when the power grows."""
ACCEPTED = 0.3
"""The share of steps to be accepted."""


class Filtered(NamedTuple):
    mean: jax.Array  # (T, d)
    std: jax.Array  # (T, d)
    log_score: jax.Array  # (T,)


class _Cloud(NamedTuple):
    """Particles center + L v of one row, with log p(y | x)."""

    center: jax.Array  # (n, d)
    v: jax.Array  # (n, d)
    log_g: jax.Array  # (n,)


@eqx.filter_jit
def tempered_filter(model, ys: jax.Array, number: int, key: jax.Array) -> Filtered:
    """Of a model without inputs, with normal transitions whose covariance does not depend on the state."""
    prior = model.prior()
    d = prior.event_shape[0]

    def row(x, scanned):
        t, y, key = scanned
        moved = jax.vmap(lambda x: laws.mean(model.transition(x)))(x)
        center = jnp.where(t == 0, laws.mean(prior), moved)
        L = jnp.where(t == 0, laws.normal_factor(prior), laws.normal_factor(model.transition(x[0])))

        def log_g(center, v):
            terms = jax.vmap(lambda x: laws.log_emission(model, x, y, None))(center + v @ L.T)
            return jnp.where(jnp.isnan(terms), -1e30, terms)

        cloud, log_score = _take_in(log_g, center, key)
        x = cloud.center + cloud.v @ L.T
        return x, Filtered(x.mean(0), x.std(0), log_score)

    rows = jnp.arange(len(ys)), ys, jax.random.split(key, len(ys))
    return jax.lax.scan(row, jnp.zeros((number, d), ys.dtype), rows)[1]


def _take_in(log_g, center: jax.Array, key: jax.Array) -> tuple[_Cloud, jax.Array]:
    """Particles of transition × emission, and the log of its integral."""
    key_start, key = jax.random.split(key)
    v = jax.random.normal(key_start, center.shape, center.dtype)
    zero = jnp.zeros((), center.dtype)

    def grow(loop):
        count, power, log_mass, cloud, step, key = loop
        key, key_index, key_moves = jax.random.split(key, 3)
        more = _growth(cloud.log_g, 1 - power)
        log_weight = more * cloud.log_g
        log_mass = log_mass + logsumexp(log_weight) - jnp.log(len(center))
        chosen = _systematic(jax.nn.softmax(log_weight), key_index)
        cloud = jax.tree.map(lambda leaf: leaf[chosen], cloud)
        power = jnp.where(more >= 1 - power, 1.0, power + more)
        cloud, step = _moved(log_g, power, cloud, step, key_moves)
        return count + 1, power, log_mass, cloud, step, key

    start = (0, zero, zero, _Cloud(center, v, log_g(center, v)), zero + 0.5, key)
    found = jax.lax.while_loop(lambda loop: (loop[1] < 1) & (loop[0] < MOST_POWERS), grow, start)
    return found[3], found[2]


def _growth(log_g: jax.Array, most: jax.Array) -> jax.Array:
    """How much the power can grow so that the share of the particles still counts."""

    def enough(more):
        return 2 * logsumexp(more * log_g) - logsumexp(2 * more * log_g) >= jnp.log(SHARE * len(log_g))

    def halve(_, ends):
        middle = 0.5 * (ends[0] + ends[1])
        good = enough(middle)
        return jnp.where(good, middle, ends[0]), jnp.where(good, ends[1], middle)

    low, _ = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.zeros_like(most), most))
    return jnp.where(enough(most), most, jnp.maximum(low, 1e-6))


def _moved(log_g, power: jax.Array, cloud: _Cloud, step: jax.Array, key: jax.Array) -> tuple[_Cloud, jax.Array]:
    """Steps v' = √(1 − s²) v + s N(0, I), which leave the transition invariant, of many sizes s around `step`."""

    def move(_, loop):
        cloud, step, key = loop
        key, key_size, key_noise, key_choice = jax.random.split(key, 4)
        number = len(cloud.log_g)
        size = jnp.clip(step * jnp.exp(0.7 * jax.random.normal(key_size, (number, 1), step.dtype)), 1e-3, 0.98)
        v = jnp.sqrt(1 - size**2) * cloud.v + size * jax.random.normal(key_noise, cloud.v.shape, cloud.v.dtype)
        offered = log_g(cloud.center, v)
        uniform = jax.random.uniform(key_choice, (number,), step.dtype)
        taken = jnp.log(uniform) < power * (offered - cloud.log_g)
        step = jnp.clip(step * jnp.exp(taken.mean() - ACCEPTED), 1e-3, 0.95)
        kept = jnp.where(taken[:, None], v, cloud.v), jnp.where(taken, offered, cloud.log_g)
        return _Cloud(cloud.center, *kept), step, key

    cloud, step, _ = jax.lax.fori_loop(0, MOVES, move, (cloud, step, key))
    return cloud, step


def _systematic(weight: jax.Array, key: jax.Array) -> jax.Array:
    number = len(weight)
    points = (jnp.arange(number) + jax.random.uniform(key)) / number
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weight), points), number - 1)
