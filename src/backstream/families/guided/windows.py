"""Prediction × emission in several pieces, where it has several modes.

A coarse grid over the prediction, in the directions that the emission reads, shows where the mass is. Two normal laws
are fitted to it. Their responsibilities add up to one at every point: they cut the product into pieces, of each of
which the moments are read on a fine grid. The masses of the pieces add up to that of the whole, whatever the cut.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.laws.gaussian import cholesky
from backstream.laws.mixture import Mixture, fit_mixture

from .grids import MANY, Density, Frame, GridMoments, Mesh, fit

NUM_WINDOWS = 2
COARSE = {1: Mesh(33, 0.3), 2: Mesh(13, 0.7), 3: Mesh(7, 1.2)}
LEAST_NODES = {1: 5.0, 2: 9.0, 3: 14.0}
"""The density is raised to a power below one until so many nodes of the coarse grid count."""
POWERS = 6
TURNS = 8
"""Of expectation maximization."""
NARROWEST = 0.3
"""The standard deviation that is added to a window's, in units of the coarse spacing."""
ACROSS = 0.3
"""The share of the largest variance that a window has at the start, when two are put next to each other."""


class Windowed(eqx.Module):
    """Densities times the responsibility of one window, for all windows: j densities with m windows are j·m."""

    density: Density
    windows: Mixture
    """With a leading axis of j."""

    def __call__(self, w: Float[Array, "jm n r"]) -> Float[Array, "jm n"]:
        count = NUM_WINDOWS
        r = w.shape[-1]
        grouped = w.reshape(-1, count * w.shape[1], r)
        values = self.density(grouped).reshape(*w.shape[:2])

        def log_shares(window: Mixture, points):
            log_terms = window.log_weight + jax.vmap(window.component_log_probs)(points)
            return jax.nn.log_softmax(log_terms, axis=1)

        shares = jax.vmap(log_shares)(self.windows, grouped).reshape(-1, count, w.shape[1], count)
        own = jnp.moveaxis(jnp.diagonal(shares, axis1=1, axis2=3), -1, 1)
        return values + own.reshape(*w.shape[:2])


def fit_windows(density: Density, pieces: int, r: int, dtype) -> GridMoments:
    """The moments of the windows' pieces of each density, in the order of the densities."""
    mesh = COARSE[r]
    nodes = mesh.points(r, dtype)
    seen = jax.lax.stop_gradient(density(jnp.broadcast_to(nodes, (pieces, *nodes.shape))))
    windows = jax.lax.stop_gradient(jax.vmap(lambda values: find_windows(values, nodes, mesh))(seen))
    start = Frame(windows.mean.reshape(-1, r), windows.factor.reshape(-1, r, r))
    return fit(Windowed(density, windows), start, MANY[r])


def find_windows(log_values: Float[Array, " n"], nodes: Float[Array, "n r"], mesh: Mesh) -> Mixture:
    """Two normal laws that together have the shape of the density at the nodes."""
    r, dtype = nodes.shape[1], nodes.dtype
    weight = _tempered(log_values, LEAST_NODES[r])
    ridge = (NARROWEST * mesh.spacing) ** 2 * jnp.eye(r, dtype=dtype)
    mean = weight @ nodes
    apart = nodes - mean
    cov = apart.T @ (weight[:, None] * apart) + ridge
    axis = _leading_axis(cov)
    variance = axis @ cov @ axis
    offsets = jnp.linspace(-1, 1, NUM_WINDOWS, dtype=dtype)[:, None] * jnp.sqrt(variance) * axis
    narrow = cholesky(cov - (1 - ACROSS) * variance * jnp.outer(axis, axis))
    start = Mixture.of(jnp.ones(NUM_WINDOWS, dtype), mean + offsets, jnp.broadcast_to(narrow, (NUM_WINDOWS, r, r)))
    return fit_mixture(start, nodes, weight, ridge, TURNS)


def _tempered(log_values: Float[Array, " n"], least: float) -> Float[Array, " n"]:
    """Weights of the nodes, from the highest power of the density with which enough of them count."""
    finite = jnp.isfinite(log_values)
    values = jnp.where(finite, log_values, -jnp.inf)
    top = jnp.where(finite.any(), values.max(), 0.0)
    values = jnp.where(finite.any(), jnp.maximum(values - top, -1e6), 0.0)
    powers = 4.0 ** -jnp.arange(POWERS, dtype=values.dtype)
    weights = jax.nn.softmax(powers[:, None] * values, axis=1)
    enough = 1 / (weights**2).sum(1) >= least
    return weights[jnp.where(enough.any(), jnp.argmax(enough), POWERS - 1)]


def _leading_axis(cov: Float[Array, "r r"]) -> Float[Array, " r"]:
    """The direction of the largest variance, from a high power of the matrix."""
    power = cov / jnp.trace(cov)
    for _ in range(5):
        power = power @ power
        power = power / jnp.trace(power)
    axis = power[:, jnp.argmax(jnp.diagonal(power))]
    return axis / jnp.sqrt((axis**2).sum())
