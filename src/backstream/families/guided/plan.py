"""How a model is to be read: found once, from its laws and their derivatives at a few states.

The states are spread far around the prior, and the inputs of the first row are moved a little. Where two functions
agree at such points they agree everywhere, but for what is written on purpose to change somewhere else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from backstream.models.base import Inputs, StateSpaceModel

from .constants import Constant
from .groups import find_groups
from .laws import NORMALS, Law, Row, column_log_probs, factorises, knows_moments, state_moments
from .prediction import Transition
from .predictors import Predictors, Sampled, affine_link, find_predictors
from .updates import Closed, Propagated, Update
from .wide_updates import Joint, Regressed, RegressedNormal

NUM_STATES = 24
SPREADS = 1.0, 4.0, 16.0
"""The states' distances from the prior mean, in standard deviations of prior and noise, one after the other."""
NUM_INPUTS = 3


class Plan(NamedTuple):
    """What is known of a model before the first row."""

    state_dim: int
    obs_dim: int
    transition: Transition
    prior_known: bool
    """Whether the prior's moments can be read off its law."""
    update: Update
    fill: Constant
    """A draw of the emission: its type, and a value for what is missing."""

    @property
    def exact(self) -> bool:
        """Whether the model is linear and Gaussian, so that nothing is approximated."""
        return self.transition.affine and isinstance(self.update, Closed)


class _Reading(NamedTuple):
    """The model's laws at many states, as NumPy arrays. Slopes are per standard deviation of the states."""

    moved: Any
    """Mean and covariance of the transition, and the mean's slope [inputs, states, ...]; None where it knows none."""
    parameters: list[Sampled | None] | None
    """Those of the emission, where its columns are independent or jointly normal and each has its own."""
    noise: np.ndarray | None
    """The covariance of jointly normal columns [inputs, states, c, c]."""
    slopes: np.ndarray
    """Of all that the law of each column, or of the row as one column, depends on: [n, c, d]."""


def make_plan(p: StateSpaceModel, u: Inputs, dtype) -> Plan:
    """Reads the model at several states, with the inputs `u` of the first row and with others near them."""
    with numpyro.validation_enabled(
        False
    ):  # a scale of zero is no mistake: there are states without noise of their own
        return _make_plan(p, u, dtype)


def _make_plan(p: StateSpaceModel, u: Inputs, dtype) -> Plan:
    prior = p.prior(u)
    prior_known = _finite_moments(prior)
    start = state_moments(prior, prior_known, dtype)
    law, move = p.emission(start.mean, u), p.transition(start.mean, u)
    known = _finite_moments(move)
    variance = np.diagonal(np.asarray(start.dense(), float))
    if known:
        variance = variance + np.diagonal(np.asarray(state_moments(move, True, dtype).dense(), float))
    scale = np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), 1.0)
    fill = np.asarray(law.sample(jax.random.key(0)))
    reading = _read(p, u, np.asarray(start.mean, float), scale, known, law, fill, dtype)
    tolerance = 1e-4 if dtype == jnp.float32 else 1e-8
    transition = Transition(known and _is_affine(reading.moved, scale, tolerance), known)
    update = _choose_update(law, reading, scale, tolerance)
    return Plan(len(scale), len(fill), transition, prior_known, update, Constant(fill))


def _finite_moments(law: Law) -> bool:
    if not knows_moments(law):
        return False
    spread = law.covariance_matrix if hasattr(law, "covariance_matrix") else law.variance
    return bool(jnp.isfinite(law.mean).all() & jnp.isfinite(spread).all())


# ---- reading ---------------------------------------------------------------------------------------------------------
def _states(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    spread = np.resize(SPREADS, NUM_STATES)[:, None]
    return mean + spread * scale * np.random.default_rng(1).standard_normal((NUM_STATES, len(mean)))


def _inputs_nearby(u: Inputs) -> Inputs:
    """The inputs of the first row, and others near them: an input of zero hides what it drives."""
    rng = np.random.default_rng(2)

    def vary(leaf):
        leaf = np.asarray(leaf)
        repeated = np.repeat(leaf[None], NUM_INPUTS if jax.tree.leaves(u) else 1, 0)
        if not np.issubdtype(leaf.dtype, np.floating):
            return repeated
        moved = repeated * (1 + 0.3 * rng.random(repeated.shape)) + 0.3 * rng.random(repeated.shape)
        moved[0] = leaf
        return moved.astype(leaf.dtype)

    return jax.tree.map(vary, u)


def _read(p, u, mean, scale, known, law, fill, dtype) -> _Reading:
    """All of it in one compiled call."""
    independent, normal = factorises(law), isinstance(law, NORMALS)
    size, key = jnp.asarray(scale, dtype), jax.random.key(3)

    def parameters(x, u):
        emitted = p.emission(x, u)
        return [emitted.loc] if normal else jax.tree.leaves(emitted.base_dist)

    def look(x, elsewhere, u):
        moved = values = slopes = noise = terms = None
        if known:
            moved = (
                state_moments(p.transition(x, u), True, dtype),
                jax.jacfwd(lambda z: state_moments(p.transition(z * size, u), True, dtype).mean)(x / size),
            )
        if independent or normal:
            values = parameters(x, u)
            slopes = jax.jacfwd(lambda z: _inexact(parameters(z * size, u)))(x / size)
            noise = p.emission(x, u).covariance_matrix if normal else None
        if not independent:
            y = p.emission(elsewhere, u).sample(key)
            row = Row(y, jnp.ones(y.shape, bool))
            terms = jax.jacrev(lambda z: column_log_probs(p.emission(z * size, u), row))(x / size)
        return moved, values, slopes, noise, terms

    states = jnp.asarray(_states(mean, scale), dtype)
    over_states = jax.vmap(look, (0, 0, None))
    nearby = _inputs_nearby(u)
    if jax.tree.leaves(nearby):
        found = jax.jit(jax.vmap(over_states, (None, None, 0)))(states, jnp.roll(states, 1, 0), nearby)
    else:
        found = jax.tree.map(lambda leaf: leaf[None], jax.jit(over_states)(states, jnp.roll(states, 1, 0), u))
    moved, values, slopes, noise, terms = jax.tree.map(np.asarray, found)
    if terms is not None:
        every = terms.reshape(-1, *terms.shape[2:])
    else:
        every = np.concatenate([_by_column(part, len(fill)) for part in slopes])
    sampled = None if values is None else _sampled(values, slopes, len(fill))
    return _Reading(moved, sampled, noise, every)


def _inexact(leaves: list[Any]) -> list[Any]:
    """With zeros for integers, which have no derivative."""
    return [leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.zeros(()) for leaf in leaves]


def _by_column(slopes: np.ndarray, columns: int) -> np.ndarray:
    """Slopes of a parameter as [n, columns, d]: one with fewer entries than columns belongs to all of them."""
    d = slopes.shape[-1]
    if slopes.shape[2:3] == (columns,) and slopes.ndim > 3:
        return np.moveaxis(slopes.reshape(-1, columns, slopes[0, 0, 0].size // d, d), 2, 0).reshape(-1, columns, d)
    return np.repeat(slopes.reshape(-1, 1, d), columns, 1)


def _sampled(values: list[np.ndarray], slopes: list[np.ndarray], columns: int) -> list[Sampled | None] | None:
    """Parameters with one entry for each column, or one for all, None for one that never varies. Where one that varies
    has any other shape (the logits of labels) the law cannot be read column by column, and there is no list."""
    found: list[Sampled | None] = []
    for value, slope in zip(values, slopes, strict=True):
        shape, lead, d = value.shape[2:], value.shape[:2], slope.shape[-1]
        if not np.any(slope):
            found.append(None)
        elif shape not in ((columns,), (1,), ()):
            return None
        else:
            own = np.broadcast_to(value.reshape(*lead, -1), (*lead, columns)).astype(float)
            along = np.broadcast_to(slope.reshape(*lead, -1, d), (*lead, columns, d)).astype(float)
            found.append(Sampled(own, along))
    return found


def _is_affine(moved, scale: np.ndarray, tolerance: float) -> bool:
    """Whether, with any inputs, the mean of the transition has one slope at all states and its noise one covariance."""
    (_, cov), slope = moved
    slope = np.asarray(slope, float) / scale[:, None]
    cov = np.asarray(cov, float)
    usable = np.asarray(np.isfinite(slope).all((-1, -2)) & np.isfinite(cov).reshape(*cov.shape[:2], -1).all(-1))
    if not usable[0].all():
        return False
    for slopes, covs, good in zip(slope, cov, usable, strict=True):
        slopes, covs = slopes[good], covs[good]
        if len(slopes) == 0:
            continue
        size = np.abs(slopes).max((0, 2))[:, None]
        if not (np.abs(slopes - slopes[0]) <= tolerance * np.maximum(size, 1e-300)).all():
            return False
        if not (np.abs(covs - covs[0]) <= tolerance * np.abs(covs).max(0)).all():
            return False
    return True


# ---- choosing --------------------------------------------------------------------------------------------------------
def _choose_update(law: Law, reading: _Reading, scale: np.ndarray, tolerance: float) -> Update:
    """The first that fits: a closed form, grids, or what works for many directions."""
    predictors, affine, normal = None, False, False
    if isinstance(law, NORMALS):
        normal = _same_noise(reading.noise, tolerance)
        location = None if reading.parameters is None else reading.parameters[0]
        affine = normal and (location is None or affine_link(location, tolerance) == "identity")
    elif reading.parameters is not None:
        found = find_predictors(law, reading.parameters, tolerance)
        if found is not None:
            predictors, affine = found
            normal = isinstance(law.base_dist, dist.Normal) and _only_location(law, predictors)
    if normal and affine:
        return Closed()
    groups = find_groups(reading.slopes, scale, predictors.count if predictors is not None and affine else None)
    if groups is not None:
        return Propagated(groups, predictors if affine else None)
    if normal:
        return RegressedNormal()
    return Joint() if predictors is None else Regressed(predictors)


def _same_noise(noise: np.ndarray | None, tolerance: float) -> bool:
    """Whether the covariance is the same at all states, with any inputs."""
    if noise is None:
        return False
    spread = np.nanmax(np.abs(noise - noise[:, :1]), axis=1)
    return bool((spread <= tolerance * np.nanmax(np.abs(noise), axis=1)).all())


def _only_location(law: Law, predictors: Predictors) -> bool:
    leaves = jax.tree.leaves(law.base_dist)
    return len(predictors.leaves) == 1 and leaves[predictors.leaves[0].index] is law.base_dist.loc
