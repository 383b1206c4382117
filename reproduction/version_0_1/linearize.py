"""A linear-Gaussian reading of any model: at its prior mean, where a family starts, or wherever its filter is."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from backstream.families.covariance import PositiveDefinite
from backstream.families.linear import LinearDynamics, LinearState, prior_state
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law
from backstream.models.density import check_model
from backstream.models.laws import mean_of, variance_of
from backstream.models.matrices import multiply

from .held import Held

MAX_EXPANSION = 1.25
"""Larger singular values of the transition's Jacobian say more about the point than about the model."""
NUM_DRAWS = 4096
NAMES = "prior", "transition", "emission"


class Linearization(NamedTuple):
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


def linearize(p: StateSpaceModel, u: Inputs = None, *, key: Array) -> Linearization:
    """Locations, Jacobians and scales at the prior mean.

    A law without a mean gives its `loc`; one without a variance its `scale`, or else half the width between the 16 and
    84 % quantiles of draws made with the key.
    """
    check_model(p, u)

    @jax.jit
    def read(u):
        mean0 = _location(prior_law(p, u))
        laws = prior_law(p, u), transition_law(p, mean0, u), emission_law(p, mean0, u)
        slopes = [
            jax.jacfwd(lambda x, law_at=law_at: _location(law_at(p, x, u)))(mean0)
            for law_at in (transition_law, emission_law)
        ]
        scale_slope = jax.jacfwd(lambda x: jnp.log(_scale(emission_law(p, x, u))))(mean0)
        return [_location(law) for law in laws], slopes, [_scale(law) for law in laws], scale_slope

    (mean0, moved, seen), (A, B), scales, scale_slope = jax.tree.map(np.asarray, read(u))
    start = jnp.asarray(mean0)
    laws = lambda: prior_law(p, u), lambda: transition_law(p, start, u), lambda: emission_law(p, start, u)
    for i, law_at in enumerate(laws):
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
    return Linearization(*(jnp.asarray(value, mean0.dtype) for value in values))


class Tangent(eqx.Module):
    """A model's own dynamics, linearized wherever they are asked for. Nothing of them is learned. Of their noise the
    standard deviations are read, and no correlations."""

    held: Held
    """Mean and scales of the model's prior, and the scales of its transition there."""

    @classmethod
    def of(cls, start: Linearization) -> "Tangent":
        return cls(Held.of((start.mean0, start.prior_scale, start.transition_scale)))

    @property
    def dim(self) -> int:
        return self.held.bits[0].shape[-1]

    @property
    def mean0(self) -> Float[Array, " d"]:
        return self.held.value[0]

    @property
    def prior(self) -> PositiveDefinite:
        return PositiveDefinite.from_scale(self.held.value[1])

    def start(self) -> LinearState:
        """The law of X_0, before any row."""
        return prior_state(self.mean0, self.prior)

    def at(self, p: StateSpaceModel, x: Float[Array, " d"], u: Inputs) -> LinearDynamics:
        """Slope, drift and scales of the transition at x. Where it has no finite scale, that at the prior mean."""

        def moved(x):
            return _location(transition_law(p, x, u)).astype(x.dtype)

        A, scale = jax.jacfwd(moved)(x), _scale(transition_law(p, x, u)).astype(x.dtype)
        noise = PositiveDefinite.from_scale(jnp.where(jnp.isfinite(scale), scale, self.held.value[2]))
        return LinearDynamics(self.mean0, self.prior, A, noise, moved(x) - A @ x)


def _base(law: dist.Distribution) -> dist.Distribution:
    """The law that has the parameters, inside of `to_event`, `expand` and `mask`."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        law = law.base_dist
    return law


def _location(law: dist.Distribution) -> Float[Array, " n"]:
    """The mean where it is finite, or else the `loc` of the law, or else NaN."""
    loc = getattr(_base(law), "loc", jnp.nan)
    try:
        mean = mean_of(law)
    except NotImplementedError:
        mean = loc
    return jnp.broadcast_to(jnp.where(jnp.isfinite(mean), mean, loc), law.event_shape)


def _scale(law: dist.Distribution) -> Float[Array, " n"]:
    """The standard deviation where it is finite, or else the `scale` of the law, or else NaN."""
    scale = getattr(_base(law), "scale", jnp.nan)
    try:
        variance = variance_of(law)
    except NotImplementedError:
        variance = jnp.nan
    return jnp.broadcast_to(jnp.where(jnp.isfinite(variance), jnp.sqrt(variance), scale), law.event_shape)


def _half_width(law: dist.Distribution, *, key: Array) -> np.ndarray:
    """Half the distance between the 16 and 84 % quantiles: a standard deviation, for a Gaussian."""
    low, high = np.quantile(law.sample(key, (NUM_DRAWS,)), [0.16, 0.84], axis=0)
    return (high - low) / 2
