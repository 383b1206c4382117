"""What is read of numpyro's laws: their columns, densities, moments and support."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float
from numpyro.distributions import constraints

from backstream._jax.hashed_keys import is_hashed, threefry

Law = Any
"""A numpyro law. Which attributes it has depends on what it is."""

NORMALS = dist.MultivariateNormal, dist.LowRankMultivariateNormal


def of_vectors(law: Any) -> Any:
    """A law of single numbers as one of vectors with one entry; any other as it is."""
    if isinstance(law, dist.Distribution) and law.event_shape == law.batch_shape == ():
        return law.expand((1,)).to_event(1)
    return law


def draw(law: Law, *, key: Array) -> Float[Array, " n"]:
    """A draw with the floating type of the law's parameters: numpyro draws in JAX's default type.

    Parameters given as Python numbers, which numpyro keeps as NumPy arrays, have no say.
    """
    arrays = [leaf for leaf in jax.tree.leaves(law) if isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf)]
    try:
        value = law.sample(key)
    except NotImplementedError:  # JAX draws counts with keys of its default kind only
        if not is_hashed(key):
            raise
        value = law.sample(threefry(key))
    return jnp.asarray(value, jnp.result_type(*arrays) if arrays else float)


# ---- columns ---------------------------------------------------------------------------------------------------------
def factorizes(law: Law) -> bool:
    """Whether the log density is a sum over columns, each of its own entry of y."""
    return isinstance(law, dist.Independent) and law.base_dist.event_shape == () and law.reinterpreted_batch_ndims == 1


def columns_of(law: Law) -> Law:
    """The law of single numbers whose log density at y has one entry for each column."""
    base = law.base_dist
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base


def is_normal(law: Law) -> bool:
    """Whether a law of vectors is normal; a point is, without variance."""
    return isinstance(columns_of(law) if factorizes(law) else law, (dist.Normal, dist.Delta, *NORMALS))


class ByName(eqx.Module):
    """A law whose leaves are in the order of their names.

    JAX's own order will not do: numpyro keeps the names in a set, so that it differs from process to process. With it
    differ the program that XLA compiles for what is given such a law, and the last bits of what comes of it.
    """

    values: list[Any]
    order: tuple[int, ...] = eqx.field(static=True)
    tree: Any = eqx.field(static=True)

    @classmethod
    def of(cls, law: Law) -> "ByName":
        leaves, tree = jax.tree.flatten(law)
        names = _names_of_leaves(law)
        order = tuple(sorted(range(len(leaves)), key=names.__getitem__))
        return cls([leaves[i] for i in order], order, tree)

    @property
    def law(self) -> Law:
        placed = dict(zip(self.order, self.values, strict=True))
        return jax.tree.unflatten(self.tree, [placed[i] for i in range(len(placed))])


def parameters_of(law: Law) -> tuple[list[Any], Callable[[list[Any]], Law]]:
    """The parameters of a law in the order of their names, and what makes such a law of others."""
    named = ByName.of(law)
    return named.values, lambda values: ByName(list(values), named.order, named.tree).law


def _names_of_leaves(value: Any) -> list[tuple[str, ...]]:
    """Of each of JAX's leaves, the names that lead to it."""
    if not isinstance(value, dist.Distribution):
        return [(f"{i:06d}",) for i in range(len(jax.tree.leaves(value)))]
    children, fields = value.tree_flatten()[0], type(value).gather_pytree_data_fields()
    if len(children) != len(fields):  # a class that takes itself apart, in an order of its own
        fields = [f"{i:06d}" for i in range(len(children))]
    return [(field, *rest) for field, child in zip(fields, children, strict=True) for rest in _names_of_leaves(child)]


def shows_its_parameters(law: Law, y: Array) -> Bool[Array, ""]:
    """Whether the law has independent columns and, rebuilt from its parameters, the same density at y.

    A class of the user's own keeps what it does not list as numpyro's `pytree_data_fields` to itself.
    """
    no = jnp.asarray(False)
    if not factorizes(law):
        return no
    base = columns_of(law)
    leaves, tree = jax.tree.flatten(base)
    try:
        again = jax.tree.unflatten(tree, leaves).log_prob(y)
    except (AttributeError, TypeError, ValueError):
        return no
    return jnp.array_equal(again, base.log_prob(y), equal_nan=True) if leaves else no


def name_of(law: Law) -> str:
    """The class that a user knows it by."""
    return type(columns_of(law) if factorizes(law) else law).__name__


def allows_partial_rows(law: Law) -> bool:
    """Whether the law of some of the columns is known, so that the others may be missing."""
    return factorizes(law) or isinstance(law, NORMALS)


def log_columns(law: Law, y: Array, seen: Bool[Array, " dy"]) -> Float[Array, " c"]:
    """Terms that add up to the log density of what is seen: one a column where the law factorizes, or else one in all.

    A correlated normal law is split by the Cholesky factor of its covariance, each column given those before it. A law
    of any other kind has no columns: a row of which a part is missing is left out. Where nothing is seen `y` must hold
    a point of the support: the density is taken there, too, and its derivatives must be finite.
    """
    if factorizes(law):
        return jnp.where(seen, columns_of(law).log_prob(y), 0.0)
    if isinstance(law, NORMALS):
        factor = seen_factor(jnp.asarray(law.covariance_matrix), seen)
        residual = solve_triangular(factor, jnp.where(seen, y - law.loc, 0.0), lower=True)
        terms = -0.5 * residual**2 - jnp.log(jnp.diagonal(factor)) - 0.5 * math.log(2 * math.pi)
        return jnp.where(seen, terms, 0.0)
    return jnp.where(seen.all(), law.log_prob(y), 0.0)[None]


def seen_factor(cov: Float[Array, "c c"], seen: Bool[Array, " c"]) -> Float[Array, "c c"]:
    """The Cholesky factor of the covariance of the seen columns, with those of the others put at one."""
    return jnp.linalg.cholesky(jnp.where(seen[:, None] & seen, cov, jnp.eye(len(seen), dtype=cov.dtype)))


def log_density(name: str, law: Law, value: Array) -> Array:
    """log p(value), for a law that the method `name` of a model returned."""
    try:
        return jnp.asarray(law.log_prob(value))
    except NotImplementedError as error:
        raise ValueError(f"{name} returns {name_of(law)}, which has no density: its log_prob is missing.") from error


# ---- moments ---------------------------------------------------------------------------------------------------------
def mean_of(law: Law) -> Float[Array, " n"]:
    """The mean of each entry. That of an angle is not wrapped: a state that turns goes on past π."""
    mean = columns_of(law).loc if is_angle(law) else law.mean
    return jnp.broadcast_to(jnp.asarray(mean), law.event_shape)


def variance_of(law: Law) -> Float[Array, " n"]:
    """The variance of each entry. Of an angle, too: numpyro's is the circular one, half as large for a narrow law."""
    variance = _angle_variance(jnp.asarray(columns_of(law).concentration)) if is_angle(law) else law.variance
    return jnp.broadcast_to(jnp.asarray(variance), law.event_shape)


def covariance_of(law: Law) -> Float[Array, "n n"]:
    """The covariance matrix. numpyro's of a multivariate Student-t law is (df − 2) / df times it."""
    cov = jnp.asarray(law.covariance_matrix)
    if isinstance(law, dist.MultivariateStudentT):
        df = jnp.asarray(law.df)
        return jnp.where(df > 2, df / (df - 2), jnp.inf) * cov
    return cov


def is_angle(law: Law) -> bool:
    return factorizes(law) and isinstance(columns_of(law), dist.VonMises)


def _angle_variance(concentration: Array) -> Array:
    """E[θ²] over (−π, π) under a density ∝ exp(κ cos θ), by quadrature where that is not negligible."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    end = jnp.minimum(jnp.pi, 9 / jnp.sqrt(concentration))[..., None]
    theta = end * jnp.asarray(0.5 * (nodes + 1), end.dtype)
    # cos θ − 1 without cancellation.
    density = jnp.asarray(weights, end.dtype) * jnp.exp(-2 * concentration[..., None] * jnp.sin(0.5 * theta) ** 2)
    return (density * theta**2).sum(-1) / density.sum(-1)


# ---- support ---------------------------------------------------------------------------------------------------------
CLOSED = constraints.greater_than_eq, constraints.less_than_eq
OPEN = constraints.greater_than, constraints.less_than, constraints.open_interval


def support_of(law: Law) -> constraints.Constraint | None:
    """Of a column where the law factorizes. None where the law does not say."""
    return columns_of(law).support if factorizes(law) else law.support


def filled(law: Law, y: Float[Array, " dy"], fill: Any = None) -> Array:
    """y as the law takes it: integers where it is a law of integers, angles between −π and π, nothing missing.

    For what is missing there is `fill`, or else any point of the support.
    """
    support = support_of(law)
    if fill is None:
        fill = jnp.zeros_like(y) if support is None else support.feasible_like(y)
    whole = jnp.where(jnp.isnan(y), jnp.asarray(fill, y.dtype), y)
    if support is constraints.circular:
        return (whole + jnp.pi) % (2 * jnp.pi) - jnp.pi
    return jnp.round(whole).astype(int) if _is_discrete(law, support) else whole


def _is_discrete(law: Law, support: constraints.Constraint | None) -> bool:
    """As its support says, or else its draws."""
    if support is not None:
        return support.is_discrete
    return jnp.issubdtype(jax.eval_shape(lambda: law.sample(jax.random.key(0))).dtype, jnp.integer)


class Support(NamedTuple):
    """What the entries of an observation can be, as far as it depends neither on states nor on inputs or parameters."""

    law: str
    integer: bool
    lower: float = -math.inf
    upper: float = math.inf
    strict: bool = False
    """Whether the bounds themselves are left out."""

    @classmethod
    def of(cls, law: Law) -> "Support | None":
        """None where there is nothing to check, or where the law has no columns."""
        support = support_of(law) if factorizes(law) else None
        # Any number is an angle.
        if support is None or support is constraints.circular:
            return None
        if support is constraints.boolean:
            return cls(name_of(law), True, 0, 1)
        lower = _number(getattr(support, "lower_bound", None), -math.inf)
        upper = _number(getattr(support, "upper_bound", None), math.inf)
        if not support.is_discrete and math.isinf(lower) and math.isinf(upper):
            return None
        strict = isinstance(support, OPEN) and not isinstance(support, CLOSED)
        return cls(name_of(law), support.is_discrete, lower, upper, strict)

    def holds(self, ys: np.ndarray) -> np.ndarray:
        """Entry by entry. A missing value is no contradiction."""
        above = ys > self.lower if self.strict else ys >= self.lower
        below = ys < self.upper if self.strict else ys <= self.upper
        return np.isnan(ys) | (above & below & ((ys == np.round(ys)) | (not self.integer)))

    def __str__(self) -> str:
        words = [f"{self.law} is a law of {'integers' if self.integer else 'numbers'}"]
        if self.lower > -math.inf:
            words.append(f"{'above' if self.strict else 'from'} {self.lower:g}")
        if self.upper < math.inf:
            words.append(f"{'below' if self.strict else 'up to'} {self.upper:g}")
        return " ".join(words)


def _number(bound: Any, otherwise: float) -> float:
    """`otherwise` for an array: it may be a parameter, or depend on the state."""
    return float(bound) if isinstance(bound, int | float) else otherwise
