"""A linear-Gaussian reading of any model at its prior mean, from which a family can start."""

from collections.abc import Callable
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

    def drift(self, A: Array) -> Float[Array, " d"]:
        """What makes A x + drift right at the prior mean."""
        return self.moved - multiply(A, self.mean0)


def linearise(p: StateSpaceModel, u: Inputs = None, *, key: Array) -> Linearisation:
    """Means and Jacobians at the prior mean; where a law has no mean, its `loc`; where it has no variance,
    half the width between the 16 and 84 % quantiles of draws made with the key."""
    check_model(p, u)
    keys = jax.random.split(key, 3)
    prior = p.prior(u)
    mean0 = _locator("prior", prior)(prior)
    dtype = mean0.dtype

    def location(name: str, law_at: Callable[[Array], dist.Distribution]):
        locate = _locator(name, law_at(mean0))
        values = locate(law_at(mean0)), jax.jacfwd(lambda x: locate(law_at(x)))(mean0)
        if not all(np.all(np.isfinite(value)) for value in values):
            raise ValueError(f"The location of the {name} has no finite Jacobian at the prior mean {mean0.tolist()}.")
        return tuple(value.astype(dtype) for value in values)

    moved, A = location("transition", lambda x: p.transition(x, u))
    seen, B = location("emission", lambda x: p.emission(x, u))
    left, singular, right = jnp.linalg.svd(A)
    if singular[0] > MAX_EXPANSION:
        A = (left * jnp.minimum(singular, MAX_EXPANSION)) @ right
    return Linearisation(
        mean0,
        _spread("prior", prior, dtype, key=keys[0]),
        A,
        moved,
        _spread("transition", p.transition(mean0, u), dtype, key=keys[1]),
        B,
        seen - B @ mean0,
        _spread("emission", p.emission(mean0, u), dtype, key=keys[2]),
    )


def _locator(name: str, law: dist.Distribution) -> Callable[[dist.Distribution], Array]:
    """The function that gives the location of laws like this one."""

    def by_mean(law):
        return law.mean

    def by_loc(law):
        while hasattr(law, "base_dist"):
            law = law.base_dist
        return law.loc

    for locate in (by_mean, by_loc):
        try:
            value = locate(law)
        except (AttributeError, NotImplementedError):
            continue
        if np.all(np.isfinite(value)):
            return lambda law: jnp.broadcast_to(locate(law), law.event_shape)
    raise ValueError(f"The {name}, {type(law).__name__}, has neither a finite mean nor a loc to start from.")


def _spread(name: str, law: dist.Distribution, dtype, *, key: Array) -> Float[Array, " n"]:
    """Standard deviations, or half the 16–84 % width where they are infinite or unknown."""
    try:
        scale = jnp.sqrt(jnp.broadcast_to(law.variance, law.event_shape))
    except (AttributeError, NotImplementedError):
        scale = jnp.full(law.event_shape, jnp.nan)
    if not np.all(np.isfinite(scale)):
        low, high = jnp.quantile(law.sample(key, (NUM_DRAWS,)), jnp.array([0.16, 0.84]), axis=0)
        scale = jnp.where(jnp.isfinite(scale), scale, (high - low) / 2)
    if not np.all(scale > 0):
        raise ValueError(f"The {name} at the prior mean must have positive scales, not {scale.tolist()}.")
    return scale.astype(dtype)
