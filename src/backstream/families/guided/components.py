"""Normal pieces of a law: cut before a transition that bends, merged again after the row is read."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.laws.gaussian import scaled_cholesky

from .prediction import AffineLaw

NUM_PIECES = 7
CENTERS = 0.9
"""The share of the variance that goes to the centers of the pieces, where the cut is whole."""
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
    mean: Float[Array, " d"], factor: Float[Array, "d d"], bend: Float[Array, " d"]
) -> tuple[Float[Array, " j"], Callable[[Array], tuple[Array, Array]]]:
    """A normal law as narrower ones along the column of its factor on which the transition bends most: the logarithms
    of their weights, and the i-th one's mean and factor.

    N(0, 1) is N(0, b) convolved with N(0, 1 − b). The first is replaced by its Gauss–Hermite points.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(NUM_PIECES)
    centers = jnp.asarray(points, mean.dtype)
    axis = jnp.argmax(bend)
    share = CENTERS * jnp.clip(bend[axis] / WHOLE_CUT, 0.0, 1.0)

    def piece(i: Array) -> tuple[Array, Array]:
        narrower = factor * jnp.where(jnp.arange(len(mean)) == axis, jnp.sqrt(1 - share), 1.0)
        return mean + jnp.sqrt(share) * centers[i] * factor[:, axis], narrower

    return jnp.asarray(np.log(weights / weights.sum()), mean.dtype), piece


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
