"""Mixtures of normal laws: densities, draws, moments, quantiles and regions of highest density."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from backstream.laws.gaussian import LOG_2PI, cholesky, inverse

LEAST_WEIGHT = 1e-12
"""Components without weight keep this one, so that logarithms and their derivatives stay finite."""
REACH, NODES = 5.0, 129
"""Regions are looked for up to so many standard deviations from each component, at so many nodes."""


class Mixture(eqx.Module):
    """Σ_k exp(log_weight_k) N(mean_k, factor_k factor_kᵀ).

    >>> law = Mixture.of(jnp.array([0.5, 0.5]), jnp.array([[-3.0], [3.0]]), jnp.ones((2, 1, 1)))
    >>> law.regions(0.9).round(1)
    Array([[[-4.6, -1.4],
            [ 1.4,  4.6]]], dtype=float32)
    """

    log_weight: Float[Array, " k"]
    """Normalized."""
    mean: Float[Array, "k d"]
    factor: Float[Array, "k d d"]
    """Lower triangular."""

    @classmethod
    def of(cls, weight: Float[Array, " k"], mean: Float[Array, "k d"], factor: Float[Array, "k d d"]) -> "Mixture":
        """From weights that need not add up to one."""
        weight = jnp.maximum(weight / weight.sum(), LEAST_WEIGHT)
        return cls(jnp.log(weight / weight.sum()), mean, factor)

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    @property
    def weight(self) -> Float[Array, " k"]:
        return jnp.exp(self.log_weight)

    def frame(self):
        """A normal law has one; what works in it needs a family of normal laws."""
        raise TypeError(
            "A mixture has no frame in which it is standard normal, which this estimator needs. The log score of a "
            "family with several components has a gradient: use LogScore."
        )

    def component_log_probs(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """log N(x; mean_k, factor_k factor_kᵀ)."""
        roots = jax.vmap(inverse)(self.factor)
        z = jnp.einsum("kij,kj->ki", roots, x - self.mean)
        log_det = jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)).sum(1)
        return log_det - 0.5 * (z**2).sum(1) - 0.5 * self.dim * LOG_2PI

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jax.nn.logsumexp(self.log_weight + self.component_log_probs(x))

    def sample(self, shape: tuple[int, ...] = (), *, key: Array) -> Float[Array, "..."]:
        """Draws, of shape (*shape, d)."""
        key_component, key_noise = jax.random.split(key)
        k = jax.random.categorical(key_component, self.log_weight, shape=shape)
        z = jax.random.normal(key_noise, (*shape, self.dim), self.mean.dtype)
        return self.mean[k] + jnp.einsum("...ij,...j->...i", self.factor[k], z)

    def moments(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean and covariance."""
        mean = self.weight @ self.mean
        roots = jnp.sqrt(self.weight)[:, None, None] * jnp.concatenate(
            [self.factor, (self.mean - mean)[:, :, None]], axis=2
        )
        return mean, jnp.einsum("kai,kbi->ab", roots, roots)

    def scales(self) -> Float[Array, "k d"]:
        """Standard deviations of the components' coordinates."""
        return jnp.sqrt((self.factor**2).sum(2))

    def cdf(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """P(X_i ≤ x_i), for each coordinate."""
        below = ndtr((x[..., None, :] - self.mean) / self.scales())
        return jnp.einsum("k,...kd->...d", self.weight, below)

    def quantile(self, probability: float) -> Float[Array, " d"]:
        """The quantile of each coordinate, by bisection between those of the components."""
        each = self.mean + ndtri(probability).astype(self.mean.dtype) * self.scales()

        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            above = self.cdf(middle) > probability
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        low, high = jax.lax.fori_loop(0, _turns(each.dtype), halve, (each.min(0), each.max(0)))
        return 0.5 * (low + high)

    def regions(self, level: float) -> Float[Array, "d k 2"]:
        """Each coordinate's region of highest density that holds it with probability `level`, as intervals.

        There are at most as many intervals as components; NaN where there are fewer.
        """
        return jax.vmap(lambda mean, scale: _regions(self.weight, mean, scale, level), (1, 1))(self.mean, self.scales())


def _turns(dtype) -> int:
    """Halvings after which nothing is left but rounding."""
    return 2 - int(np.log2(jnp.finfo(dtype).eps))


def _regions(weight: Float[Array, " k"], mean: Float[Array, " k"], scale: Float[Array, " k"], level: float):
    """Of one coordinate: where its density is above the threshold that leaves it `level`, between nodes around all
    components. Between two nodes the density is a straight line."""
    count = len(weight)
    around = jnp.linspace(-REACH, REACH, NODES, dtype=mean.dtype)
    nodes = jnp.sort((mean[:, None] + scale[:, None] * around).ravel())
    z = (nodes[:, None] - mean) / scale
    density = jnp.exp(-0.5 * z**2 - 0.5 * LOG_2PI) @ (weight / scale)
    mass = jnp.diff(ndtr(z) @ weight)
    low, high = jnp.minimum(density[1:], density[:-1]), jnp.maximum(density[1:], density[:-1])

    def halve(_, ends):
        least, most = ends
        middle = 0.5 * (least + most)
        share = jnp.clip((high - middle) / jnp.where(high > low, high - low, 1.0), 0.0, 1.0)
        enough = mass @ share > level
        return jnp.where(enough, middle, least), jnp.where(enough, most, middle)

    threshold, _ = jax.lax.fori_loop(0, _turns(mean.dtype), halve, (jnp.zeros_like(density[0]), density.max()))

    # Where the density crosses the threshold, between two nodes; intervals are numbered from the left.
    inside = density > threshold
    begins = inside & ~jnp.concatenate([jnp.zeros(1, bool), inside[:-1]])
    ends = inside & ~jnp.concatenate([inside[1:], jnp.zeros(1, bool)])
    rise = density[1:] - density[:-1]
    crossing = nodes[:-1] + jnp.diff(nodes) * jnp.clip(
        (threshold - density[:-1]) / jnp.where(rise == 0, 1.0, rise), 0, 1
    )
    lower = jnp.concatenate([nodes[:1], crossing])
    upper = jnp.concatenate([crossing, nodes[-1:]])
    number = jnp.cumsum(begins) - 1

    def interval(k):
        own = number == k
        return jnp.stack([_only(lower, begins & own), _only(upper, ends & own)])

    return jax.vmap(interval)(jnp.arange(count))


def _only(values: Float[Array, " n"], chosen) -> Float[Array, ""]:
    """The one value that is chosen; NaN where none is."""
    return jnp.where(chosen.any(), jnp.where(chosen, values, 0.0).sum(), jnp.nan)


def fit_mixture(
    start: Mixture,
    points: Float[Array, "n d"],
    weight: Float[Array, " n"],
    ridge: Float[Array, "d d"],
    turns: int,
) -> Mixture:
    """Expectation maximization on weighted points, from `start`. Every turn keeps their mean and covariance.

    `ridge` is added to the covariances, so that none collapses onto a point.
    """
    weight = weight / weight.sum()

    def turn(law: Mixture, _):
        log_terms = law.log_weight + jax.vmap(law.component_log_probs)(points)
        share = jax.nn.softmax(log_terms, axis=1) * weight[:, None]
        total = share.sum(0)
        used = total > LEAST_WEIGHT
        share = share / jnp.where(used, total, 1.0)
        mean = jnp.where(used[:, None], share.T @ points, law.mean)
        apart = points[:, None] - mean
        cov = jnp.einsum("nk,nki,nkj->kij", share, apart, apart) + ridge
        factor = jnp.where(used[:, None, None], jax.vmap(cholesky)(cov), law.factor)
        return Mixture.of(total, mean, factor), None

    return jax.lax.scan(turn, start, None, turns)[0]
