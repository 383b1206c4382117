"""Densities of a model at points and pairs of points, and checks of a model and of its observations."""

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from backstream.gaussian import LOG_2PI
from backstream.models.base import Inputs, StateSpaceModel, draw


class ModelShape(NamedTuple):
    """The sizes of a model's states and observations, and whether its emission factorises over coordinates."""

    state_dim: int
    obs_dim: int
    factorises: bool


def _is_independent(emission: dist.Distribution) -> TypeGuard[dist.Independent]:
    """Whether the log density is a sum over coordinates, each of its own coordinate of y."""
    return isinstance(emission, dist.Independent) and emission.base_dist.event_shape == ()


def _feasible(law: dist.Distribution, y: Array) -> Array:
    """A point of the support, of the shape of y."""
    return jnp.zeros_like(y) if law.support is None else jnp.asarray(law.support.feasible_like(y), y.dtype)


def _checked(name: str, law: object) -> dist.Distribution:
    if not isinstance(law, dist.Distribution):
        raise ValueError(f"{name} must return a numpyro distribution, not {type(law).__name__}.")
    if law.event_shape == () and len(law.batch_shape) == 1:
        raise ValueError(
            f"{name} returns {law.batch_shape[0]} separate distributions of numbers, not one of vectors: "
            f"add .to_event(1) to what it returns."
        )
    if len(law.event_shape) != 1 or law.batch_shape != ():
        raise ValueError(
            f"{name} must return one distribution of vectors, with an event shape of one axis and no batch shape, "
            f"but its event shape is {law.event_shape} and its batch shape is {law.batch_shape}."
        )
    return law


def check_model(p: StateSpaceModel, u: Inputs = None) -> ModelShape:
    """Calls the three methods of a model, computing nothing, and raises ValueError if one is not as it should be.

    Only once for a model of the same kind and sizes: a learner asks before every block.

    >>> from backstream.models import ChaoticRNN
    >>> check_model(ChaoticRNN.random(3, key=jax.random.key(0)))
    ModelShape(state_dim=3, obs_dim=3, factorises=True)
    """
    leaves, tree = jax.tree.flatten((p, u))
    kind = tree, tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf for leaf in leaves)
    try:
        known = _checked_models.get(kind)
    except TypeError:  # a field that cannot be hashed
        return _probe(p, u)
    if known is None:
        if len(_checked_models) >= MOST_CHECKED:
            _checked_models.clear()
        known = _checked_models[kind] = _probe(p, u)
    return known


MOST_CHECKED = 256
_checked_models: dict[Any, ModelShape] = {}


def _probe(p: StateSpaceModel, u: Inputs) -> ModelShape:
    shapes = []

    def probe():
        prior = _checked("prior", p.prior(u))
        x = draw(prior, key=jax.random.key(0))
        transition = _checked("transition", p.transition(x, u))
        if transition.event_shape != prior.event_shape:
            raise ValueError(
                f"transition must return a distribution with the event shape of the prior, {prior.event_shape}, "
                f"but its event shape is {transition.event_shape}."
            )
        emission = _checked("emission", p.emission(x, u))
        shapes.append(ModelShape(prior.event_shape[0], emission.event_shape[0], _is_independent(emission)))

    jax.eval_shape(probe)
    return shapes[0]


def state_dim(p: StateSpaceModel, u: Inputs = None) -> int:
    """d."""
    return check_model(p, u).state_dim


def obs_dim(p: StateSpaceModel, u: Inputs = None) -> int:
    """dy."""
    return check_model(p, u).obs_dim


def factorises(p: StateSpaceModel, u: Inputs = None) -> bool:
    """Whether the emission is a product over coordinates of y, so that single coordinates may be missing."""
    return check_model(p, u).factorises


def check_observations(
    model: StateSpaceModel | ModelShape, ys: np.ndarray, first_row: int = 0, u: Inputs = None
) -> None:
    """Raises ValueError, naming row and column, where the rows `ys` cannot be observations of the model.

    NaN is a missing value. `first_row` is the number of the first row given, for blocks of a longer stream. In a
    stream, pass the `ModelShape` that `check_model` returned: it is found once.
    """
    shape = check_model(model, u) if isinstance(model, StateSpaceModel) else model
    ys = np.asarray(ys)
    if ys.dtype.kind not in "biuf":
        raise ValueError(f"Observations must be real numbers, but their type is {ys.dtype}.")
    if ys.ndim != 2 or ys.shape[1] != shape.obs_dim:
        raise ValueError(
            f"Observations must be rows of {shape.obs_dim} columns, as in the model's emission, "
            f"but their shape is {ys.shape}."
        )
    infinite = np.argwhere(np.isinf(ys))
    if len(infinite):
        row, column = infinite[0]
        raise ValueError(f"The observation in row {first_row + row}, column {column} is infinite: {ys[row, column]}.")
    if not shape.factorises:
        missing = np.isnan(ys)
        partial = np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1))
        if len(partial):
            row = partial[0]
            column = np.flatnonzero(missing[row])[0]
            raise ValueError(
                f"The observation in row {first_row + row}, column {column} is missing and others of that row are not. "
                f"The emission does not factorise over coordinates, so a row must be complete or wholly missing."
            )


def log_prior(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Float[Array, ""]:
    """log χ(x)."""
    return jnp.asarray(p.prior(u).log_prob(x), x.dtype)


def log_emission(
    p: StateSpaceModel, x: Float[Array, " d"], y: Float[Array, " dy"], u: Inputs = None
) -> Float[Array, ""]:
    """log g(x, y). NaN in y is a missing coordinate, which is left out; 0 if all of y is missing.

    Where the emission does not factorise over coordinates, a partially missing y gives NaN.

    >>> from backstream.models import ChaoticRNN
    >>> model = ChaoticRNN.random(2, key=jax.random.key(0))
    >>> float(log_emission(model, jnp.zeros(2), jnp.array([jnp.nan, jnp.nan])))
    0.0
    """
    emission = p.emission(x, u)
    missing = jnp.isnan(y)
    if _is_independent(emission):
        # The density is taken at a point of its support: a NaN there would spoil gradients even where it is masked.
        base = emission.base_dist
        point = jnp.where(missing, _feasible(base, y), y)
        return jnp.where(missing, 0.0, jnp.asarray(base.log_prob(point), x.dtype)).sum()
    point = jnp.where(missing, _feasible(emission, y), y)
    unknown = jnp.where(missing.all(), 0.0, jnp.nan)
    return jnp.where(missing.any(), unknown, jnp.asarray(emission.log_prob(point), x.dtype))


def log_transition(
    p: StateSpaceModel, x_prev: Float[Array, " d"], x: Float[Array, " d"], u: Inputs = None
) -> Float[Array, ""]:
    """log m(x_prev, x)."""
    return jnp.asarray(p.transition(x_prev, u).log_prob(x), x.dtype)


def log_transitions(
    p: StateSpaceModel, x_prev: Float[Array, "k d"], x: Float[Array, "n d"], u: Inputs = None
) -> Float[Array, "n k"]:
    """log m(x_prev_j, x_i) for all pairs (i, j). The transition is computed once for each x_prev."""

    def from_one(origin):
        law = p.transition(origin, u)
        if isinstance(law, dist.MultivariateNormal):
            # One inverse for each origin, or a single one where the factor does not depend on it; then products.
            factor = jnp.asarray(law.scale_tril, x.dtype)
            whiten = solve_triangular(factor, jnp.eye(factor.shape[-1], dtype=factor.dtype), lower=True)
            z = (x - law.loc) @ whiten.T
            log_det = jnp.log(jnp.diag(factor)).sum()
            return -0.5 * (z**2).sum(-1) - log_det - 0.5 * x.shape[-1] * LOG_2PI
        if _is_independent(law) and type(law.base_dist) is dist.Normal:
            # What does not depend on the pair is left out of the sum over coordinates, the only N² d numbers there are.
            normal = law.base_dist
            loc, scale = (jnp.asarray(part, x.dtype) for part in (normal.loc, normal.scale))
            scale = jnp.broadcast_to(scale, x.shape[1:])
            z = (x - loc) / scale
            return -0.5 * (z**2).sum(-1) - jnp.log(scale).sum() - 0.5 * x.shape[-1] * LOG_2PI
        return jax.vmap(lambda target: jnp.asarray(law.log_prob(target), x.dtype))(x)

    return jax.vmap(from_one, out_axes=1)(x_prev)


def log_transitions_at(
    p: StateSpaceModel, x_prev: Float[Array, "n m d"], x: Float[Array, "n d"], u: Inputs = None
) -> Float[Array, "n m"]:
    """log m(x_prev_ik, x_i): each x_i with its own m origins."""

    def at(origin, target):
        return log_transition(p, origin, target, u)

    return jax.vmap(jax.vmap(at, in_axes=(0, None)))(x_prev, x)
