"""How a model is to be read: found once, from its laws and their derivatives at a few states."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.laws import NORMALS, Law, columns_of, parameters_of

from .constants import Constant
from .groups import find_groups
from .model_reading import Reading, read_model, read_noise
from .noise import Noise
from .places import Place
from .prediction import Transition
from .predictors import Predictors, find_predictors
from .sampled import Sampled
from .updates import Closed, Propagated, Update
from .wide_updates import Joint, Regressed, RegressedNormal, RegressedStudent

FEW_PARTS = 5
"""Of a transition, so that several components with so many each cost little."""


class Plan(NamedTuple):
    """What is known of a model before the first row."""

    state_dim: int
    obs_dim: int
    transition: Transition
    prior: Noise
    """How the prior's law is read."""
    update: Update
    fill: Constant
    """A draw of the emission: its type, and a value for what is missing."""
    normal: bool
    """Whether the states' own laws, prior and transition, are normal."""

    @property
    def has_jumps(self) -> bool:
        """Whether the state moves by a mixture or a Student-t law of few parts: after a jump that an outlier would
        explain as well, the posterior has two modes."""
        noise = self.transition.noise
        return 1 < noise.count <= FEW_PARTS and noise.shape is None

    @property
    def exact(self) -> bool:
        """Whether the model is linear and Gaussian, so that nothing is approximated."""
        return self.normal and self.transition.affine and isinstance(self.update, Closed)


def make_plan(
    p: StateSpaceModel, u: Inputs, dtype, places: Sequence[Place] = (), other: StateSpaceModel | None = None
) -> Plan:
    """Reads the model at several states, with the inputs `u` of the first row and with others, and at these places; and
    as it is with `other` parameters, if these are to be learned.

    Raises ValueError, naming the method, where the model cannot be read.
    """
    # A scale of zero is no mistake: there are states without noise of their own.
    with numpyro.validation_enabled(False):
        tolerance = 1e-4 if dtype == jnp.float32 else 1e-8
        reading = read_model(p, u, dtype, tolerance, places, other)
        start = reading.start
        transition = Transition(_is_affine(reading, tolerance), start.noise)
        if not transition.affine and start.noise.count > FEW_PARTS:  # each of many pieces is moved by all parts
            transition = Transition(False, read_noise(p, u, start.near, start.noise.known, FEW_PARTS))
        update = _choose_update(reading, tolerance)
        sizes = len(start.mean), len(start.fill)
        return Plan(*sizes, transition, start.prior, update, Constant(start.fill), start.normal)


def _is_affine(reading: Reading, tolerance: float) -> bool:
    """Whether the transition moves the mean by an affine map, and its noise does not depend on the state."""
    if reading.transition is None:
        return False
    return all(part.is_affine(tolerance) for part in reading.transition)


def _choose_update(reading: Reading, tolerance: float) -> Update:
    """The first that fits: a closed form, grids, or what works for many directions."""
    law, predictors, affine, normal, student = reading.start.law, None, False, False, False
    closed = False
    if isinstance(law, NORMALS):
        location, noise = reading.parameters
        normal = not noise.varies()
        closed = affine = normal and location.is_affine(tolerance)
    elif isinstance(law, dist.MultivariateStudentT):
        student = not any(parameter.varies() for parameter in reading.parameters[1:])
    elif reading.start.readable:
        parameters = _of_columns(law, reading.parameters)
        found = None if parameters is None else find_predictors(law, parameters, tolerance)
        if found is not None:
            predictors, affine = found
            normal = isinstance(columns_of(law), dist.Normal) and _only_location(law, predictors)
            # A location whose logarithm or logit is affine is not affine itself.
            closed = normal and affine and predictors.leaves[0].link == "identity"
    if closed:
        return Closed()
    of_columns = predictors.count if predictors is not None and affine else None
    groups = find_groups(reading.slopes, reading.start.scale, of_columns)
    if groups is not None:
        return Propagated(groups, predictors if affine else None)
    if normal:
        return RegressedNormal()
    if student:
        return RegressedStudent()
    if predictors is not None:
        return Regressed(predictors)
    if reading.steps:
        raise ValueError(
            "emission changes in steps along more than three directions of the state, where it has no derivative: "
            "the guided family cannot follow it."
        )
    return Joint()


def _of_columns(law: Law, parameters: list[Sampled]) -> list[Sampled | None] | None:
    """Parameters with one entry for each column, None for one that never varies.

    Where one that varies has neither an entry for each column nor one for all (the logits of labels, the locations of
    the parts of a mixture), the law cannot be read column by column, and there is no list.
    """
    (columns,), shapes = law.event_shape, map(jnp.shape, parameters_of(columns_of(law))[0])
    varying = [
        (parameter if parameter.varies() else None, shape) for parameter, shape in zip(parameters, shapes, strict=True)
    ]
    if any(one is not None and shape not in ((), (1,), (columns,)) for one, shape in varying):
        return None
    return [None if one is None else one.repeated(columns) for one, _ in varying]


def _only_location(law: Law, predictors: Predictors) -> bool:
    parameters, _ = parameters_of(columns_of(law))
    return len(predictors.leaves) == 1 and parameters[predictors.leaves[0].index] is columns_of(law).loc
