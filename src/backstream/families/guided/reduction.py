"""Many normal pieces reduced to a few, by Runnalls' rule.

The pair is merged whose merging costs least, until few enough are left. The cost is an upper bound of the divergence,
½ {(w_i + w_j) log|P_ij| − w_i log|P_i| − w_j log|P_j|}. Which pieces go together is found without derivatives. The
moments of the groups are sums over their pieces, and have derivatives.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from backstream.laws.gaussian import FEW, scaled_cholesky
from backstream.laws.mixture import LEAST_WEIGHT

from . import small_matrices as small
from .components import Pieces

NEGLIGIBLE = 1e-8
"""Pieces of less weight are left out."""


def reduce(pieces: Pieces, count: int) -> Pieces:
    """At most so many pieces, with the mass and the moments of all."""
    if len(pieces.log_weight) <= count:
        return pieces
    log_mass = jax.nn.logsumexp(pieces.log_weight)
    weight = jnp.exp(pieces.log_weight - log_mass)
    covs = pieces.factor @ small.transpose(pieces.factor)
    group = _group(*jax.lax.stop_gradient((weight, pieces.mean, covs)), count)
    share = weight * (group == jnp.arange(count)[:, None])
    total = jnp.maximum(share.sum(1), LEAST_WEIGHT)
    share = jnp.where(share.sum(1, keepdims=True) > 0, share / total[:, None], weight)
    mean = share @ pieces.mean
    apart = pieces.mean - mean[:, None]
    cov = jnp.einsum("kj,jab->kab", share, covs) + jnp.einsum("kj,kja,kjb->kab", share, apart, apart)
    return Pieces(log_mass + jnp.log(total), mean, jax.vmap(scaled_cholesky)(cov))


class _Groups(NamedTuple):
    weight: Float[Array, " n"]
    """Negative for a group that has gone into another."""
    mean: Float[Array, "n d"]
    cov: Float[Array, "n d d"]
    log_det: Float[Array, " n"]
    cost: Float[Array, "n n"]
    """Of merging two groups."""
    member: Int[Array, " n"]
    """The group that each piece is in."""


def _group(weight: Float[Array, " n"], mean: Array, cov: Array, components: int) -> Int[Array, " n"]:
    """The number of the component that each piece goes to; −1 for pieces without weight."""
    groups = _start(weight, mean, cov)
    groups = jax.lax.while_loop(lambda groups: (groups.weight >= 0).sum() > components, _merge_cheapest, groups)
    order = jnp.cumsum(groups.weight >= 0) - 1
    left_out = groups.weight[groups.member] < 0
    return jnp.where(left_out, -1, order[groups.member])


def _start(weight, mean, cov) -> _Groups:
    n = len(weight)
    # In units of the whole, so that determinants neither overflow nor depend on what states are measured in.
    spread = jnp.einsum("j,jaa->a", weight, cov) + weight @ (mean - weight @ mean) ** 2
    scale = jnp.sqrt(jnp.maximum(spread, jnp.finfo(mean.dtype).tiny * 1e4))
    mean, cov = mean / scale, cov / scale[:, None] / scale
    weight = jnp.where(weight > NEGLIGIBLE, weight, -1.0)
    blank = jnp.full((n, n), jnp.inf, mean.dtype)
    groups = _Groups(weight, mean, cov, _log_det(cov), blank, jnp.arange(n))
    cost = jax.vmap(lambda i: _costs(groups, i))(jnp.arange(n))
    return groups._replace(cost=cost)


def _log_det(cov: Float[Array, "*b d d"]) -> Float[Array, "*b"]:
    d = cov.shape[-1]
    floor = float(jnp.finfo(cov.dtype).eps) ** 2
    if d <= FEW:
        return 2 * small.log_det(small.cholesky(cov, floor))
    factor = jnp.linalg.cholesky(cov + floor * jnp.eye(d, dtype=cov.dtype))
    return 2 * small.log_det(factor)


def _merged(groups: _Groups, i: Array) -> tuple[Array, Array, Array]:
    """Weight, mean and covariance of each group merged with the i-th."""
    weight = jnp.maximum(groups.weight, 0.0) + groups.weight[i]
    own = (jnp.maximum(groups.weight, 0.0) / weight)[:, None]
    apart = groups.mean - groups.mean[i]
    mean = groups.mean[i] + own * apart
    between = (own * (1 - own))[:, :, None] * apart[:, :, None] * apart[:, None, :]
    return weight, mean, own[:, :, None] * groups.cov + (1 - own)[:, :, None] * groups.cov[i] + between


def _costs(groups: _Groups, i: Array) -> Float[Array, " n"]:
    """Of merging the i-th group with each; infinite with itself, and where one of the two is gone."""
    weight, _, cov = _merged(groups, i)
    cost = 0.5 * (weight * _log_det(cov) - groups.weight * groups.log_det - groups.weight[i] * groups.log_det[i])
    both = (groups.weight >= 0) & (groups.weight[i] >= 0) & (jnp.arange(len(cost)) != i)
    return jnp.where(both & jnp.isfinite(cost), cost, jnp.inf)


def _merge_cheapest(groups: _Groups) -> _Groups:
    """The i-th group goes into the j-th. Masks instead of scattered writes: these are slow."""
    i = jnp.argmin(groups.cost.min(1))
    j = jnp.argmin(groups.cost[i])
    ids = jnp.arange(len(groups.weight))
    gone, kept = ids == i, ids == j
    weight, mean, cov = (part[i] for part in _merged(groups, j))
    groups = _Groups(
        jnp.where(gone, -1.0, jnp.where(kept, weight, groups.weight)),
        jnp.where(kept[:, None], mean, groups.mean),
        jnp.where(kept[:, None, None], cov, groups.cov),
        jnp.where(kept, _log_det(cov), groups.log_det),
        groups.cost,
        jnp.where(groups.member == i, j, groups.member),
    )
    new = _costs(groups, j)
    cost = jnp.where(kept[:, None], new, jnp.where(kept, new[:, None], groups.cost))
    return groups._replace(cost=jnp.where(gone[:, None] | gone, jnp.inf, cost))
