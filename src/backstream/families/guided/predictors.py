"""The parameters of a law whose columns are independent, as functions of the state.

A column's law has parameters: a location, a rate, a probability. On the right scale (as they are, their logarithm,
their logit) they are often affine in the state. Such a scale is a predictor. Where a law is known by its predictors, a
grid over them evaluates the law alone and never calls the model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from backstream.models.laws import Law, columns_of, parameters_of

from .laws import Row
from .sampled import FEWEST, Sampled


class Link(NamedTuple):
    to: Callable[..., Any]
    """Of a parameter, and the module to compute with: NumPy where a plan is made."""
    slope: Callable[[np.ndarray], np.ndarray]
    """The derivative of `to`."""
    back: Callable[[Array], Array]
    safe: Callable[[np.ndarray], np.ndarray]
    """Where rounding leaves enough of `to` to tell whether it is affine."""


LINKS: dict[str, Link] = {
    "identity": Link(lambda v, xp=jnp: v, np.ones_like, lambda v: v, np.isfinite),
    "log": Link(lambda v, xp=jnp: xp.log(v), lambda v: 1 / v, jnp.exp, lambda v: (v > 1e-30) & (v < 1e30)),
    "logit": Link(
        lambda v, xp=jnp: xp.log(v) - xp.log1p(-v),
        lambda v: 1 / (v * (1 - v)),
        jax.nn.sigmoid,
        lambda v: np.isfinite(v) & (v > 1e-3) & (v < 1 - 1e-3),
    ),
}


class Leaf(NamedTuple):
    """A parameter of the law that moves with a predictor: on its own scale, `slope` times as far, column by column."""

    index: int
    """Among the parameters of the base law, in the order of their names."""
    link: str
    predictor: int
    slope: tuple[float, ...] | None
    """None for the parameter that is the predictor itself."""


class Predictors(eqx.Module):
    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    count: int = eqx.field(static=True)
    """Predictors of one column."""

    def of(self, law: Law) -> Float[Array, "c p"]:
        """Their values."""
        columns = law.event_shape[0]
        values, found = parameters_of(columns_of(law))[0], {}
        for leaf in self.leaves:
            if leaf.predictor not in found:
                found[leaf.predictor] = LINKS[leaf.link].to(jnp.broadcast_to(values[leaf.index], (columns,)))
        return jnp.stack([found[i] for i in range(self.count)], -1)

    def log_prob(self, law: Law, predictors: Float[Array, "c p"], row: Row) -> Float[Array, " c"]:
        """Log densities of the columns of the law that has these predictors, and all else from `law`."""
        values, rebuilt = parameters_of(columns_of(law))
        own = self.of(law)
        for leaf in self.leaves:
            scaled, link = predictors[:, leaf.predictor], LINKS[leaf.link]
            if leaf.slope is not None:
                shift = jnp.asarray(leaf.slope, scaled.dtype) * (scaled - own[:, leaf.predictor])
                scaled = link.to(jnp.broadcast_to(values[leaf.index], shift.shape)) + shift
            values[leaf.index] = link.back(scaled)
        moved = rebuilt(values)
        terms = moved.log_prob(row.y)
        if jax.tree.leaves(moved.support):  # bounds that move: a law that was put together anew forgets to check them
            terms = jnp.where(moved.support(row.y), terms, -jnp.inf)
        return jnp.where(row.seen, terms, 0.0)


def find_predictors(law: Law, sampled: list[Sampled | None], tolerance: float) -> tuple[Predictors, bool] | None:
    """The predictors of a law, and whether all are affine in the state; None where it cannot be read this way.

    `sampled` has what `parameters_of(columns_of(law))` are at several states, None for what never varies.
    """
    leaves, kept, affine = [], [], True
    parameters, _ = parameters_of(columns_of(law))
    for index, parameter in enumerate(sampled):
        if parameter is None:
            continue
        link = affine_link(parameter, tolerance)
        if link is None:
            affine, link = False, _natural_link(columns_of(law), parameters[index])
        with np.errstate(all="ignore"):
            values = np.asarray(LINKS[link].to(parameter.values, np), float)
        for which, other in enumerate(kept):
            slope = _relation(other, values)
            if slope is not None:
                leaves.append(Leaf(index, link, which, slope))
                break
        else:
            leaves.append(Leaf(index, link, len(kept), None))
            kept.append(values)
    if not leaves or len(kept) > 3:
        return None
    return Predictors(tuple(leaves), len(kept)), affine


def affine_link(parameter: Sampled, tolerance: float) -> str | None:
    """The first link under which it is affine in the state."""
    for name, link in LINKS.items():
        with np.errstate(all="ignore"):
            safe = link.safe(parameter.values)
            values = np.where(safe, np.asarray(link.to(parameter.values, np), float), np.nan)
            slopes = parameter.slopes * np.asarray(link.slope(parameter.values), float)[..., None]
        if parameter._replace(values=values, slopes=slopes).is_affine(tolerance):
            return name
    return None


POSITIVE = tuple(
    getattr(constraints, name)
    for name in ("positive", "nonnegative", "softplus_positive")
    if hasattr(constraints, name)
)


def _natural_link(base: Law, leaf: Array) -> str:
    constraint = _constraint(base, leaf)
    if any(constraint is positive for positive in POSITIVE):
        return "log"
    return "logit" if constraint is constraints.unit_interval else "identity"


def _constraint(base: Law, leaf: Array) -> object:
    """What the law says of the parameter that this leaf is."""
    for name, value in vars(base).items():
        if value is leaf:
            return getattr(base, "arg_constraints", {}).get(name)
        if isinstance(value, dist.Distribution):
            found = _constraint(value, leaf)
            if found is not None:
                return found
    return None


def _relation(known: np.ndarray, values: np.ndarray) -> tuple[float, ...] | None:
    """The slope of each column where `values`, [inputs, states, c], are affine in a predictor that is known already.

    It is the same with any inputs. The offset need not be.
    """
    slopes = []
    for a, b in zip(np.moveaxis(known, -1, 0), np.moveaxis(values, -1, 0), strict=True):
        found = [_line(*pair) for pair in zip(a, b, strict=True)]
        found = [slope for slope in found if slope is not None]
        if not found or not np.isfinite(found).all() or np.ptp(found) > 1e-4 * np.abs(found).max():
            return None
        slope = float(np.median(found))
        slopes.append(float(round(slope)) if round(slope) and abs(slope - round(slope)) < 1e-3 else slope)
    return tuple(slopes)


def _line(a: np.ndarray, b: np.ndarray) -> float | None:
    """The slope of b over a; NaN where b is no line over a, None where there is nothing to tell it from."""
    usable = np.isfinite(a) & np.isfinite(b)
    if usable.sum() < FEWEST or (np.ptp(a[usable]) == 0 and np.ptp(b[usable]) == 0):
        return None
    a, b = a[usable], b[usable]
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    slope, offset = np.polyfit(a, b, 1)
    return float(slope) if np.abs(b - offset - slope * a).max() <= 1e-4 * np.ptp(b) else np.nan
