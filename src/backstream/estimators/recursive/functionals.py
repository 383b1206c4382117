"""Online expectations of additive functionals Σ_s h_s(X_{s-1}, X_s) under q_{0:t}.

They ride on the same weights as the ELBO: F_t^i = Σ_j w_ij (F_{t-1}^j + h_t(ξ_{t-1}^j, ξ_t^i)).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compensated_sums import Running
from backstream.estimators.first_row import NOT_SEEN, FirstRowApart
from backstream.families.backward import first_state

from .particles import Particles, backward_kernels, draw
from .weights import AbstractPairs, AbstractWeights, SampledPairs, SelfNormalized


class AdditiveFunctional(eqx.Module):
    """h_0(x, y) and h_t(x_previous, x, y), functions of single states and of the observation, returning pytrees alike.

    >>> distance = AdditiveFunctional(
    ...     first=lambda x, y: jnp.zeros(()), increment=lambda x_previous, x, y: jnp.sum((x - x_previous) ** 2)
    ... )
    """

    first: Callable[[Array, Array], PyTree] = eqx.field(static=True)
    increment: Callable[[Array, Array, Array], PyTree] = eqx.field(static=True)

    def at_first(self, xi: Float[Array, "n d"], y: Float[Array, " dy"]) -> Float[Array, "n k"]:
        """h_0 at the samples, flat."""
        return jax.vmap(lambda x: ravel_pytree(self.first(x, y))[0])(xi)

    def average(
        self,
        pairs: AbstractPairs,
        xi_previous: Float[Array, "m d"],
        xi: Float[Array, "n d"],
        y: Float[Array, " dy"],
    ) -> Float[Array, "n k"]:
        """Ê_i[h_t(X_{t-1}, ξ_t^i)] for each i, flat."""

        def row(x_previous, x, coefficients):
            return self.row_average(coefficients, x_previous, x, y)

        return vmap_rows(row, pairs, xi_previous)(xi, pairs.coefficients())

    def row_average(
        self, w: Float[Array, " m"], xi_previous: Float[Array, "m d"], x: Float[Array, " d"], y: Float[Array, " dy"]
    ) -> Float[Array, " k"]:
        """Σ_j w_j h_t(ξ_{t-1}^j, x), flat."""
        return w @ jax.vmap(lambda x_: ravel_pytree(self.increment(x_, x, y))[0])(xi_previous)

    def restore(self, flat: Float[Array, " k"], xi: Float[Array, "n d"], y: Float[Array, " dy"]) -> PyTree:
        """From the flat form back to what h returns."""
        like = jax.eval_shape(self.first, xi[0], y)
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))[1](flat)


def vmap_rows(row: Callable, pairs: AbstractPairs, xi_previous: Float[Array, "m d"]) -> Callable:
    """Maps row(x_previous [K, d], …) over i, with the ξ_{t-1} that the pairs of row i use."""
    if isinstance(pairs, SampledPairs):
        return lambda *rows: jax.vmap(row)(xi_previous[pairs.index], *rows)
    return lambda *rows: jax.vmap(lambda *args: row(xi_previous, *args))(*rows)


def moments() -> AdditiveFunctional:
    """Σ x_s and Σ x_s x_sᵀ: smoothed first and second moments, added up over time."""

    def first(x, y):
        return {"x": x, "xx": jnp.outer(x, x)}

    return AdditiveFunctional(first, lambda x_previous, x, y: first(x, y))


def linear_gaussian_statistics() -> AdditiveFunctional:
    """The sufficient statistics of the linear-Gaussian model.

    Sums over s ≥ 1 of x_{s-1} x_{s-1}ᵀ, x_s x_{s-1}ᵀ and x_s x_sᵀ, and over s ≥ 0 of y_s x_sᵀ, y_s y_sᵀ and of the
    observed x_s x_sᵀ. A row with a missing coordinate counts as missing in the sums with y.
    """

    def emission(x, y):
        seen = ~jnp.isnan(y).any()
        y = jnp.where(seen, y, 0)
        return {"yx": jnp.outer(y, x), "yy": jnp.outer(y, y), "xx_seen": seen * jnp.outer(x, x)}

    def first(x, y):
        zero = jnp.zeros((x.size, x.size), x.dtype)
        return {"pp": zero, "xp": zero, "xx": zero, **emission(x, y)}

    def increment(x_previous, x, y):
        transition = {
            "pp": jnp.outer(x_previous, x_previous),
            "xp": jnp.outer(x, x_previous),
            "xx": jnp.outer(x, x),
        }
        return {**transition, **emission(x, y)}

    return AdditiveFunctional(first, increment)


class SmootherCarry(NamedTuple):
    seen: Int[Array, ""]
    particles: Particles
    F: Running


class AdditiveSmoother(FirstRowApart):
    """The expectation of one additive functional under a fixed q, online, without any gradient.

    `init` returns a carry, and `step` the next and E_{q_{0:t}}[Σ_{s≤t} h_s].
    """

    functional: AdditiveFunctional
    num_particles: int = eqx.field(static=True)
    weights: AbstractWeights = SelfNormalized()

    def __check_init__(self):
        if self.num_particles < 1:
            raise ValueError(f"num_particles must be at least 1, not {self.num_particles}.")

    def check_family(self, q):
        pass

    def first(self, p, q, y, u, key) -> tuple[SmootherCarry, PyTree]:
        particles = draw(q, first_state(p, q, y, u), self.num_particles, key=key)
        F = self.functional.at_first(particles.xi, y)
        return self._conclude(particles, Running.zeros(len(F), F.shape[1:], F.dtype), F, y)

    def later(self, p, q, carry, y, u, key) -> tuple[SmootherCarry, PyTree]:
        key_draw, key_pairs = jax.random.split(key)
        previous = carry.particles
        particles = draw(q, q.update(p, previous.state, y, u), self.num_particles, key=key_draw)
        kernels = backward_kernels(q.kernel(p, particles.state), previous, particles.xi)
        pairs = self.weights.pairs(kernels, previous.z, key=key_pairs)
        h = self.functional.average(pairs, previous.xi, particles.xi, y)
        return self._conclude(particles, carry.F, pairs.average(carry.F.at_samples) + h, y)

    def _conclude(self, particles, running, F, y):
        mean = self.weights.marginal(particles.z).average(F)[0]
        running, total, _ = running.advance(F - mean, mean, mean)
        return SmootherCarry(jnp.asarray(NOT_SEEN), particles, running), self.functional.restore(total, particles.xi, y)
