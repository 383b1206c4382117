"""How the laws of a model's states are read: their parts, found once, at the states around the prior."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from backstream.models.laws import Law, columns_of, factorizes, is_angle, is_normal

from .constants import Constant
from .laws import state_moments
from .noise import MOST_PARTS, Noise, known_parts, one_at_a_time

NODES = 2001
FARTHEST = 60.0
"""The nodes reach so many standard deviations from the mean, more densely near it."""
TURNS = 1000
"""Of expectation maximization."""
SAME_SHAPE = 1e-2
"""Standardized log densities that differ by no more, within four standard deviations, are the same."""
COUNTS = 4, 3, 2


def find_noise(
    law_at: Callable[[jax.Array], Law], states: jax.Array, known: bool, dtype, most: int = MOST_PARTS
) -> Noise:
    """How the law at a state is read. `states` are a few near the prior mean, the first of them the prior mean."""
    law, one = law_at(states[0]), Noise(known)
    if is_normal(law):
        return one
    parts = known_parts(law, most)
    if parts is not None:
        finite = all(bool(jnp.isfinite(leaf).all()) for leaf in parts[1:])
        return Noise(known, len(parts.log_weight), most=most) if finite else one
    return _fitted(law_at, states, known, dtype, most)


def _fitted(law_at, states, known: bool, dtype, most: int) -> Noise:
    one, d = Noise(known), states.shape[1]
    if is_angle(law_at(states[0])):  # its density repeats along the line
        return one
    count = next((count for count in COUNTS if count**d <= most), COUNTS[-1])
    number = count**d if count**d <= most else one_at_a_time(d)
    if number > MOST_PARTS or not (factorizes(law_at(states[0])) or d == 1):
        return one
    z = FARTHEST * np.sinh(np.linspace(-6, 6, NODES)) / np.sinh(6)
    try:
        shapes = np.concatenate([_standardized(law_at(x), z, known, dtype) for x in states], 1)  # [n, states · d]
    except (NotImplementedError, TypeError, ValueError):
        return one
    near = np.abs(z) < 4
    with np.errstate(all="ignore"):
        same = np.abs(shapes[near] - shapes[near][:, :1]).max() <= SAME_SHAPE
    log_density = shapes[:, 0]
    if not same or not np.isfinite(log_density[near]).all():
        return one
    return Noise(known, number, Constant(fit_parts(z, log_density, count)), most)


def _standardized(law: Law, z: np.ndarray, known: bool, dtype) -> np.ndarray:
    """Log densities, [n, d], of each coordinate in standard deviations from its mean."""
    mean, cov = state_moments(law, known, dtype)
    scale = jnp.sqrt(cov if cov.ndim == 1 else jnp.diagonal(cov))
    points = mean + jnp.asarray(z, dtype)[:, None] * scale
    base = columns_of(law) if factorizes(law) else None
    values = jax.vmap(base.log_prob)(points) if base is not None else jax.vmap(law.log_prob)(points)[:, None]
    return np.asarray(values + jnp.log(scale), float)


def fit_parts(z: np.ndarray, log_density: np.ndarray, count: int) -> np.ndarray:
    """[3, count]: weights, means and variances of the mixture of least divergence from the law with this density."""
    mass = np.exp(np.where(np.isfinite(log_density), log_density, -np.inf)) * np.gradient(z)
    mass = mass / mass.sum()
    mean, variance = mass @ z, mass @ z**2 - (mass @ z) ** 2
    weight, center = np.full(count, 1 / count), np.full(count, mean)
    spread = variance * 4.0 ** (np.arange(count) - (count - 1) / 2)
    # A start that is not symmetric, for laws that are not.
    center = center + 0.1 * np.sqrt(variance) * np.linspace(-1, 1, count)
    for _ in range(TURNS):
        log_terms = np.log(weight) - 0.5 * (z[:, None] - center) ** 2 / spread - 0.5 * np.log(spread)
        terms = np.exp(log_terms - log_terms.max(1, keepdims=True))
        share = mass[:, None] * terms / terms.sum(1, keepdims=True)
        weight = share.sum(0)
        center = share.T @ z / weight
        spread = (share * (z[:, None] - center) ** 2).sum(0) / weight
    return np.stack([weight, center, spread])
