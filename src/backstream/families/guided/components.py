"""Normal pieces of a law: cut before a transition that bends, merged again after the row is read."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.laws.gaussian import scaled_cholesky

from .prediction import AffineLaw


class Cut(NamedTuple):
    count: int
    """How many pieces."""
    centers: float
    """The share of the variance that goes to the centers of the pieces, where the cut is whole."""


FIRST, SECOND = Cut(7, 0.9), Cut(5, 0.8)
MOST_STATES = 1
"""Up to so many, the piece that bends most is cut again."""
WHOLE_CUT = 0.02
"""The bend from which on it is whole."""
LEAST_BEND = 0.002
"""Below it nothing is cut."""


class Pieces(NamedTuple):
    """Σ_j exp(log_weight_j) N(mean_j, factor_j factor_jᵀ)."""

    log_weight: Float[Array, " j"]
    mean: Float[Array, "j d"]
    factor: Float[Array, "j d d"]


def cut(
    mean: Float[Array, " d"], factor: Float[Array, "d d"], bend: Float[Array, " d"], how: Cut = FIRST
) -> tuple[Float[Array, " j"], Callable[[Array], tuple[Array, Array]]]:
    """A normal law as narrower ones along the column of its factor on which the transition bends most: the logarithms
    of their weights, and the i-th one's mean and factor.

    N(0, 1) is N(0, b) convolved with N(0, 1 − b). The first is replaced by its Gauss–Hermite points.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(how.count)
    centers = jnp.asarray(points, mean.dtype)
    axis = jnp.argmax(bend)
    share = how.centers * jnp.clip(bend[axis] / WHOLE_CUT, 0.0, 1.0)

    def piece(i: Array) -> tuple[Array, Array]:
        narrower = factor * jnp.where(jnp.arange(len(mean)) == axis, jnp.sqrt(1 - share), 1.0)
        return mean + jnp.sqrt(share) * centers[i] * factor[:, axis], narrower

    return jnp.asarray(np.log(weights / weights.sum()), mean.dtype), piece


def cut_finely(
    mean: Float[Array, " d"], factor: Float[Array, "d d"], bends: Callable[[Pieces], Float[Array, "j d"]]
) -> Pieces:
    """A normal law cut; with one state, the piece over which the transition bends most, counted with its weight, is cut
    once more.

    `bends` are those of the transition over pieces. What is cut is found without derivatives.
    """
    whole = Pieces(jnp.zeros(1, mean.dtype), mean[None], factor[None])
    parts = _cut_at(whole, jnp.zeros((), int), jax.lax.stop_gradient(bends(whole)), FIRST)
    if len(mean) > MOST_STATES:
        return parts
    bend = jax.lax.stop_gradient(bends(parts))
    most = jnp.argmax(jax.lax.stop_gradient(jnp.exp(parts.log_weight)) * bend.max(1))
    return _cut_at(parts, most, bend, SECOND)


def _cut_at(pieces: Pieces, at: Array, bend: Float[Array, "j d"], how: Cut) -> Pieces:
    """The part in the middle takes the place of the piece that is cut; the others are added at the end."""
    log_share, piece = cut(pieces.mean[at], pieces.factor[at], bend[at], how)
    parts = Pieces(pieces.log_weight[at] + log_share, *jax.vmap(piece)(jnp.arange(how.count)))
    middle, own = how.count // 2, jnp.arange(len(bend)) == at

    def joined(old, new):
        kept = jnp.where(own.reshape(-1, *[1] * (old.ndim - 1)), new[middle], old)
        return jnp.concatenate([kept, new[:middle], new[middle + 1 :]])

    return jax.tree.map(joined, pieces, parts)


class Merged(NamedTuple):
    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    kernel: AffineLaw
    log_mass: Float[Array, ""]


def merge(pieces: Pieces, kernels: AffineLaw) -> Merged:
    """One normal law with the moments of all pieces, and the affine kernel with their joint moments.

    `pieces` are those of X_t, their weights times the masses of the row; `kernels` lead from each to X_{t-1}. The
    kernel of the merged law is the regression of X_{t-1} on X_t under the pieces: its covariance is a sum of squares.
    """
    log_mass = jax.nn.logsumexp(pieces.log_weight)
    weight = jnp.exp(pieces.log_weight - log_mass)
    mean = weight @ pieces.mean
    apart = pieces.mean - mean
    covs = pieces.factor @ jnp.swapaxes(pieces.factor, 1, 2)
    cov = jnp.einsum("j,jab->ab", weight, covs) + apart.T @ (weight[:, None] * apart)
    factor = scaled_cholesky(cov)

    before = kernels.mean + jnp.einsum("jab,jb->ja", kernels.gain, pieces.mean)
    center = weight @ before
    cross = jnp.einsum("j,jab,jbc->ac", weight, kernels.gain, covs) + (before - center).T @ (weight[:, None] * apart)
    gain = jax.scipy.linalg.cho_solve((factor, True), cross.T).T
    left = before - center - apart @ gain.T
    tilt = kernels.gain - gain
    spread = jnp.einsum("j,jab,jbc,jdc->ad", weight, tilt, covs, tilt) + jnp.einsum("j,jab->ab", weight, kernels.cov)
    kernel = AffineLaw(center - gain @ mean, gain, spread + left.T @ (weight[:, None] * left))
    return Merged(mean, factor, kernel, log_mass)
