"""Draws of the states of a window of rows, given all rows up to its end, by Hamiltonian Monte Carlo.

Chains move in coordinates in which the Gaussian approximation of the window is standard normal.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from benchmarks.zoo import laws

TRAJECTORY = 2.4
"""The length of a Hamiltonian trajectory in coordinates of unit variance: beyond π/2, so that draws alternate around
the mean and their average converges faster than that of independent ones."""
WARM_UP = 10
NEWTON_STEPS = 10


class Drawn(NamedTuple):
    """Draws of the states of a window."""

    states: jax.Array  # (n, window + 1, d)
    precision_factor: jax.Array  # (d, d), lower triangular: of the last state in the Gaussian approximation


def sample_window(model, ys, us, guess, chains: int, t, window: int, draws: int, start, key: jax.Array) -> Drawn:
    """chains · draws draws of the states of rows t − window, …, t given all rows up to t.

    `start` has the mean and the factor of the law of the first of them, given all rows up to it. Chains start near the
    path `guess`. Transitions must be normal, with a regular covariance that does not depend on the state.
    """
    rows = t - window + jnp.arange(window + 1)
    at = jnp.maximum(rows, 0)
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))
    inputs = jax.tree.map(lambda leaf: leaf[at], us)
    target = Target(model, rows, ys[at], inputs, start, (laws.mean(prior), laws.normal_factor(prior)))

    def newton(_, x):
        L, W = _factor(*target.precision(x))
        gradient = jax.grad(target.log_prob)(x)
        return x + 0.5 * _from_standard(L, W, _to_standard(L, W, gradient))

    first = jnp.where(rows[:, None] < 0, 0.0, guess[at])
    center = jax.lax.fori_loop(0, NEWTON_STEPS, newton, first)
    L, W = _factor(*target.precision(center))

    def log_prob(z):
        return target.log_prob(center + _from_standard(L, W, z))

    z = _hamiltonian(jax.value_and_grad(log_prob), center.shape, chains, draws, key)
    states = jax.vmap(jax.vmap(lambda z: center + _from_standard(L, W, z)))(z)
    return Drawn(states.reshape(-1, *center.shape), L[-1])


class Target(NamedTuple):
    """The log density of a window (k, d) of states."""

    model: eqx.Module
    rows: jax.Array  # (k,): the row of each state; those before row 0 are standard normal and of no consequence
    ys: jax.Array  # (k, dy)
    us: Any  # with a leading axis of k, or None
    start: tuple[jax.Array, jax.Array]  # mean and factor of the first state's law, used if it is after row 0
    prior: tuple[jax.Array, jax.Array]

    def log_prob(self, x: jax.Array) -> jax.Array:
        seen = jax.vmap(lambda x, y, u: laws.log_emission(self.model, x, y, u))(x, self.ys, self.us)
        moved = jax.vmap(lambda a, b, u: self.model.transition(a, u).log_prob(b))(x[:-1], x[1:], self._later_us())
        from_start = _log_normal(x[0], *self.start)
        at_zero = jax.vmap(lambda x: _log_normal(x, *self.prior))(x)
        unused = -0.5 * (x**2).sum(1)
        inner = jnp.where(self.rows == 0, at_zero, jnp.concatenate([jnp.zeros(1), moved])) + seen
        inner = inner.at[0].set(jnp.where(self.rows[0] > 0, from_start, inner[0]))
        return jnp.where(self.rows < 0, unused, inner).sum()

    def _later_us(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[1:], self.us)

    def precision(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Blocks (k, d, d) of the Gauss–Newton precision on the diagonal, and those (k − 1, d, d) below it."""
        eye = jnp.eye(x.shape[1])

        def information(x, u):
            H = jax.jacfwd(lambda x: laws.mean(self.model.emission(x, u)))(x)
            return H.T @ jnp.linalg.solve(laws.scatter(self.model.emission(x, u)), H)

        def slope(x, u):
            return jax.jacfwd(lambda x: laws.mean(self.model.transition(x, u)))(x)

        later_us = self._later_us()
        Q_inverse = jax.vmap(lambda x, u: jnp.linalg.inv(laws.covariance(self.model.transition(x, u))))(
            x[:-1], later_us
        )
        slopes = jax.vmap(slope)(x[:-1], later_us)
        prior, start = (jnp.linalg.inv(factor @ factor.T) for _, factor in (self.prior, self.start))
        rows, column = self.rows, self.rows[:, None, None]
        own = jnp.where(column == 0, prior, jnp.concatenate([prior[None], Q_inverse]))
        own = own + jax.vmap(information)(x, self.us)
        own = own.at[0].set(jnp.where(rows[0] > 0, start, own[0]))
        real = (column[:-1] >= 0).astype(float)
        left = jnp.einsum("kij,kil,klm->kjm", slopes, Q_inverse, slopes) * real
        diagonal = jnp.where(column < 0, eye, own).at[:-1].add(left)
        return diagonal, -jnp.einsum("kij,kjl->kil", Q_inverse, slopes) * real


def _log_normal(x: jax.Array, mean: jax.Array, factor: jax.Array) -> jax.Array:
    return -0.5 * (solve_triangular(factor, x - mean, lower=True) ** 2).sum() - jnp.log(jnp.diagonal(factor)).sum()


def _factor(diagonal: jax.Array, below: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The block Cholesky factor of a block-tridiagonal matrix: its diagonal blocks and those below."""

    def step(carry, blocks):
        own, lower = blocks
        W = solve_triangular(carry, lower.T, lower=True).T
        L = jnp.linalg.cholesky(own - W @ W.T)
        return L, (L, W)

    first = jnp.linalg.cholesky(diagonal[0])
    _, (L, W) = jax.lax.scan(step, first, (diagonal[1:], below))
    return jnp.concatenate([first[None], L]), W


def _from_standard(L: jax.Array, W: jax.Array, z: jax.Array) -> jax.Array:
    """Solves factor' x = z: turns standard normal windows into those with the precision that was factored."""

    def step(later, blocks):
        L, W, z = blocks
        x = solve_triangular(L.T, z - W.T @ later, lower=False)
        return x, x

    rows = L, jnp.concatenate([W, jnp.zeros_like(L[:1])]), z
    return jax.lax.scan(step, jnp.zeros_like(z[0]), rows, reverse=True)[1]


def _to_standard(L: jax.Array, W: jax.Array, g: jax.Array) -> jax.Array:
    """Solves factor z = g."""

    def step(before, blocks):
        L, W, g = blocks
        z = solve_triangular(L, g - W @ before, lower=True)
        return z, z

    rows = L, jnp.concatenate([jnp.zeros_like(L[:1]), W]), g
    return jax.lax.scan(step, jnp.zeros_like(g[0]), rows)[1]


def _hamiltonian(value_and_grad, shape: tuple[int, ...], chains: int, draws: int, key: jax.Array) -> jax.Array:
    """Draws (draws, chains, *shape) of a law near the standard normal one, after a few that are thrown away."""
    both = jax.vmap(value_and_grad)
    usual = math.prod(shape) ** -0.25  # keeps the acceptance rate with the number of coordinates
    leaps = round(TRAJECTORY / usual)
    axes = tuple(range(1, 1 + len(shape)))

    def step(carry, key):
        z, value, gradient = carry
        key_momentum, key_accept, key_size = jax.random.split(key, 3)
        size = usual * jax.random.uniform(key_size, minval=0.4, maxval=1.2)
        momentum = jax.random.normal(key_momentum, z.shape)

        def leap(_, moving):
            z, p, _, gradient = moving
            p = p + size / 2 * gradient
            z = z + size * p
            value, gradient = both(z)
            return z, p + size / 2 * gradient, value, gradient

        new, p, new_value, new_gradient = jax.lax.fori_loop(0, leaps, leap, (z, momentum, value, gradient))
        change = new_value - value + 0.5 * ((momentum**2).sum(axes) - (p**2).sum(axes))
        accepted = jnp.log(jax.random.uniform(key_accept, change.shape)) < change  # never where it is not finite
        wide = jnp.expand_dims(accepted, axes)
        kept = jnp.where(wide, new, z), jnp.where(accepted, new_value, value), jnp.where(wide, new_gradient, gradient)
        return kept, kept[0]

    key_start, key = jax.random.split(key)
    z = jax.random.normal(key_start, (chains, *shape))
    _, found = jax.lax.scan(step, (z, *both(z)), jax.random.split(key, WARM_UP + draws))
    return found[WARM_UP:]
