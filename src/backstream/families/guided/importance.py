"""Moments of N(0, I) × a likelihood from weighted points of a normal law that is near it."""

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from . import small_matrices as small
from .closed_forms import Tilted

NUM_POINTS = 256


@cache
def _points(d: int) -> np.ndarray:
    """Scrambled Sobol points with their mirror images, of mean 0 and covariance I."""
    from scipy.stats import norm, qmc  # takes half a second, and few models need it

    uniform = qmc.Sobol(d, rng=np.random.default_rng(0)).random(NUM_POINTS // 2)
    half = norm.ppf(np.clip(uniform, 1e-6, 1 - 1e-6))
    points = np.concatenate([half, -half])
    return points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T


def _turned_points(d: int, t: Array, dtype) -> Float[Array, "n d"]:
    """The points, turned another way for each row t: what a fixed set gets wrong would add up over the rows."""
    key_order, key_signs = jax.random.split(jax.random.fold_in(jax.random.key(0), t))
    points = jnp.asarray(_points(d), dtype)[:, jax.random.permutation(key_order, d)]
    return points * jax.random.rademacher(key_signs, (d,), dtype)


def reweigh(
    log_likelihood: Callable[[Float[Array, " d"]], Float[Array, ""]], proposals: list[Tilted], t: Array
) -> Tilted:
    """The moments of N(0, I) × likelihood, from weighted points of the proposals, the last of which is the best guess.

    The guess is corrected as far as the number of points that count allows, and along each axis as far as this row
    informs it. Without enough points it stays as it is: a wider proposal taken instead would add up over the rows.
    """
    d, dtype = len(proposals[0].mean), proposals[0].mean.dtype
    if d > NUM_POINTS // 4:
        return proposals[-1]
    xi = _turned_points(d, t, dtype)
    z = jnp.concatenate([law.mean + xi @ law.factor.T for law in proposals])
    log_q = jnp.stack([_log_normal(z, law) for law in proposals])
    log_q = jnp.where(jnp.isfinite(log_q), log_q, -1e30)
    log_weight = (
        jax.vmap(log_likelihood)(z) - 0.5 * (z**2).sum(1) - jax.nn.logsumexp(log_q, 0) + math.log(len(proposals))
    )
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    top = log_weight.max()
    weight = jnp.exp(log_weight - top)
    log_mass = top + jnp.log(weight.mean())
    weight = weight / weight.sum()
    count = 1 / (weight**2).sum()
    good = jnp.isfinite(top) & jnp.isfinite(count)
    weight, count = jnp.where(good, weight, 0.0), jnp.where(good, count, 0.0)
    mean, factor = _shrunk(proposals[-1].mean, proposals[-1].factor, z, weight, count)
    return Tilted(mean, factor, jnp.where(count > 2 * d, log_mass, proposals[-1].log_mass))


def affinity(log_likelihood: Callable[[Float[Array, " d"]], Float[Array, ""]], law: Tilted, t: Array) -> Array:
    """log ∫ √(N(0, I) × likelihood × law), up to a constant: how near the law is to the product, in both directions."""
    z = law.mean + _turned_points(len(law.mean), t, law.mean.dtype) @ law.factor.T
    log_ratio = jax.vmap(log_likelihood)(z) - 0.5 * (z**2).sum(1) - _log_normal(z, law)
    log_ratio = jnp.where(jnp.isfinite(log_ratio), log_ratio, -jnp.inf)
    return jax.lax.stop_gradient(jax.nn.logsumexp(0.5 * log_ratio))


def _log_normal(z: Float[Array, "n d"], law: Tilted) -> Float[Array, " n"]:
    """Without the constant."""
    root = solve_triangular(law.factor, (z - law.mean).T, lower=True)
    return -0.5 * (root**2).sum(0) - small.log_det(law.factor)


def _shrunk(mean, factor, z, weight, count) -> tuple[Array, Array]:
    """Weighted moments, taken from the proposal N(mean, factor factorᵀ) only as far as they can be trusted.

    In the principal axes of the proposal: by the share of points that count beyond 2d, and along an axis not at all
    where row and weights leave the prediction as it was.
    """
    d, dtype = len(mean), mean.dtype
    variance, axes = jnp.linalg.eigh(factor @ factor.T)
    variance = jnp.maximum(variance, 1e-12)
    scale = jnp.sqrt(variance)
    x = ((jnp.where(weight[:, None] > 0, z, mean) - mean) @ axes) / scale
    shift = weight @ x
    cov = (x - shift).T @ (weight[:, None] * (x - shift))
    trust = jnp.maximum(count - 2 * d, 0.0)
    trust = trust / (trust + 2 * d)
    error = 3 / jnp.sqrt(jnp.maximum(count, 1.0))
    informed = jnp.maximum(
        jnp.abs(1 - variance),
        jnp.maximum(jnp.abs(shift) - error, jnp.abs(jnp.diagonal(cov) - 1) - 1.5 * error),
    )
    rate = jnp.sqrt(trust * jnp.clip(informed, 0.0, 1.0))
    eye = jnp.eye(d, dtype=dtype)
    root = axes * scale
    corrected = root @ (eye + rate[:, None] * (cov - eye) * rate) @ root.T
    return mean + axes @ (scale * rate**2 * shift), jnp.linalg.cholesky(corrected)
