"""A linear-Gaussian reading of any model, at its prior mean or along a path, from which a family can start."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import check_model
from backstream.models.matrices import multiply

MAX_EXPANSION = 1.25
"""Larger singular values of the transition's Jacobian say more about the point than about the model."""
NUM_DRAWS = 4096
NUM_STARTS = 20
"""A path is made of so many, each from the prior: one alone may stay at one of several attractors."""
NAMES = "prior", "transition", "emission"


class Linearisation(NamedTuple):
    """X_0 ≈ N(mean0, prior_scale²), E[X_t | x] ≈ A x + drift, location of Y_t ≈ B x + offset, and their scales."""

    mean0: Float[Array, " d"]
    prior_scale: Float[Array, " d"]
    A: Float[Array, "d d"]
    moved: Float[Array, " d"]
    """E[X_t | X_{t-1} = mean0]."""
    transition_scale: Float[Array, " d"]
    B: Float[Array, "dy d"]
    offset: Float[Array, " dy"]
    emission_scale: Float[Array, " dy"]
    scale_slope: Float[Array, "dy d"]
    """The Jacobian of the logarithm of the emission's scale; zero where it has none that is finite."""

    def drift(self, A: Array) -> Float[Array, " d"]:
        """What makes A x + drift right at the prior mean."""
        return self.moved - multiply(A, self.mean0)


def linearise(p: StateSpaceModel, u: Inputs = None, *, key: Array) -> Linearisation:
    """Locations, Jacobians and scales at the prior mean.

    A law without a mean gives its `loc`; one without a variance its `scale`, or else half the width between the 16 and
    84 % quantiles of draws made with the key.
    """
    check_model(p, u)

    @jax.jit
    def read(u):
        mean0 = _location(p.prior(u))
        laws = p.prior(u), p.transition(mean0, u), p.emission(mean0, u)
        slopes = [
            jax.jacfwd(lambda x, law_at=law_at: _location(law_at(x, u)))(mean0) for law_at in (p.transition, p.emission)
        ]
        scale_slope = jax.jacfwd(lambda x: jnp.log(_scale(p.emission(x, u))))(mean0)
        return [_location(law) for law in laws], slopes, [_scale(law) for law in laws], scale_slope

    (mean0, moved, seen), (A, B), scales, scale_slope = jax.tree.map(np.asarray, read(u))
    for i, law_at in enumerate((lambda: p.prior(u), lambda: p.transition(mean0, u), lambda: p.emission(mean0, u))):
        if not np.isfinite(scales[i]).all():
            width = _half_width(law_at(), key=jax.random.fold_in(key, i))
            scales[i] = np.where(np.isfinite(scales[i]), scales[i], width)
    for name, location, scale in zip(NAMES, (mean0, moved, seen), scales, strict=True):
        if not np.isfinite(location).all():
            raise ValueError(f"The {name} at the prior mean has no finite mean and no loc to start from: {location}.")
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise ValueError(f"The {name} at the prior mean must have positive scales, not {scale}.")
    for name, slope in zip(NAMES[1:], (A, B), strict=True):
        if not np.isfinite(slope).all():
            raise ValueError(f"The location of the {name} has no finite Jacobian at the prior mean {mean0}.")
    left, singular, right = np.linalg.svd(A)
    if singular[0] > MAX_EXPANSION:
        A = (left * np.minimum(singular, MAX_EXPANSION)) @ right
    scale_slope = np.where(np.isfinite(scale_slope), scale_slope, 0.0)
    values = mean0, scales[0], A, moved, scales[1], B, seen - B @ mean0, scales[2], scale_slope
    return Linearisation(*(jnp.asarray(value, mean0.dtype) for value in values))


def along_path(
    start: Linearisation, p: StateSpaceModel, steps: int, full: bool, u: Inputs = None, *, key: Array
) -> Linearisation:
    """With the best linear prediction along a simulated path in the place of the slope at the prior mean.

    What saturates away from there is steeper at the prior mean than where the state lives. Unless it shall be `full`,
    each state is predicted from itself alone.
    """
    d = len(start.mean0)
    if steps < 10 * d:
        raise ValueError(f"A path for {d} states must have at least {10 * d} steps, not {steps}.")
    length = -(-steps // NUM_STARTS) + 1
    inputs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (length, *jnp.shape(leaf))), u)
    keys = jax.random.split(key, NUM_STARTS)
    paths = np.asarray(jax.jit(jax.vmap(lambda key: p.simulate(length, inputs, key=key)[0]))(keys), np.float64)
    if not np.isfinite(paths).all():
        raise ValueError(f"A simulated path of {length} steps leaves the finite numbers: no linear map fits it.")
    steps, ends = NUM_STARTS * (length - 1), (paths[:, :-1].reshape(-1, d), paths[:, 1:].reshape(-1, d))
    before, after = (part - part.mean(0) for part in ends)
    if full:
        A = np.linalg.lstsq(before, after, rcond=None)[0].T
    else:
        A = np.diag((before * after).sum(0) / np.maximum((before**2).sum(0), 1e-300))
    left = after - before @ A.T
    scale = np.sqrt((left**2).sum(0) / (steps - 1 - (d if full else 1)))
    moved = ends[1].mean(0) + A @ (np.asarray(start.mean0) - ends[0].mean(0))
    A, moved, scale = (jnp.asarray(value, start.mean0.dtype) for value in (A, moved, scale))
    return start._replace(A=A, moved=moved, transition_scale=scale)


def _base(law: dist.Distribution) -> dist.Distribution:
    """The law that has the parameters, inside of `to_event`, `expand` and `mask`."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        law = law.base_dist
    return law


def _location(law: dist.Distribution) -> Float[Array, " n"]:
    """The mean where it is finite, or else the `loc` of the law, or else NaN."""
    loc = getattr(_base(law), "loc", jnp.nan)
    try:
        mean = law.mean
    except NotImplementedError:
        mean = loc
    return jnp.broadcast_to(jnp.where(jnp.isfinite(mean), mean, loc), law.event_shape)


def _scale(law: dist.Distribution) -> Float[Array, " n"]:
    """The standard deviation where it is finite, or else the `scale` of the law, or else NaN."""
    scale = getattr(_base(law), "scale", jnp.nan)
    try:
        variance = law.variance
    except NotImplementedError:
        variance = jnp.nan
    return jnp.broadcast_to(jnp.where(jnp.isfinite(variance), jnp.sqrt(variance), scale), law.event_shape)


def _half_width(law: dist.Distribution, *, key: Array) -> np.ndarray:
    """Half the distance between the 16 and 84 % quantiles: a standard deviation, for a Gaussian."""
    low, high = np.quantile(law.sample(key, (NUM_DRAWS,)), [0.16, 0.84], axis=0)
    return (high - low) / 2
