"""Filtering by particles and smoothing by Hamiltonian Monte Carlo over the whole path.

For states that are known far less well than they move: backward simulation finds few particles there that could have
moved to a given place.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import gaussian_filters, laws
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.references.chains import moments
from benchmarks.zoo.references.hamiltonian import sample_window
from benchmarks.zoo.references.particles import Particles


@dataclass(frozen=True)
class Paths:
    """At most `most_runs` runs of the particle filter, and paths by `chains` chains of `draws` draws."""

    most_runs: int = 2
    chains: int = 8
    draws: int = 300
    name: str = "paths"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        *filtered, effort = Particles(most_runs=self.most_runs).run(model, data, seed)
        ys, us = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)
        guess = gaussian_filters.ukf(model, ys, us).smoothed_mean
        found = []
        for part, posterior in zip((1, 2), filtered, strict=True):
            key = jax.random.fold_in(jax.random.key(seed), part)
            mean, cov = path_moments(model, ys, us, guess, self.chains, self.draws // part, key)
            found.append(posterior._replace(smoothed_mean=np.asarray(mean), smoothed_cov=np.asarray(cov)))
        return found[0], found[1], f"{effort}, {self.chains} × {self.draws} paths"


@eqx.filter_jit
def path_moments(model, ys: jax.Array, us, guess: jax.Array, chains: int, draws: int, key: jax.Array):
    """Means and covariances of all states given all rows."""
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))
    start = laws.mean(prior), laws.normal_factor(prior)
    last = len(ys) - 1
    return moments(sample_window(model, ys, us, guess, chains, last, last, draws, start, key).states)
