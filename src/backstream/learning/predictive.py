"""Predictive scores: how a row compares with what was predicted of it before it was read. No true state is needed.

The prediction is a set of draws: states from q_{t-1}, moved by the model's transition and seen through its emission.
The rank of the observation among the draws is its PIT value (probability integral transform). With exact predictions
the values are independent and uniform between 0 and 1, for any law, whatever the number of draws. So is the rank of the
row's predictive density among those of draws: it needs no order of values, and sees all columns together.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PyTree
from numpyro.distributions import constraints

from backstream._jax.hashed_keys import hashed
from backstream.families.base import BackwardFamily
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law
from backstream.models.density import log_emission
from backstream.models.laws import Law, columns_of, draw, factorizes, filled, support_of

LABELS = dist.CategoricalProbs, dist.CategoricalLogits
"""Laws of names that happen to be numbers: they have no order, and so no PIT values."""
REPLICATES, COMPARED = 8, 4
"""One of so many draws is a replicate of the row, whose density is compared with that of the row; one of so many is a
state under which those densities are computed. More would say little more, and cost most of a row's time."""


class Predictive(NamedTuple):
    """What a row was like, seen from its prediction. NaN for what is missing, and where a law has no order."""

    pit: Float[Array, " dy"]
    """The randomized rank of each column among the draws, between 0 and 1."""
    residual: Float[Array, " dy"]
    """Each column less the mean of the draws, in their standard deviations."""
    crps: Float[Array, " dy"]
    """The continuous ranked probability score of each column, in its unit: ∫ (F(s) − 1{s ≥ y})² ds, estimated from the
    draws without bias. Smaller is better. None for angles, which have no line."""
    rank: Float[Array, ""]
    """The randomized rank of the row's predictive density among those of replicates: low where the row is less
    probable than it should be, high where it is more so."""

    @classmethod
    def unknown(cls, like: Float[Array, " dy"]) -> "Predictive":
        nothing = jnp.full_like(like, jnp.nan)
        return cls(nothing, nothing, nothing, jnp.full((), jnp.nan, like.dtype))


def predictive_scores(
    p: StateSpaceModel,
    q: BackwardFamily,
    before: PyTree,
    first: Array,
    y: Float[Array, " dy"],
    u: Inputs,
    num_draws: int,
    *,
    key: Array,
) -> Predictive:
    """PIT values, residuals, CRPS and rank of y, from `num_draws` draws of the prediction.

    Args:
        p: The model.
        q: The posterior whose prediction is judged.
        before: a_{t-1}.
        first: Whether no row came before: the prediction is then the prior's.
        y: The row, NaN where a value is missing.
        u: Its inputs.
        num_draws: How many. With none there are no scores.
        key: Of the draws.
    """
    mean, _ = q.moments(before)
    law = emission_law(p, mean, u)
    if not num_draws:
        return Predictive.unknown(y)
    key = hashed(key)
    keys = jax.random.split(key, (2, num_draws))

    def begin():
        return jax.vmap(lambda key: draw(prior_law(p, u), key=key).astype(mean.dtype))(keys[0])

    def move():
        def one(key):
            x = q.sample(before, key=jax.random.fold_in(key, 0))
            return draw(transition_law(p, x, u), key=key).astype(mean.dtype)

        return jax.vmap(one)(keys[0])

    def see(x, key):
        return draw(emission_law(p, x, u), key=key).astype(y.dtype)

    states = jax.lax.cond(first, begin, move)
    draws = jax.vmap(see)(states, keys[1])
    uniform = jax.random.uniform(key, (len(y) + 1,), y.dtype)
    compared = _compared(law, draws, y, uniform[1:]) if _is_ordered(law) else Predictive.unknown(y)
    return compared._replace(rank=_rank(p, states, draws, y, u, uniform[0]))


def _rank(p: StateSpaceModel, states: Array, draws: Array, y: Array, u: Inputs, uniform: Array) -> Float[Array, ""]:
    """That of the row's density under some of the states among those of replicates, which came from others."""
    count, compared = len(draws) // REPLICATES, len(draws) // COMPARED
    if not count:
        return jnp.full((), jnp.nan, y.dtype)
    replicates = jnp.where(jnp.isnan(y), jnp.nan, draws[:count])

    def density(row):
        return jax.nn.logsumexp(jax.vmap(lambda x: log_emission(p, x, row, u))(states[count : count + compared]))

    found = jax.vmap(density)(jnp.concatenate([y[None], replicates]))
    below, equal = (found[1:] < found[0]).sum(), (found[1:] == found[0]).sum()
    rank = (below + uniform * (equal + 1)) / (count + 1)
    known = ~jnp.isnan(y).all() & ~jnp.isnan(found).any() & jnp.isfinite(draws).all()
    return jnp.where(known, rank, jnp.nan).astype(y.dtype)


def _is_ordered(law: Law) -> bool:
    """Whether larger and smaller mean something in each column."""
    return not isinstance(columns_of(law) if factorizes(law) else law, LABELS)


def _compared(
    law: Law, draws: Float[Array, "n dy"], y: Float[Array, " dy"], uniform: Float[Array, " dy"]
) -> Predictive:
    value = filled(law, y).astype(y.dtype)
    on_circle = support_of(law) is constraints.circular
    if on_circle:  # from the mean direction on, with the cut on the other side
        center = jnp.arctan2(jnp.sin(draws).mean(0), jnp.cos(draws).mean(0))
        draws, value = (jnp.arctan2(jnp.sin(part - center), jnp.cos(part - center)) for part in (draws, value))
    below, equal = (draws < value).sum(0), (draws == value).sum(0)
    pit = (below + uniform * (equal + 1)) / (len(draws) + 1)
    spread = draws.std(0, ddof=1)
    residual = (value - draws.mean(0)) / jnp.where(spread > 0, spread, 1.0)
    known = ~jnp.isnan(y) & jnp.isfinite(draws).all(0)
    crps = jnp.full_like(value, jnp.nan) if on_circle else ranked_score(draws, value)
    pit, residual, crps = (jnp.where(known, part, jnp.nan).astype(y.dtype) for part in (pit, residual, crps))
    return Predictive.unknown(y)._replace(pit=pit, residual=residual, crps=crps)


def ranked_score(draws: Float[Array, "n dy"], value: Float[Array, " dy"]) -> Float[Array, " dy"]:
    """E|X − y| − ½ E|X − X'| from independent draws, without bias; two draws at least."""
    n = len(draws)
    away = jnp.abs(draws - value).mean(0)
    # Σ_{i<j} |x_i − x_j|: in order, the k-th of n is above k others and below n − 1 − k.
    signs = 2 * jnp.arange(n, dtype=draws.dtype) - (n - 1)
    apart = signs @ jnp.sort(draws, axis=0) / (n * (n - 1))
    return away - apart
