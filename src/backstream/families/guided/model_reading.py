"""A model's laws at several states, with several inputs: what a plan is made from, and what is wrong with them.

The states are spread far around the prior. The inputs are those of the first row and others. Where two functions agree
at such points they agree everywhere, but for what is written on purpose to change somewhere else: for such models
there are places, states and inputs that rows have reached.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from backstream._jax.compiling import compiler_options
from backstream.models.base import Inputs, StateSpaceModel, emission_law, prior_law, transition_law
from backstream.models.density import check_model
from backstream.models.laws import (
    NORMALS,
    Law,
    columns_of,
    factorizes,
    is_normal,
    name_of,
    parameters_of,
    shows_its_parameters,
)
from backstream.models.unconstrained import bounds_of

from .laws import Row, StateMoments, column_log_probs, knows_moments, state_moments
from .noise import MOST_PARTS, Noise
from .noise_fit import find_noise
from .places import Place
from .sampled import Sampled

NUM_STATES = 24
SPREADS = 1.0, 4.0, 16.0
"""The states' distances from the prior mean, in standard deviations of prior and noise, one after the other."""
NUM_NEARBY = 3
"""So many inputs are those of the first row, the later ones moved a little. Then come zeros and ones, for switches."""


class Start(NamedTuple):
    """The model at the prior mean."""

    mean: np.ndarray
    scale: np.ndarray
    """Standard deviations of prior and noise together, by which states are measured; one where both are zero."""
    prior: Noise
    """How the prior is read."""
    near: np.ndarray
    """States around the prior mean, which is the first."""
    noise: Noise
    """How the transition is."""
    law: Law
    """The emission."""
    readable: bool
    """Whether its columns are independent, and its parameters are all that it depends on."""
    fill: np.ndarray
    """A draw of it."""
    normal: bool
    """Whether prior and transition are normal laws."""


class Reading(NamedTuple):
    """The model's laws at many states, as NumPy arrays."""

    start: Start
    transition: list[Sampled] | None
    """Means, covariances and log weights of the parts of the transition; None where their slopes are not known."""
    parameters: list[Sampled]
    """What the emission depends on: its parameters, the mean and the covariance of a normal law, those of a
    multivariate Student-t law, or else the log density of one observation."""
    slopes: np.ndarray
    """Of all that the law of each column, or of the row as one column, depends on: [inputs, n, c, d]."""
    steps: bool
    """Whether the emission changes in steps, where derivatives say nothing. `slopes` has the axes that matter, too."""


def read_model(
    p: StateSpaceModel,
    u: Inputs,
    dtype,
    tolerance: float,
    places: Sequence[Place] = (),
    other: StateSpaceModel | None = None,
) -> Reading:
    """Raises ValueError, naming the method, where the model gives no numbers around the prior, or has no derivative."""
    check_model(p, u)
    nearby = _inputs_nearby(u, places)
    if other is not None:
        p, u, nearby = _with_parameters(p, other, u, nearby)
    start = _start(p, u, nearby, dtype)
    around = [_states(start.mean, start.scale), *(place.states() for place in places)]
    states = jnp.asarray(np.concatenate(around), dtype)
    emission = _Emission(p, start.law, start.readable, start.fill, jnp.asarray(start.scale, dtype))
    found = _looked(p, emission, nearby, states, start.noise, dtype)
    _require_numbers("transition", start.mean, "mean or covariance", *found.moved)
    _require_numbers("emission", start.mean, "log density", found.density)
    z = (np.asarray(states, float) - start.mean) / start.scale
    parameters = [Sampled.of(*pair, z) for pair in zip(found.values, found.slopes, strict=True)]
    slopes = np.concatenate([emission.by_column(part) for part in found.directions], 1)
    stepping = [i for i, parameter in enumerate(parameters) if parameter.has_steps(tolerance)]
    if stepping:
        axes = _axes_of_steps(emission, nearby, states, parameters, stepping)
        slopes = np.concatenate([slopes, np.broadcast_to(axes, (len(slopes), *axes.shape))], 1)
    return Reading(start, _transition(found, z), parameters, slopes, bool(stepping))


# ---- where to look ---------------------------------------------------------------------------------------------------
def _states(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    spread = np.resize(SPREADS, NUM_STATES)[:, None]
    return mean + spread * scale * np.random.default_rng(1).standard_normal((NUM_STATES, len(mean)))


def _inputs_nearby(u: Inputs, places: Sequence[Place]) -> Inputs:
    """The inputs of the first row, and others: an input of zero hides what it drives. Last those of the places."""
    rng = np.random.default_rng(2)

    def vary(leaf, *reached):
        leaf = np.asarray(leaf)
        moved = np.repeat(leaf[None], NUM_NEARBY, 0)
        if np.issubdtype(leaf.dtype, np.floating):
            moved = moved * (1 + 0.3 * rng.random(moved.shape)) + 0.3 * rng.random(moved.shape)
            moved[0] = leaf
        return np.stack([*moved, np.zeros_like(leaf), np.ones_like(leaf), *reached]).astype(leaf.dtype)

    return jax.tree.map(vary, u, *(place.inputs for place in places))


class _WithParameters(StateSpaceModel):
    """A model whose parameters are inputs too, before the others."""

    static: StateSpaceModel

    def prior(self, u=None):
        return prior_law(*self._told(u))

    def transition(self, x, u=None):
        p, u = self._told(u)
        return transition_law(p, x, u)

    def emission(self, x, u=None):
        p, u = self._told(u)
        return emission_law(p, x, u)

    def _told(self, u: Any) -> tuple[StateSpaceModel, Inputs]:
        parameters, inputs = u
        return eqx.combine(parameters, self.static), inputs


def _with_parameters(
    p: StateSpaceModel, other: StateSpaceModel, u: Inputs, nearby: Inputs
) -> tuple[StateSpaceModel, Inputs, Inputs]:
    """The model, its inputs, and those nearby, with the parameters among them: the other ones last, with the inputs of
    the first row."""
    (own, static), (moved, _) = (eqx.partition(model, eqx.is_inexact_array) for model in (p, other))
    count = max((len(leaf) for leaf in jax.tree.leaves(nearby)), default=1)
    parameters = jax.tree.map(lambda a, b: np.stack([np.asarray(a)] * count + [np.asarray(b)]), own, moved)
    inputs = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[:1]]), nearby)
    return _WithParameters(static), (own, u), (parameters, inputs)


def _over_inputs(function: Callable[[Inputs], Any], nearby: Inputs) -> Any:
    """The function with each of the inputs, along a first axis, which has one entry where the model has none."""
    if jax.tree.leaves(nearby):
        return _computed(jax.vmap(function), nearby)
    return jax.tree.map(lambda leaf: leaf[None], _computed(function, nearby))


def _computed(function: Callable, *arguments: Any) -> Any:
    """As NumPy arrays, from one program. One operation after the other, each would be a program to compile."""
    return jax.tree.map(np.asarray, jax.jit(function, compiler_options=compiler_options(quickly=True))(*arguments))


def _holds(question: Callable[[], bool]) -> bool:
    """Whether something holds of the model's laws that does not depend on their values, with nothing computed."""
    answers: list[bool] = []
    jax.eval_shape(lambda: answers.append(question()))
    return answers[0]


def _prior_moments(p: StateSpaceModel, u: Inputs, dtype) -> tuple[np.ndarray, np.ndarray, bool]:
    """Mean, variances, and whether they can be read off the law."""

    def moments(known: bool) -> StateMoments:
        def dense():
            found = state_moments(prior_law(p, u), known, dtype)
            return StateMoments(found.mean, found.dense())

        return _computed(dense)

    found = moments(True) if _holds(lambda: knows_moments(prior_law(p, u))) else None
    known = found is not None and bool(_finite(found).all())
    if found is None or not known:
        found = moments(False)
    mean, variance = np.asarray(found.mean), np.diagonal(np.asarray(found.cov, float))
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise ValueError(f"prior returns a law with mean {mean} and variances {variance}: they must be numbers.")
    return mean, variance, known


def _start(p: StateSpaceModel, u: Inputs, nearby: Inputs, dtype) -> Start:
    at, variance, prior_known = _prior_moments(p, u, dtype)
    mean = np.asarray(at, float)
    near = np.concatenate([mean[None], _states(mean, np.sqrt(variance))[:: len(SPREADS)]]).astype(dtype)
    prior, moves = prior_law(p, u), transition_law(p, jnp.asarray(at), u)
    _require_no_bounds(moves)
    moves_known, normal = _holds(lambda: knows_moments(moves)), is_normal(prior) and is_normal(moves)
    if moves_known:

        def move(u):
            return jax.vmap(lambda x: state_moments(transition_law(p, x, u), True, dtype))(jnp.asarray(near))

        noise = _over_inputs(move, nearby)
        moves_known = bool(_finite(noise).any())
        variance = variance + _typical(noise.cov, len(mean))
    scale = np.where(variance > 0, np.sqrt(variance), 1.0)
    law, fill = emission_law(p, jnp.asarray(at), u), _drawn(p, near, u)

    def readable(x):
        return shows_its_parameters(emission_law(p, x, u), jnp.asarray(fill))

    shown = bool(_computed(lambda near: jnp.stack([readable(x) for x in near]), near[:2]).all())
    read_prior = find_noise(lambda x: prior, jnp.asarray(near[:1]), prior_known, dtype)
    read_moves = read_noise(p, u, near, moves_known, MOST_PARTS)
    return Start(mean, scale, read_prior, near, read_moves, law, shown, fill, normal)


def read_noise(p: StateSpaceModel, u: Inputs, near: np.ndarray, known: bool, most: int) -> Noise:
    """How the transition's law is read, in at most so many parts."""
    return find_noise(lambda x: transition_law(p, x, u), jnp.asarray(near[:3]), known, near.dtype, most)


def _drawn(p: StateSpaceModel, near: np.ndarray, u: Inputs) -> np.ndarray:
    """A draw of the emission at the first state where there is one."""
    draws = _computed(jax.vmap(lambda x: emission_law(p, x, u).sample(jax.random.key(0))), near)
    return next((draw for draw in draws if np.isfinite(draw).all()), draws[0])


def _finite(moments: StateMoments) -> np.ndarray:
    """Whether mean and covariance are, for each of the leading axes."""
    mean, cov = np.asarray(moments.mean), np.asarray(moments.cov)
    lead = mean.shape[:-1]
    return np.asarray(np.isfinite(mean).all(-1) & np.isfinite(cov).reshape(*lead, -1).all(-1))


def _typical(cov: np.ndarray, d: int) -> np.ndarray:
    """Variances of the transition's noise: with the inputs of the first row, or with others where these give none."""
    variances = np.diagonal(cov, 0, 2, 3) if cov.ndim == 4 else cov
    variances = np.where(np.isfinite(variances), variances, 0.0).max(1)
    return variances[(variances > 0).any(1).argmax()]


# ---- looking ---------------------------------------------------------------------------------------------------------
class _Found(NamedTuple):
    """What one compiled call looks at, [inputs, states, ...] each."""

    moved: Any
    """Means, covariances and log weights of the parts of the transition."""
    moved_slope: np.ndarray | None
    values: list[np.ndarray]
    slopes: list[np.ndarray]
    directions: list[np.ndarray]
    """The slopes from which the directions are found that each column reads."""
    density: np.ndarray


class _Emission(NamedTuple):
    """What is read of the emission at a state."""

    p: StateSpaceModel
    law: Law
    readable: bool
    fill: np.ndarray
    size: jax.Array
    """The unit of the states."""

    def parameters(self, x: Any, u: Inputs) -> list[Any]:
        """All that the law depends on."""
        law = emission_law(self.p, x, u)
        if isinstance(law, NORMALS):
            return [law.loc, law.covariance_matrix]
        if isinstance(law, dist.MultivariateStudentT):
            return [law.loc, law.scale_tril, law.df]
        return parameters_of(columns_of(law))[0] if self.readable else [self.terms(x, u, self.fill)]

    def slopes(self, x: Any, u: Inputs) -> list[Any]:
        """Their derivatives. Integers have none."""

        def inexact(z):
            leaves = self.parameters(z * self.size, u)
            return [leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.zeros(()) for leaf in leaves]

        return jax.jacfwd(inexact)(x / self.size)

    def terms(self, x: Any, u: Inputs, y: Any) -> Any:
        """The log density of an observation, column by column."""
        return column_log_probs(emission_law(self.p, x, u), Row(jnp.asarray(y), jnp.ones(jnp.shape(y), bool)))

    def directions(self, x: Any, elsewhere: Any, u: Inputs) -> Any:
        """Slopes of the log density of an observation that another state has emitted."""
        y = emission_law(self.p, elsewhere, u).sample(jax.random.key(3))
        return jax.jacrev(lambda z: self.terms(z * self.size, u, y))(x / self.size)

    def by_column(self, parts: np.ndarray) -> np.ndarray:
        """[inputs, n, ..., d] as [inputs, n, c, d]. A parameter without an entry for each column belongs to all."""
        c, d, lead = len(self.fill) if factorizes(self.law) else parts.shape[2], parts.shape[-1], len(parts)
        if parts.shape[2:3] == (c,) and parts.ndim > 3:
            apart = parts.reshape(*parts.shape[:2], c, -1, d)
            return np.moveaxis(apart, 3, 1).reshape(lead, -1, c, d)
        return np.repeat(parts.reshape(lead, -1, 1, d), c, 2)


def _looked(p: StateSpaceModel, emission: _Emission, nearby: Inputs, states: Any, noise: Noise, dtype) -> _Found:
    """All of it in one compiled call."""

    def move(x, u):
        parts = noise.parts(transition_law(p, x, u), dtype)
        return parts.mean, parts.cov, parts.log_weight

    def slope(x, u):
        return jax.jacfwd(lambda z: move(z * emission.size, u)[0])(x / emission.size)

    def look(x, elsewhere, u):
        slopes = emission.slopes(x, u)
        directions = slopes if emission.readable else [emission.directions(x, elsewhere, u)]
        return _Found(
            move(x, u),
            slope(x, u) if noise.differentiable else None,
            emission.parameters(x, u),
            slopes,
            directions,
            emission.terms(x, u, emission.fill),
        )

    others = jnp.asarray(np.roll(np.asarray(states), 1, 0))
    try:
        return _over_inputs(lambda u: jax.vmap(look, (0, 0, None))(states, others, u), nearby)
    except (TypeError, ValueError, NotImplementedError):
        u = jax.tree.map(lambda leaf: leaf[0], nearby)
        _require_derivative("transition", lambda x: slope(x, u), states[0])
        _require_derivative("emission", lambda x: emission.slopes(x, u), states[0])
        _require_derivative("emission", lambda x: emission.directions(x, x, u), states[0])
        raise


def _transition(found: _Found, z: np.ndarray) -> list[Sampled] | None:
    """Noise and weights have no slopes here: where they change with the state, they are not constant."""
    if found.moved_slope is None:
        return None
    mean, *others = found.moved
    constants = [Sampled.of(part, np.zeros((*part.shape, z.shape[1])), z) for part in others]
    return [Sampled.of(mean, found.moved_slope, z), *constants]


def _require_derivative(name: str, derivative: Callable[[Any], Any], x: Any) -> None:
    try:
        jax.eval_shape(derivative, x)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"{name} has no derivative in the state, which the guided family needs: {str(error).splitlines()[0]}"
        ) from error


def _require_no_bounds(law: Law) -> None:
    bounds = bounds_of(law)
    if bounds is not None:
        raise ValueError(
            f"transition returns {name_of(law)}, a law of {bounds.numbers}, but the guided family needs states "
            f"that can be any number: use bs.unconstrained(model), whose states are the {bounds.unbounded}."
        )


def _require_numbers(name: str, mean: np.ndarray, what: str, *parts: np.ndarray) -> None:
    """`parts` are [inputs, states, ...]. Far states may be ones at which the model is not meant to be called."""
    near = [part[:, : NUM_STATES : len(SPREADS)] for part in parts]
    wrong = [np.isnan(part).reshape(*part.shape[:2], -1).any(-1) for part in near]
    if np.any(wrong, 0).all():
        raise ValueError(f"{name} returns a law whose {what} is NaN at the states around the prior mean {mean}.")


def _axes_of_steps(
    emission: _Emission, nearby: Inputs, states: Any, parameters: list[Sampled], stepping: list[int]
) -> np.ndarray:
    """Unit vectors [n, c, d]: the axes of the state along which the parameters of each column leave their planes."""
    d, columns = states.shape[1], len(emission.fill)
    # At each state, one coordinate after the other taken from another state.
    swapped = jnp.where(jnp.eye(d, dtype=bool), jnp.roll(states, 1, 0)[:, None], states[:, None])
    look = jax.vmap(jax.vmap(emission.parameters, (0, None)), (0, None))
    found = _over_inputs(lambda u: look(swapped, u), nearby)
    rows = []
    for i in stepping:
        matters = parameters[i].leaves_plane(found[i])  # [d, entries]
        units = matters.reshape(1, d, *found[i].shape[3:], 1) * np.eye(d).reshape(1, d, *[1] * (found[i].ndim - 3), d)
        each = emission.by_column(units)[0]
        rows.append(each if factorizes(emission.law) else np.repeat(each.max(1, keepdims=True), columns, 1))
    return np.concatenate(rows)
