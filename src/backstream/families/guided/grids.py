"""Moments of unnormalized densities in at most three dimensions, on small grids that follow the mass.

A grid is a lattice of nodes ξ in a frame (center c, lower-triangular factor C), at the points c + C ξ. The lattice rule
is exact to rounding for what is smooth on the scale of its spacing. So the frame is moved and rescaled until the
density looks like a standard normal law in it; then the sums over the nodes are the moments.

`fit` has a derivative: the frame is found without one, frozen, and the sums are differentiated at its nodes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import small_matrices as small

Density = Callable[[Float[Array, "j n r"]], Float[Array, "j n"]]
"""Log densities of j unnormalized laws, each at its own n points. A pytree, so that it can be differentiated."""

MAX_TURNS = 24
SHRINK = 0.3
"""A frame shrinks at most to this fraction in one turn: what lies between two nodes is not trusted."""
STEP_LENGTHS = 10


class Mesh(NamedTuple):
    """A lattice: nodes along each axis, and their spacing in units of the frame."""

    nodes: int
    spacing: float

    @property
    def reach(self) -> float:
        return self.spacing * (self.nodes - 1) / 2

    def points(self, dim: int, dtype) -> Float[Array, "n r"]:
        axis = self.spacing * (np.arange(self.nodes) - (self.nodes - 1) / 2)
        return jnp.asarray(np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, dim), dtype)


SINGLE = {1: Mesh(41, 0.25), 2: Mesh(13, 0.7), 3: Mesh(9, 0.95)}
"""Where one grid serves all columns, by dimension."""
MANY = {1: Mesh(17, 0.6), 2: Mesh(11, 0.85), 3: Mesh(7, 1.15)}
"""Where each group of columns has its own."""


class Frame(NamedTuple):
    center: Float[Array, "j r"]
    factor: Float[Array, "j r r"]

    def at(self, nodes: Float[Array, "n r"]) -> Float[Array, "j n r"]:
        return self.center[:, None] + jnp.einsum("jik,nk->jni", self.factor, nodes)


class GridMoments(NamedTuple):
    """Means, lower factors of the covariances and log integrals of j densities."""

    mean: Float[Array, "j r"]
    factor: Float[Array, "j r r"]
    log_mass: Float[Array, " j"]


class _Sums(NamedTuple):
    """What one look at the nodes gives, in units of the frame."""

    mean: Float[Array, "j r"]
    cov: Float[Array, "j r r"]
    log_mass: Float[Array, " j"]


@eqx.filter_custom_jvp
def fit(density: Density, start: Frame, mesh: Mesh) -> GridMoments:
    """The moments of each density, from a grid that starts at `start` and follows the mass."""
    return _follow(density, start, mesh)[1]


@fit.def_jvp
def _fit_jvp(primals, tangents):
    density, start, mesh = primals
    frame, _ = _follow(density, start, mesh)
    return eqx.filter_jvp(lambda density: read(density, frame, mesh), (density,), (tangents[0],))


def read(density: Density, frame: Frame, mesh: Mesh) -> GridMoments:
    """The moments that a grid in the given frame shows."""
    nodes = mesh.points(frame.center.shape[-1], frame.center.dtype)
    return _restore(_sum(density(frame.at(nodes)), nodes), frame, mesh)


def _sum(log_values: Float[Array, "j n"], nodes: Float[Array, "n r"]) -> _Sums:
    """Nodes where a density is not finite are left out. One that is finite nowhere has no mass, and spreads evenly."""
    finite = jnp.isfinite(log_values)
    found = finite.any(1, keepdims=True)
    log_values = jnp.where(found, jnp.where(finite, log_values, -jnp.inf), 0.0)
    top = jax.lax.stop_gradient(log_values.max(1, keepdims=True))
    weights = jnp.exp(log_values - top)
    total = weights.sum(1)
    weights = weights / total[:, None]
    mean = weights @ nodes
    apart = nodes - mean[:, None]
    log_mass = jnp.where(found[:, 0], top[:, 0] + jnp.log(total), -jnp.inf)
    return _Sums(mean, jnp.einsum("jn,jni,jnk->jik", weights, apart, apart), log_mass)


def _restore(sums: _Sums, frame: Frame, mesh: Mesh) -> GridMoments:
    r = frame.center.shape[-1]
    eye = jnp.eye(r, dtype=frame.center.dtype)
    return GridMoments(
        frame.center + small.apply(frame.factor, sums.mean),
        frame.factor @ small.cholesky(sums.cov + 1e-6 * eye, 1e-12),
        sums.log_mass + r * math.log(mesh.spacing) + small.log_det(frame.factor),
    )


def _follow(density: Density, start: Frame, mesh: Mesh) -> tuple[Frame, GridMoments]:
    """The frame in which the mass lies well, and the moments that it shows."""
    r = start.center.shape[-1]
    nodes = mesh.points(r, start.center.dtype)

    def turn(loop):
        i, frame, _, _, _ = loop
        log_values = density(frame.at(nodes))
        sums = _sum(log_values, nodes)
        # Along each axis given those before it: a ridge between the nodes has variances of one, too.
        narrowest = jnp.diagonal(small.cholesky(sums.cov, 0.0), axis1=1, axis2=2) ** 2
        widest = jnp.diagonal(sums.cov, axis1=1, axis2=2)
        fits = (jnp.abs(sums.mean) < 0.25 * mesh.reach).all(1) & (narrowest > 0.3).all(1) & (widest < 1.7).all(1)
        at_edge = (jnp.abs(sums.mean) > 0.6 * mesh.reach).any(1) & ~fits
        moved = _moved(frame, sums)
        moved = jax.lax.cond(
            at_edge.any(),
            lambda: _choose(at_edge, _leap(density, frame, moved, log_values, nodes), moved),
            lambda: moved,
        )
        return i + 1, _choose(fits, frame, moved), frame, _restore(sums, frame, mesh), fits

    size = len(start.center)
    blank = GridMoments(start.center, start.factor, jnp.zeros(size, start.center.dtype))
    loop = (0, start, start, blank, jnp.zeros(size, bool))
    _, _, frame, moments, _ = jax.lax.while_loop(lambda loop: (loop[0] < MAX_TURNS) & ~loop[4].all(), turn, loop)
    return frame, moments


def _choose(condition: Array, this: Frame, that: Frame) -> Frame:
    return Frame(
        jnp.where(condition[:, None], this.center, that.center),
        jnp.where(condition[:, None, None], this.factor, that.factor),
    )


def _moved(frame: Frame, sums: _Sums) -> Frame:
    """The frame of the moments seen."""
    eye = jnp.eye(frame.center.shape[-1], dtype=frame.center.dtype)
    return Frame(
        frame.center + small.apply(frame.factor, sums.mean),
        frame.factor @ small.cholesky(sums.cov + SHRINK**2 * eye, 1e-6),
    )


def _leap(density: Density, frame: Frame, moved: Frame, log_values: Array, nodes: Array) -> Frame:
    """Where the mass lies at or beyond the edge: a Newton step on the quadratic fitted to the nodes, of the best
    length."""
    finite = jnp.isfinite(log_values)
    lowest = jnp.min(jnp.where(finite, log_values, jnp.inf), 1, keepdims=True)
    values = jnp.where(finite, log_values, jnp.where(jnp.isfinite(lowest), lowest, 0.0))
    weights = jnp.exp(-0.5 * (nodes**2).sum(1))
    weights = weights / weights.sum()
    values = values - (values @ weights)[:, None]
    # Least squares with symmetric weights; exact for a quadratic, however long and narrow.
    second, fourth = weights @ nodes[:, 0] ** 2, weights @ nodes[:, 0] ** 4
    gradient = (values * weights) @ nodes / second
    products = -jnp.einsum("jn,ni,nk->jik", values * weights, nodes, nodes)
    on_diagonal = jnp.eye(nodes.shape[1], dtype=bool)
    curvature = products * jnp.where(on_diagonal, 2 / (fourth - second**2), 1 / second**2)
    root = small.inverse(small.cholesky(curvature, 0.05))
    up = small.transpose(root)
    step = small.apply(frame.factor, small.apply(up, small.apply(root, gradient)))
    lengths = 4.0 ** -jnp.arange(STEP_LENGTHS, dtype=nodes.dtype)
    candidates = jnp.concatenate(
        [frame.center[:, None] + lengths[:, None] * step[:, None], moved.center[:, None]], axis=1
    )
    height = density(candidates)
    best = jnp.argmax(jnp.where(jnp.isfinite(height), height, -jnp.inf), 1)
    fitted = frame.factor @ up
    factor = small.cholesky(fitted @ small.transpose(fitted), float(jnp.finfo(nodes.dtype).tiny) * 1e6)
    return Frame(
        jnp.take_along_axis(candidates, best[:, None, None], 1)[:, 0],
        jnp.where((best == 0)[:, None, None], factor, frame.factor),
    )
