"""The posterior of a model with many states: Hamiltonian Monte Carlo over windows of the path.

The law of x_t given y_0, …, y_t is that of the last state of a window that ends at t. It starts from the normal law
with the mean and covariance that were found for the row `window` rows before: what is wrong with that law is forgotten
within the window, and half the window is the proof. Smoothing takes one window over all rows.
"""

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from benchmarks.zoo import gaussian_filters, laws
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.references.hamiltonian import sample_window

SHRINKAGE = 0.75
"""Of a start law's covariance towards a multiple of the Gaussian approximation's, which is far less noisy than one of a
few hundred draws."""
BRIDGE_STEPS = 50


@dataclass(frozen=True)
class Chains:
    """`chains` chains for each row, of `draws` draws."""

    window: int = 10
    chains: int = 8
    draws: int = 40
    name: str = "chains"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        ys, us = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)
        guess = gaussian_filters.ukf(model, ys, us).smoothed_mean
        found = []
        for part in (1, 2):
            key = jax.random.fold_in(jax.random.key(seed), part)
            window, draws = self.window // part, self.draws // part
            posterior = chain_smoother(model, ys, us, guess, window, self.chains, draws, key)
            found.append(Posterior(*map(np.asarray, posterior)))
        return found[0], found[1], f"{self.chains} × {self.draws} draws"


@eqx.filter_jit
def chain_smoother(model, ys: jax.Array, us, guess: jax.Array, window: int, chains: int, draws: int, key) -> Posterior:
    """Filter, smoother and log scores. Chains start near the path `guess`."""
    key_filter, key_smoother, key_score = jax.random.split(key, 3)
    *filtered, states = chain_filter(model, ys, us, guess, window, chains, draws, key_filter)
    whole = draw_paths(model, ys, us, guess, chains, 2 * draws, key_smoother)
    return Posterior(*filtered, *moments(whole), _log_scores(model, states, ys, us, key_score))


@eqx.filter_jit
def chain_filter(model, ys: jax.Array, us, guess: jax.Array, window: int, chains: int, draws: int, key):
    """Mean (T, d), covariance and draws (T, n, d) of each row's state, given all rows up to it."""
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))
    d = prior.event_shape[0]
    sample = partial(sample_window, model, ys, us, guess, chains)

    def row(known, part):
        means, factors = known
        t, key = part
        before = jnp.maximum(t - window, 0)
        drawn = sample(t, window, draws, (means[before], factors[before]), key)
        states = drawn.states[:, -1]
        mean, cov = moments(states[:, None])
        factor = _start_factor(cov[0], drawn.precision_factor)
        return (means.at[t].set(mean[0]), factors.at[t].set(factor)), (mean[0], cov[0], states)

    unknown = jnp.zeros((len(ys), d)), jnp.broadcast_to(jnp.eye(d), (len(ys), d, d))
    return jax.lax.scan(row, unknown, (jnp.arange(len(ys)), jax.random.split(key, len(ys))))[1]


@eqx.filter_jit
def draw_paths(model, ys: jax.Array, us, guess: jax.Array, chains: int, draws: int, key: jax.Array) -> jax.Array:
    """Paths (draws · chains, T, d) of all states given all rows, the chains' first draws first."""
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))
    start, last = (laws.mean(prior), laws.normal_factor(prior)), len(ys) - 1
    return sample_window(model, ys, us, guess, chains, last, last, draws, start, key).states


def split_rhat(states: jax.Array, chains: int) -> jax.Array:
    """Of draws (draws · chains, k, d): the scale reduction of Gelman and Rubin for each state, halves taken as chains.

    It is near 1 where chains and their halves agree.
    """
    each = states.reshape(-1, chains, *states.shape[1:])
    half = len(each) // 2
    parts = jnp.concatenate([each[:half], each[half : 2 * half]], axis=1)
    within, between = parts.var(0, ddof=1).mean(0), parts.mean(0).var(0, ddof=1)
    return jnp.sqrt((half - 1) / half + between / within)


def moments(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means (k, d) and covariances (k, d, d) of windows (n, k, d)."""
    away = draws - draws.mean(0)
    return draws.mean(0), jnp.einsum("ski,skj->kij", away, away) / len(draws)


def _start_factor(cov: jax.Array, precision_factor: jax.Array) -> jax.Array:
    """The Cholesky factor of a covariance of draws, shrunk in the coordinates of the Gaussian approximation."""
    standard = precision_factor.T @ cov @ precision_factor
    eye = jnp.eye(len(cov))
    shrunk = (1 - SHRINKAGE) * standard + SHRINKAGE * jnp.trace(standard) / len(cov) * eye
    root = solve_triangular(precision_factor.T, jnp.linalg.cholesky(shrunk), lower=False)
    return jnp.linalg.cholesky(root @ root.T)


def _log_scores(model, filtered: jax.Array, ys: jax.Array, us, key: jax.Array) -> jax.Array:
    """log p(y_t | y_0, …, y_{t-1}) by a bridge between draws of the prediction and of the filter."""

    def row(before, after, y, u, first, key):
        keys = jax.random.split(key, len(before))
        moved = jax.vmap(lambda x, key: model.transition(x, u).sample(key))(before, keys)
        predicted = jnp.where(first, jax.vmap(lambda key: model.prior(u).sample(key))(keys), moved)
        log_g = jax.vmap(lambda x: laws.log_emission(model, x, y, u))
        at_predicted, at_filtered = log_g(predicted), log_g(after)

        def bridge(_, log_z):  # Meng and Wong's optimal one, for as many draws of each
            above = logsumexp(at_predicted - jnp.logaddexp(at_predicted, log_z))
            below = logsumexp(-jnp.logaddexp(at_filtered, log_z))
            return above - below

        return jax.lax.fori_loop(0, BRIDGE_STEPS, bridge, at_filtered.mean())

    before = jnp.concatenate([filtered[:1], filtered[:-1]])
    rows = before, filtered, ys, us, jnp.arange(len(ys)) == 0, jax.random.split(key, len(ys))
    return jax.lax.map(lambda part: row(*part), rows)
