"""The law of X_t before y_t is read: the moments of the transition under q_{t-1}, and the backward kernel they imply.

With q_{t-1} = N(m, L Lᵀ), X_{t-1} = m + L z and f(z) the mean of the transition there, the mean of X_t is E[f]; the
part of f that is linear in z is D z with D = E[f zᵀ]; and Cov(X_t) = D Dᵀ + W, where W holds what the straight line
leaves and the mean covariance of the noise. W is positive semi-definite by construction, so nothing here can lose its
sign to rounding.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from backstream.laws.gaussian import scaled_cholesky
from backstream.models.base import Inputs, StateSpaceModel, transition_law

from .laws import StateMoments
from .noise import Noise

HERMITE = {1: 21, 2: 9, 3: 5}
"""Gauss–Hermite points along each axis, up to three states."""
REACH = 3.0
"""Beyond three states: the squared distance of the points m ± √3 L_i, which makes them exact for cubics along an
axis."""


class Transition(NamedTuple):
    """What is known beforehand of a model's transition."""

    affine: bool
    """Whether its mean is affine in the state and its noise does not depend on the state."""
    noise: Noise
    """How its law is read."""


class Prediction(NamedTuple):
    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    """Lower triangular, of the covariance."""
    slope: Float[Array, "d d"]
    """D: Cov(X_{t-1}, X_t) = L Dᵀ."""
    rest: Float[Array, "d d"]
    """W."""
    bend: Float[Array, " d"]
    """For each column of L: the share of the predicted variance that a straight line along it does not explain."""


class AffineLaw(NamedTuple):
    """The backward kernel X_{t-1} = mean + gain X_t + N(0, cov)."""

    mean: Float[Array, " d"]
    gain: Float[Array, "d d"]
    cov: Float[Array, "d d"]


def predict(
    p: StateSpaceModel,
    transition: Transition,
    mean: Float[Array, " d"],
    factor: Float[Array, "d d"],
    u: Inputs,
    inflation: Float[Array, ""],
    part: Array | int = 0,
) -> Prediction:
    """The moments of one part of the transition under N(mean, factor factorᵀ), with `inflation` times the covariance
    of its noise."""
    d, dtype = len(mean), mean.dtype

    def look(x) -> StateMoments:
        moved, noise = transition.noise.parts(transition_law(p, x, u), dtype).part(part)
        return StateMoments(moved, inflation * noise)

    if transition.affine:
        center = look(mean)
        slope = jax.jacfwd(lambda x: look(x).mean)(mean) @ factor
        return _assembled(center.mean, slope, center.dense(), jnp.zeros((0, d), dtype))
    if d in HERMITE:
        return _by_quadrature(look, mean, factor)
    return _by_differences(look, mean, factor)


def backward_kernel(before: Float[Array, " d"], factor: Float[Array, "d d"], prediction: Prediction) -> AffineLaw:
    """q_{t-1|t} of the joint Gaussian law with the predicted moments; `before`, `factor` are those of q_{t-1}.

    Its covariance is a sum of squares: (L − G D)(L − G D)ᵀ + G W Gᵀ, G the gain.
    """
    D, W = prediction.slope, prediction.rest
    gain = cho_solve((prediction.factor, True), D @ factor.T).T
    left = factor - gain @ D
    return AffineLaw(before - gain @ prediction.mean, gain, left @ left.T + gain @ W @ gain.T)


def _assembled(mean, slope, noise, curvature) -> Prediction:
    """`curvature` has a row for each axis along which the transition bends: its part of W is its square."""
    rest = noise + curvature.T @ curvature
    factor = scaled_cholesky(slope @ slope.T + rest)
    white = jax.scipy.linalg.solve_triangular(factor, curvature.T, lower=True)
    bend = jnp.zeros_like(mean) if len(curvature) == 0 else (white**2).sum(0)
    return Prediction(mean, factor, slope, rest, bend)


def _by_quadrature(look, mean, factor) -> Prediction:
    d, dtype = len(mean), mean.dtype
    points, weights = _hermite(d, dtype)
    seen = jax.vmap(look)(mean + points @ factor.T)
    predicted = weights @ seen.mean
    slope = (seen.mean - predicted).T @ (weights[:, None] * points)
    left = seen.mean - predicted - points @ slope.T
    noise = StateMoments(predicted, jnp.tensordot(weights, seen.cov, 1)).dense()
    rest = noise + left.T @ (weights[:, None] * left)
    chol = scaled_cholesky(slope @ slope.T + rest)
    # Along axis i: what is left once the others are averaged out, squared.
    white = jax.scipy.linalg.solve_triangular(chol, left.T, lower=True).T
    along = _axis_averages(white, d)
    return Prediction(predicted, chol, slope, rest, along)


def _axis_averages(white: Float[Array, "n d"], d: int) -> Float[Array, " d"]:
    n = HERMITE[d]
    _, w = _hermite_axis(n)
    weights = jnp.asarray(w, white.dtype)
    cube = white.reshape(*[n] * d, -1)
    bends = []
    for axis in range(d):
        kept = cube
        for other in reversed(range(d)):
            if other != axis:
                kept = jnp.tensordot(weights, jnp.moveaxis(kept, other, 0), 1)
        bends.append(weights @ (kept**2).sum(-1))
    return jnp.stack(bends)


def _by_differences(look, mean, factor) -> Prediction:
    """Second-order divided differences along the columns of the factor: 2d + 1 points."""
    d, reach = len(mean), math.sqrt(REACH)
    seen = jax.vmap(look)(jnp.concatenate([mean[None], mean + reach * factor.T, mean - reach * factor.T]))
    center, ahead, behind = seen.mean[0], seen.mean[1 : d + 1], seen.mean[d + 1 :]
    second = ahead + behind - 2 * center
    predicted = center + second.sum(0) / (2 * REACH)
    noise = StateMoments(predicted, seen.cov[1:].mean(0)).dense()
    return _assembled(
        predicted, ((ahead - behind) / (2 * reach)).T, noise, second * (math.sqrt(REACH - 1) / (2 * REACH))
    )


def _hermite_axis(n: int) -> tuple[np.ndarray, np.ndarray]:
    points, weights = np.polynomial.hermite_e.hermegauss(n)
    return points, weights / weights.sum()


def _hermite(d: int, dtype) -> tuple[Array, Array]:
    points, weights = _hermite_axis(HERMITE[d])

    def product(values):
        return np.stack(np.meshgrid(*[values] * d, indexing="ij"), -1).reshape(-1, d)

    return jnp.asarray(product(points), dtype), jnp.asarray(product(weights).prod(1), dtype)
