"""The ways to multiply a prediction with an emission, all in the coordinates z in which the prediction is N(0, I).

Which one a model takes is found once, by `plan`. Each is a value that is called with the model, the row, the inputs and
the prediction, and returns a `Tilted` law: the posterior of z, and the log density of the row given all rows before it.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from backstream.models.base import Inputs, StateSpaceModel, emission_law
from backstream.models.laws import NORMALS, ByName, Law, columns_of, seen_factor

from . import small_matrices as small
from .closed_forms import LOG_2PI, Tilted, condition
from .constants import Constant
from .grids import SINGLE, Frame, GridMoments, fit
from .laws import Row, column_log_probs
from .predictors import Predictors
from .propagation import CavityDensity, Lift, propagate
from .windows import fit_windows


class Predicted(NamedTuple):
    """N(mean, factor factorᵀ), with the number of the row, from which points are drawn where an update needs any."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    t: Array

    def at(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.mean + self.factor @ z

    def along(self, function) -> tuple[Array, Array]:
        """function(mean), and its derivatives along the columns of the factor, as a last axis."""
        value, push = jax.linearize(function, self.mean)
        return value, jax.vmap(push, in_axes=1, out_axes=-1)(self.factor)


class Update(eqx.Module):
    @abstractmethod
    def __call__(self, p: StateSpaceModel, row: Row, u: Inputs, predicted: Predicted) -> Tilted:
        """The moments of N(0, I) × emission in the coordinates of the prediction."""

    def assumed(self, p: StateSpaceModel, row: Row, u: Inputs, predicted: Predicted, z: Float[Array, " d"]) -> Array:
        """The log density of the row at z, as this update takes it to be: that of the model, if the plan is right."""
        return column_log_probs(emission_law(p, predicted.at(z), u), row).sum()

    def pieces(self, p: StateSpaceModel, row: Row, u: Inputs, predicted: Predicted) -> Tilted:
        """The same for j predictions, each product in m pieces that add up to it: with axes [j, m]."""

        def one(mean, factor):
            return self(p, row, u, Predicted(mean, factor, predicted.t))

        return jax.tree.map(lambda leaf: leaf[:, None], jax.vmap(one)(predicted.mean, predicted.factor))


class NormalColumns(eqx.Module):
    """Columns that are normal around a function of the state, with noise that does not depend on it."""

    def location(self, law: Law) -> Float[Array, " c"]:
        loc = law.loc if isinstance(law, NORMALS) else columns_of(law).loc
        return jnp.broadcast_to(loc, law.event_shape)

    def whitener(self, law: Law, row: Row):
        """A function that divides columns by their noise, with zeros for what is missing; and the log scale it takes
        out."""
        missing = (~row.seen).sum() * 0.5 * LOG_2PI
        if isinstance(law, NORMALS):
            factor = seen_factor(jnp.asarray(law.covariance_matrix), row.seen)

            def whiten(columns):
                kept = jnp.where(row.seen.reshape(-1, *[1] * (columns.ndim - 1)), columns, 0.0)
                return solve_triangular(factor, kept, lower=True)

            return whiten, jnp.log(jnp.diagonal(factor)).sum() - missing
        scale = jnp.where(row.seen, jnp.broadcast_to(columns_of(law).scale, law.event_shape), 1.0)

        def divide(columns):
            shape = (-1, *[1] * (columns.ndim - 1))
            return jnp.where(row.seen.reshape(shape), columns / scale.reshape(shape), 0.0)

        return divide, jnp.log(scale).sum() - missing

    def log_density(self, law: Law, row: Row, location: Float[Array, " c"]) -> Array:
        """Of the row around another location, with the noise of `law`."""
        whiten, log_scale = self.whitener(law, row)
        residual = whiten(row.y - location)
        return -0.5 * (residual**2).sum() - 0.5 * len(residual) * LOG_2PI - log_scale


class Closed(Update):
    """Normal columns whose mean is affine in the state: the Kalman update."""

    columns: NormalColumns = NormalColumns()

    def __call__(self, p, row, u, predicted):
        location, slope = predicted.along(lambda x: self.columns.location(emission_law(p, x, u)).astype(x.dtype))
        whiten, log_scale = self.columns.whitener(emission_law(p, predicted.mean, u), row)
        tilted = condition(whiten(slope), whiten(row.y - location))
        return tilted._replace(log_mass=tilted.log_mass - log_scale)

    def assumed(self, p, row, u, predicted, z):
        location, slope = predicted.along(lambda x: self.columns.location(emission_law(p, x, u)).astype(x.dtype))
        return self.columns.log_density(emission_law(p, predicted.mean, u), row, location + slope @ z)


class Groups(eqx.Module):
    """Which columns are read together, and along which directions of the state."""

    members: Constant = eqx.field(static=True)
    """[groups, columns], 0 or 1."""
    rank: int = eqx.field(static=True)
    basis: Constant | None = eqx.field(static=True)
    """[groups, rank, d]: the directions, where they are the same for all rows. Or else they are those of the
    predictors."""
    mixing: Constant | None = eqx.field(static=True)
    """[groups, rank, columns · predictors + d]: which combinations of the predictors' slopes, and of the axes where
    these are too few, span a group's directions. None where each group is one column with as many predictors as
    directions."""

    @property
    def owner(self) -> np.ndarray:
        """The group of each column."""
        return self.members.value.argmax(0)

    @property
    def single(self) -> bool:
        return len(self.members.value) == 1

    def fixed(self, factor: Float[Array, "d d"]) -> Float[Array, "j r d"]:
        assert self.basis is not None
        return self._orthonormal(jnp.asarray(self.basis.value, factor.dtype) @ factor)

    def spanned(self, slopes: Float[Array, "c p d"]) -> Float[Array, "j r d"]:
        d = slopes.shape[-1]
        rows = slopes.reshape(-1, d)
        size = jnp.sqrt((rows**2).sum(1, keepdims=True))
        rows = rows / jnp.where(size > 0, size, 1.0)
        if self.mixing is None:
            return self._orthonormal(rows.reshape(slopes.shape))
        rows = jnp.concatenate([rows, jnp.eye(d, dtype=rows.dtype)])
        return self._orthonormal(jnp.asarray(self.mixing.value, slopes.dtype) @ rows)

    def _orthonormal(self, rows: Float[Array, "j r d"]) -> Float[Array, "j r d"]:
        d = rows.shape[-1]
        if self.single and self.rank == d:
            return jnp.eye(d, dtype=rows.dtype)[None]
        return small.orthonormal_rows(rows)


class AffineDensity(eqx.Module):
    """Groups of columns whose predictors are affine in z. The model is not called."""

    predictors: Predictors
    groups: Groups
    emission: ByName
    row: Row
    center: Float[Array, "c p"]
    slope: Float[Array, "c p r"]

    def __call__(self, s: Float[Array, "j n r"], lift: Lift) -> Float[Array, "j n"]:
        moved = jnp.einsum("cpr,cnr->cnp", self.slope, s[self.groups.owner])
        values, law = self.center[:, None] + moved, self.emission.law
        terms = jax.vmap(lambda at: self.predictors.log_prob(law, at, self.row), 1, 1)(values)
        members = self.groups.members.value
        if np.array_equal(members, np.eye(len(members))):
            return terms
        return jnp.asarray(members, terms.dtype) @ terms


class ModelDensity(eqx.Module):
    """Groups of columns of any law: the model is called at every node."""

    p: StateSpaceModel
    groups: Groups
    row: Row
    u: Inputs
    predicted: Predicted

    def __call__(self, s: Float[Array, "j n r"], lift: Lift) -> Float[Array, "j n"]:
        def terms(z):
            return column_log_probs(emission_law(self.p, self.predicted.at(z), self.u), self.row)

        members = jnp.asarray(self.groups.members.value, s.dtype)
        return jax.vmap(lambda zs, own: jax.vmap(lambda z: terms(z) @ own)(zs))(lift(s), members)


class Propagated(Update):
    """Every column reads at most three directions of the state: one grid, or one for each group of columns."""

    groups: Groups
    predictors: Predictors | None
    """Where the columns' laws have predictors that are affine in the state."""

    def __call__(self, p, row, u, predicted):
        directions, density = self._density(p, row, u, predicted)
        if not self.groups.single:
            return propagate(density, directions)
        r, dtype = self.groups.rank, directions.dtype
        start = Frame(jnp.zeros((1, r), dtype), jnp.eye(r, dtype=dtype)[None])
        found = fit(_product(density, directions[0]), start, SINGLE[r])
        return _lifted(directions[0], *jax.tree.map(lambda leaf: leaf[0], found))

    def pieces(self, p, row, u, predicted):
        """One grid may show several modes. Expectation propagation leaves each product in one piece."""
        if not self.groups.single:
            return super().pieces(p, row, u, predicted)
        count, r = len(predicted.mean), self.groups.rank
        found = fit_windows(Products(self, p, row, u, predicted), count, r, predicted.mean.dtype)

        def one(mean, factor, pieces: GridMoments) -> Tilted:
            directions = self._density(p, row, u, Predicted(mean, factor, predicted.t))[0][0]
            return jax.vmap(lambda piece: _lifted(directions, *piece))(pieces)

        found = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), found)
        return jax.vmap(one)(predicted.mean, predicted.factor, found)

    def assumed(self, p, row, u, predicted, z):
        directions, density = self._density(p, row, u, predicted)
        along = jnp.swapaxes(directions, 1, 2)
        lift = Lift(jnp.zeros_like(z), along, jnp.zeros(directions.shape[:2], z.dtype))
        return density((directions @ z)[:, None], lift).sum()

    def log_product(self, p, row, u, predicted, w: Float[Array, "n r"]) -> Float[Array, " n"]:
        """log of prediction × emission at points along the directions of the one group."""
        directions, density = self._density(p, row, u, predicted)
        return _product(density, directions[0])(w[None])[0]

    def _density(self, p, row, u, predicted):
        if self.predictors is None:
            return self.groups.fixed(predicted.factor), ModelDensity(p, self.groups, row, u, predicted)
        read = self.predictors
        center, slopes = predicted.along(lambda x: read.of(emission_law(p, x, u)).astype(x.dtype))
        directions = self.groups.spanned(slopes)
        slope = jnp.einsum("cpd,crd->cpr", slopes, directions[self.groups.owner])
        emission = ByName.of(emission_law(p, predicted.mean, u))
        return directions, AffineDensity(read, self.groups, emission, row, center, slope)


class Products(eqx.Module):
    """Prediction × emission for j predictions."""

    update: Propagated
    p: StateSpaceModel
    row: Row
    u: Inputs
    predicted: Predicted

    def __call__(self, w: Float[Array, "j n r"]) -> Float[Array, "j n"]:
        def one(mean, factor, w):
            predicted = Predicted(mean, factor, self.predicted.t)
            return self.update.log_product(self.p, self.row, self.u, predicted, w)

        return jax.vmap(one)(self.predicted.mean, self.predicted.factor, w)


def _product(density, directions: Float[Array, "r d"]) -> CavityDensity:
    """N(0, I) × the density of one group, along its directions."""
    r, d = directions.shape
    eye, zero = jnp.eye(r, dtype=directions.dtype), jnp.zeros(r, directions.dtype)
    lift = Lift(jnp.zeros(d, directions.dtype), directions.T[None], zero[None])
    return CavityDensity(density, lift, zero[None], eye[None])


def _lifted(directions: Float[Array, "r d"], mean: Array, factor: Array, log_mass: Array) -> Tilted:
    """The law of z, from the one along the directions; across them it is as before."""
    r, d = directions.shape
    across = directions.T @ (factor - jnp.eye(r, dtype=factor.dtype)) @ directions
    return Tilted(directions.T @ mean, jnp.eye(d, dtype=directions.dtype) + across, log_mass)
