"""Laws of the state as a few normal parts: heavy tails and jumps are more than a mean and a covariance.

A mixture is read part by part. A Student-t law is a scale mixture of normal laws. So is, near enough, any other law
whose shape does not change with the state: its parts are fitted once. A normal law is one part.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma, polygamma
from jaxtyping import Array, Float

from backstream.models.laws import Law, columns_of, factorizes, is_normal

from .constants import Constant
from .laws import StateMoments, state_moments

MOST_PARTS = 16
SCALES = {5: (0.9, 0.12, 0.11), 4: (0.73, 0.23, 0.15), 3: (0.5, 0.38, 0.21), 2: (0.05, 0.93, 0.0)}
"""For so many parts of a Student-t law: the k-th node of the logarithm of its mixing precision is at
first − k exp(step + growth k), in standard deviations from the mean. These have the least divergence from the law with
three degrees of freedom: 0.0002, 0.0006, 0.003 and 0.02 nats. One normal law has 0.2."""
LEAST_LEFT = 1e-6
"""The least weight of the part that stands for all rarer combinations."""
MIXTURES = dist.MixtureSameFamily, dist.MixtureGeneral


def one_at_a_time(d: int) -> int:
    """The number of parts of d coordinates of which at most one is outside its main part, with one for all others."""
    return d + 2


class Parts(NamedTuple):
    """Σ_m exp(log_weight_m) N(mean_m, cov_m)."""

    log_weight: Float[Array, " m"]
    mean: Float[Array, "m d"]
    cov: Float[Array, "m d d"] | Float[Array, "m d"]
    """Vectors of variances where the coordinates are independent."""

    def dense(self) -> Float[Array, "m d d"]:
        return jax.vmap(jnp.diag)(self.cov) if self.cov.ndim == 2 else self.cov

    def part(self, i: Array | int) -> StateMoments:
        return StateMoments(self.mean[i], self.cov[i])


class CoordinateParts(NamedTuple):
    """The parts of each coordinate on its own."""

    log_weight: Float[Array, "m d"]
    mean: Float[Array, "m d"]
    variance: Float[Array, "m d"]

    def combined(self, most: int) -> Parts | None:
        """All combinations of them; where these are more than `most`, those with at most one coordinate outside its
        main part, and one part for all others. None where these are more than `MOST_PARTS`."""
        count, d = self.log_weight.shape
        if count**d <= most:
            which = np.stack(np.meshgrid(*[np.arange(count)] * d, indexing="ij"), -1).reshape(-1, d)
            return self._chosen(which)
        return self._in_two()._one_at_a_time() if one_at_a_time(d) <= MOST_PARTS else None

    def _chosen(self, which: np.ndarray) -> Parts:
        log_weight, mean, variance = (leaf[which, np.arange(which.shape[1])] for leaf in self)
        return Parts(log_weight.sum(1), mean, variance)

    def _in_two(self) -> "CoordinateParts":
        """Of each coordinate the heaviest part, and one with the moments of all others."""
        main = jnp.arange(len(self.log_weight))[:, None] == self.log_weight.argmax(0)
        shares = [jax.nn.softmax(jnp.where(own, self.log_weight, -jnp.inf), 0) for own in (main, ~main)]
        log_weight = [jax.nn.logsumexp(jnp.where(own, self.log_weight, -jnp.inf), 0) for own in (main, ~main)]
        mean = [(share * self.mean).sum(0) for share in shares]
        spread = [
            (share * (self.variance + (self.mean - m) ** 2)).sum(0) for share, m in zip(shares, mean, strict=True)
        ]
        return CoordinateParts(jnp.stack(log_weight), jnp.stack(mean), jnp.stack(spread))

    def _one_at_a_time(self) -> Parts:
        d = self.log_weight.shape[1]
        single = self._chosen(np.concatenate([np.zeros((1, d), int), np.eye(d, dtype=int)]))
        weight, outside = jnp.exp(single.log_weight), jnp.exp(self.log_weight[1])
        # What is left has at least two coordinates outside: each with what its own probability leaves for it.
        left = jnp.maximum(1 - weight.sum(), LEAST_LEFT)
        share = jnp.clip((outside - weight[1:]) / left, 0.0, 1.0)
        mean = (1 - share) * self.mean[0] + share * self.mean[1]
        spread = self.variance + (self.mean - mean) ** 2
        rest = jnp.log(left)[None], mean[None], ((1 - share) * spread[0] + share * spread[1])[None]
        return Parts(*(jnp.concatenate(pair) for pair in zip(single, rest, strict=True)))


class Noise(NamedTuple):
    """How a law of the state is read."""

    known: bool
    """Whether its mean and covariance can be read off it."""
    count: int = 1
    """How many parts it has."""
    shape: Constant | None = None
    """[3, n]: weights, means and variances of the parts of a standardized coordinate, where they come from a fit."""
    most: int = MOST_PARTS
    """How many parts the coordinates may have together, if a user has not written them as a mixture."""

    @property
    def differentiable(self) -> bool:
        """Whether its parts have derivatives: not where they come from draws."""
        return self.known or (self.count > 1 and self.shape is None)

    def parts(self, law: Law, dtype) -> Parts:
        if self.count == 1:
            mean, cov = state_moments(law, self.known, dtype)
            return Parts(jnp.zeros(1, dtype), mean[None], cov[None])
        found = known_parts(law, self.most) if self.shape is None else self._fitted(law, self.shape.value, dtype)
        assert found is not None
        return Parts(*(leaf.astype(dtype) for leaf in found))

    def _fitted(self, law: Law, shape: np.ndarray, dtype) -> Parts:
        weight, mean, variance = (jnp.asarray(row, dtype)[:, None] for row in shape)
        own = state_moments(law, self.known, dtype)
        own_variance = own.cov if own.cov.ndim == 1 else jnp.diagonal(own.cov)
        one = jnp.ones_like(own.mean)
        columns = CoordinateParts(
            jnp.log(weight) * one, own.mean + mean * jnp.sqrt(own_variance), variance * own_variance
        )
        parts = columns.combined(self.most)
        assert parts is not None
        return parts


def known_parts(law: Law, most: int = MOST_PARTS) -> Parts | None:
    """The parts of a mixture or of a Student-t law of vectors; None for laws of another kind, or of too many parts."""
    if is_normal(law):
        return None
    d = law.event_shape[0]
    if factorizes(law):
        columns = _columns(columns_of(law), d, most)
        return None if columns is None else columns.combined(most)
    if isinstance(law, dist.MultivariateStudentT):
        log_weight, scale = _student_scales(jnp.asarray(law.df), max(SCALES))
        loc, tril = jnp.asarray(law.loc), jnp.asarray(law.scale_tril)
        return Parts(log_weight, jnp.broadcast_to(loc, (len(scale), d)), scale[:, None, None] * (tril @ tril.T))
    if isinstance(law, MIXTURES) and law.mixture_size <= MOST_PARTS:
        moments = _moments_of_components(law)
        return None if moments is None else Parts(_log_probs(law), *moments)
    return None


def _columns(base: Law, d: int, most: int) -> CoordinateParts | None:
    """Of d coordinates whose laws are of one kind."""
    if isinstance(base, dist.StudentT | dist.Cauchy):
        count = next((count for count in SCALES if count**d <= most), 2)
        df = jnp.asarray(base.df if isinstance(base, dist.StudentT) else 1.0)
        loc, scale = jnp.asarray(base.loc), jnp.asarray(base.scale)
        log_weight, scales = _student_scales(jnp.broadcast_to(df, (d,)), count)
        return CoordinateParts(log_weight, jnp.broadcast_to(loc, (count, d)), scales * scale**2)
    if isinstance(base, MIXTURES):
        moments = _moments_of_components(base)
        if moments is None:
            return None
        parts = (_log_probs(base), *moments)
        return CoordinateParts(*(jnp.broadcast_to(leaf, (d, base.mixture_size)).T for leaf in parts))
    return None


def _student_scales(df: Array, count: int) -> tuple[Array, Array]:
    """Log weights and variances, [m, ...]: N(0, exp(−s)) at the nodes s of the trapezoidal rule over s = log λ, with
    λ ~ Gamma(df/2, df/2), of which the Student-t law is the mixture."""
    first, step, growth = SCALES[count]
    k = np.arange(count)
    nodes = (first - k * np.exp(step + growth * k)).reshape(-1, *[1] * df.ndim)
    half = 0.5 * df.astype(jnp.result_type(float, df))
    scale = jnp.sqrt(polygamma(1, half))
    s = digamma(half) - jnp.log(half) + scale * jnp.asarray(nodes, scale.dtype)
    log_weight = half * (s - jnp.exp(s)) + jnp.asarray(np.log(-np.gradient(nodes, axis=0)), scale.dtype)
    return jax.nn.log_softmax(log_weight, axis=0), jnp.exp(-s)


def _log_probs(mixture: Law) -> Array:
    return jnp.log(mixture.mixing_distribution.probs)


def _moments_of_components(mixture: Law) -> tuple[Array, Array] | None:
    """Means and variances of single numbers, [..., m]; means and covariances of vectors, [m, d] and [m, d, d]."""
    try:
        if isinstance(mixture, dist.MixtureSameFamily):
            return _moments(mixture.component_distribution)
        found = [_moments(part) for part in mixture.component_distributions]
    except (NotImplementedError, AttributeError):
        return None
    axis = -1 if mixture.event_shape == () else 0
    means, spreads = zip(*found, strict=True)
    return jnp.stack(jnp.broadcast_arrays(*means), axis), jnp.stack(jnp.broadcast_arrays(*spreads), axis)


def _moments(law: Law) -> tuple[Array, Array]:
    mean = jnp.asarray(law.mean)
    if law.event_shape == ():
        return mean, jnp.asarray(law.variance)
    if hasattr(law, "covariance_matrix"):
        return mean, jnp.asarray(law.covariance_matrix)
    return mean, jnp.asarray(law.variance)[..., None] * jnp.eye(law.event_shape[0])
