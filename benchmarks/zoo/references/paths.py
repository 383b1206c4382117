"""Filtering by particles and smoothing by Hamiltonian Monte Carlo over the whole path.

For states that are known far less well than they move: backward simulation finds few particles there that could have
moved to a given place.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import gaussian_filters
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.references.chains import draw_paths, moments
from benchmarks.zoo.references.particles import particle_filter


@dataclass(frozen=True)
class Paths:
    """A particle filter, and paths by `chains` chains of `draws` draws. The half effort has half of both."""

    number: int = 8192
    chains: int = 8
    draws: int = 60
    name: str = "paths"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        ys, us = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)
        guess = gaussian_filters.ukf(model, ys, us).smoothed_mean
        found = []
        for part in (1, 2):
            key_filter, key_paths = jax.random.split(jax.random.fold_in(jax.random.key(seed), part))
            *filtered, log_score = particle_filter(model, ys, us, self.number // part, key_filter)
            smoothed = path_moments(model, ys, us, guess, self.chains, self.draws // part, key_paths)
            found.append(Posterior(*map(np.asarray, (*filtered, *smoothed, log_score))))
        return found[0], found[1], f"{self.number} particles, {self.chains} × {self.draws} paths"


@eqx.filter_jit
def path_moments(model, ys: jax.Array, us, guess: jax.Array, chains: int, draws: int, key: jax.Array):
    """Means and covariances of all states given all rows."""
    return moments(draw_paths(model, ys, us, guess, chains, draws, key))
