"""Moments and densities of a model's laws, as the references and the Gaussian filters read them."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints


def covariance(law: dist.Distribution) -> jax.Array:
    """The covariance matrix of a law of vectors: its own, or the diagonal one of its variances."""
    if isinstance(law, dist.MultivariateNormal):  # from the factor, which may be singular
        return law.scale_tril @ law.scale_tril.mT
    return jnp.diag(jnp.broadcast_to(law.variance, law.event_shape))


def scatter(law: dist.Distribution) -> jax.Array:
    """The covariance, and for a Student-t law, which may have none, the inverse of its Fisher information."""
    base = law.base_dist if isinstance(law, dist.Independent) else law
    if not isinstance(base, dist.StudentT):
        return covariance(law)
    return jnp.diag(jnp.broadcast_to(base.scale**2 * (base.df + 3) / (base.df + 1), law.event_shape))


def mean(law: dist.Distribution) -> jax.Array:
    return jnp.broadcast_to(law.mean, law.event_shape)


def difference(law: dist.Distribution, y: jax.Array, other: jax.Array) -> jax.Array:
    """y less another point, between −π and π where the law is one of angles."""
    base = law.base_dist if isinstance(law, dist.Independent) else law
    away = y - other
    return jnp.mod(away + jnp.pi, 2 * jnp.pi) - jnp.pi if base.support is constraints.circular else away


def normal_factor(law: dist.Distribution) -> jax.Array:
    """A factor L of the covariance LL' of a normal law. Raises TypeError for any other law."""
    if isinstance(law, dist.MultivariateNormal):
        return law.scale_tril
    if isinstance(law, dist.Independent) and isinstance(law.base_dist, dist.Normal):
        return jnp.diag(jnp.broadcast_to(law.base_dist.scale, law.event_shape))
    raise TypeError(f"The transition must be normal here, not {type(law).__name__}.")


def log_emission(model, x: jax.Array, y: jax.Array, u) -> jax.Array:
    """log p(y | x). Integers are given to the law as integers."""
    law = model.emission(x, u)
    kind = jax.eval_shape(law.sample, jax.random.key(0)).dtype
    return law.log_prob(y.astype(kind) if jnp.issubdtype(kind, jnp.integer) else y)
