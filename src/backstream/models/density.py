"""Densities of a model at points and pairs of points, and checks of a model and of its observations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from backstream.laws.gaussian import LOG_2PI
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law
from backstream.models.laws import (
    NORMALS,
    Law,
    Support,
    allows_partial_rows,
    draw,
    factorizes,
    filled,
    log_columns,
    log_density,
    of_vectors,
)


class ModelShape(NamedTuple):
    """What can be said of a model without computing anything."""

    state_dim: int
    obs_dim: int
    partial_rows: bool
    """Whether single columns of a row may be missing: the emission factorizes over them, or is normal."""
    support: Support | None = None
    """What a column can hold, where it is not any number."""


READS_NONE = "NoneType", "None is not a valid value"
"""What Python and JAX say where None is used as a number or an array."""


PYTHON_ONLY = (
    (jax.errors.TracerBoolConversionError, "asks `if`, `and`, `or` or `not` of a state or an input: use jnp.where"),
    (jax.errors.TracerArrayConversionError, "gives a state or an input to NumPy: use jax.numpy"),
    (jax.errors.ConcretizationTypeError, "makes a Python number of a state or an input: keep it an array"),
)
"""What cannot be compiled, and what to do."""
NO_INDEX = "Indexer must have integer"
"""What JAX says where a floating-point number is an index."""


def _law(p: StateSpaceModel, name: str, *given: Any) -> Law:
    """What a method of the model returns, as a law of vectors. The last of what it is given are the inputs."""
    try:
        law = of_vectors(getattr(p, name)(*given))
    except (TypeError, AttributeError, ValueError) as error:
        if given[-1] is None and any(phrase in str(error) for phrase in READS_NONE):
            raise ValueError(f"{name} reads inputs, but none are given: pass the model's inputs.") from error
        if NO_INDEX in str(error):
            raise ValueError(f"{name} takes a floating-point number as an index: use .astype(int).") from error
        does = next((does for kind, does in PYTHON_ONLY if isinstance(error, kind)), None)
        if does is not None:
            raise ValueError(f"{name} {does}.") from error
        raise
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
    ModelShape(state_dim=3, obs_dim=3, partial_rows=True, support=None)
    """
    if isinstance(p, type):
        raise ValueError(f"The model is a class: give one of its kind, such as {p.__name__}().")
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

    def probe(u):
        prior = _law(p, "prior", u)
        x = draw(prior, key=jax.random.key(0))
        transition = _law(p, "transition", x, u)
        if transition.event_shape != prior.event_shape:
            raise ValueError(
                f"transition must return a distribution with the event shape of the prior, {prior.event_shape}, "
                f"but its event shape is {transition.event_shape}."
            )
        emission = _law(p, "emission", x, u)
        log_density("emission", emission, emission.sample(jax.random.key(1)))
        (d,), (dy,) = prior.event_shape, emission.event_shape
        shapes.append(ModelShape(d, dy, allows_partial_rows(emission), Support.of(emission)))

    jax.eval_shape(probe, u)
    return shapes[0]


def state_dim(p: StateSpaceModel, u: Inputs = None) -> int:
    """d."""
    return check_model(p, u).state_dim


def obs_dim(p: StateSpaceModel, u: Inputs = None) -> int:
    """dy."""
    return check_model(p, u).obs_dim


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
    if shape.support is not None:
        outside = np.argwhere(~shape.support.holds(ys))
        if len(outside):
            row, column = outside[0]
            raise ValueError(
                f"The observation in row {first_row + row}, column {column} is {ys[row, column]:g}, but the emission's "
                f"{shape.support}."
            )
    if not shape.partial_rows:
        missing = np.isnan(ys)
        partial = np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1))
        if len(partial):
            row = partial[0]
            column = np.flatnonzero(missing[row])[0]
            raise ValueError(
                f"The observation in row {first_row + row}, column {column} is missing and others of that row are not. "
                f"The emission neither factorizes over columns nor is normal: a row must be complete or wholly missing."
            )


def check_inputs(inputs: Inputs, first_row: int = 0) -> None:
    """Raises ValueError, naming the row, where inputs with a leading axis for the rows are not finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        values = np.asarray(leaf)
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        row, *column = np.argwhere(~np.isfinite(values))[0]
        where = f", column {column[0]}" if column else ""
        which = f" {jax.tree_util.keystr(path)}" if path else ""
        value = values[(row, *column)]
        raise ValueError(f"The input{which} in row {first_row + row}{where} is {value}: inputs must be finite.")


def log_prior(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Float[Array, ""]:
    """log χ(x)."""
    return log_density("prior", prior_law(p, u), x).astype(x.dtype)


def log_emission(
    p: StateSpaceModel, x: Float[Array, " d"], y: Float[Array, " dy"], u: Inputs = None
) -> Float[Array, ""]:
    """log g(x, y). NaN in y is a missing coordinate, which is left out; 0 if all of y is missing.

    Where the emission neither factorizes over coordinates nor is normal, a partially missing y gives NaN.

    >>> from backstream.models import ChaoticRNN
    >>> model = ChaoticRNN.random(2, key=jax.random.key(0))
    >>> float(log_emission(model, jnp.zeros(2), jnp.array([jnp.nan, jnp.nan])))
    0.0
    """
    law, seen = emission_law(p, x, u), ~jnp.isnan(y)
    point = filled(law, y)
    if factorizes(law):
        return log_columns(law, point, seen).astype(x.dtype).sum()

    def whole():
        return log_density("emission", law, point).astype(x.dtype)

    def part():
        if isinstance(law, NORMALS):
            return log_columns(law, point, seen).astype(x.dtype).sum()
        return jnp.where(seen.any(), jnp.nan, 0.0).astype(x.dtype)

    return jax.lax.cond(seen.all(), whole, part)


def log_transition(
    p: StateSpaceModel, x_prev: Float[Array, " d"], x: Float[Array, " d"], u: Inputs = None
) -> Float[Array, ""]:
    """log m(x_prev, x)."""
    return log_density("transition", transition_law(p, x_prev, u), x).astype(x.dtype)


def log_transitions(
    p: StateSpaceModel, x_prev: Float[Array, "k d"], x: Float[Array, "n d"], u: Inputs = None
) -> Float[Array, "n k"]:
    """log m(x_prev_j, x_i) for all pairs (i, j). The transition is computed once for each x_prev."""

    def from_one(origin):
        law = transition_law(p, origin, u)
        if isinstance(law, dist.MultivariateNormal):
            # One inverse for each origin, or a single one where the factor does not depend on it; then products.
            factor = jnp.asarray(law.scale_tril, x.dtype)
            whiten = solve_triangular(factor, jnp.eye(factor.shape[-1], dtype=factor.dtype), lower=True)
            z = (x - law.loc) @ whiten.T
            log_det = jnp.log(jnp.diag(factor)).sum()
            return -0.5 * (z**2).sum(-1) - log_det - 0.5 * x.shape[-1] * LOG_2PI
        if factorizes(law) and type(law.base_dist) is dist.Normal:
            # What does not depend on the pair is left out of the sum over coordinates, the only N² d numbers there are.
            normal = law.base_dist
            loc, scale = (jnp.asarray(part, x.dtype) for part in (normal.loc, normal.scale))
            scale = jnp.broadcast_to(scale, x.shape[1:])
            z = (x - loc) / scale
            return -0.5 * (z**2).sum(-1) - jnp.log(scale).sum() - 0.5 * x.shape[-1] * LOG_2PI
        return jax.vmap(lambda target: log_density("transition", law, target).astype(x.dtype))(x)

    return jax.vmap(from_one, out_axes=1)(x_prev)


def log_transitions_at(
    p: StateSpaceModel, x_prev: Float[Array, "n m d"], x: Float[Array, "n d"], u: Inputs = None
) -> Float[Array, "n m"]:
    """log m(x_prev_ik, x_i): each x_i with its own m origins."""

    def at(origin, target):
        return log_transition(p, origin, target, u)

    return jax.vmap(jax.vmap(at, in_axes=(0, None)))(x_prev, x)
