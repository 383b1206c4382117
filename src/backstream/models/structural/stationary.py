"""Stationary autoregressions, x_t = φ_1 x_{t-1} + … + φ_p x_{t-p} + noise.

The process is stationary exactly where its partial autocorrelations r_1, …, r_p are strictly between −1 and 1. The
Durbin–Levinson recursion goes from one to the other, and gives the bijection by which learning keeps φ stationary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import ParameterFreeTransform


def coefficients(partial: Float[Array, " p"]) -> Float[Array, " p"]:
    """φ, from the partial autocorrelations.

    >>> coefficients(jnp.array([0.5, -0.2]))
    Array([ 0.6, -0.2], dtype=float32)
    """
    phi = partial[:0]
    for r in partial:
        phi = jnp.append(phi - r * phi[::-1], r)
    return phi


def partial_autocorrelations(phi: Float[Array, " p"]) -> Float[Array, " p"]:
    """The inverse of `coefficients`. Where φ is not stationary, one entry at least is not between −1 and 1."""
    partial = phi[:0]
    while len(phi):
        r, rest = phi[-1], phi[:-1]
        partial = jnp.append(r, partial)
        phi = (rest + r * rest[::-1]) / (1 - r**2)
    return partial


def covariance(phi: Float[Array, " p"]) -> Float[Array, "p p"]:
    """Of p successive values of the stationary process whose noise has variance 1."""
    partial = partial_autocorrelations(phi)
    correlations = jnp.ones_like(partial[:1])
    for k in range(1, len(phi)):
        # Yule–Walker: the best predictor from k values has the coefficients φ^(k).
        correlations = jnp.append(correlations, coefficients(partial[:k]) @ correlations[::-1])
    lag = abs(jnp.arange(len(phi))[:, None] - jnp.arange(len(phi)))
    return correlations[lag] / jnp.prod(1 - partial**2)


class _Stationary(constraints.ParameterFreeConstraint):
    event_dim = 1

    def __call__(self, x):
        return (abs(partial_autocorrelations(x)) < 1).all()

    def feasible_like(self, prototype):
        return jnp.zeros_like(prototype)


stationary = _Stationary()
"""The constraint on the coefficients of a stationary autoregression."""


class _ToStationary(ParameterFreeTransform):
    """φ whose partial autocorrelations are tanh(x)."""

    @property
    def domain(self):
        return constraints.real_vector

    @property
    def codomain(self):
        return stationary

    def __call__(self, x):
        return coefficients(jnp.tanh(x))

    def _inverse(self, y):
        return jnp.arctanh(partial_autocorrelations(y))


biject_to.register(stationary, lambda constraint: _ToStationary())
