"""Models by name: those that come with the library, and a user's own by file or by module.

A name and parameters in plain TOML stand for a model, so that a run can be continued without anything having been
pickled. A run only records the name of a user's model: what is run is decided by `find_again`. The model's identity, a
digest of the source file and one of the parameters, is compared before any of that file's code is run.
"""

import hashlib
import inspect
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from backstream.errors import InputError
from backstream.models import ChaoticRNN, Growth, LinearGaussian, StateSpaceModel, StochasticVolatility, structural
from backstream.runs import trust

from .checkpoints import digest
from .model_code import ModelCode, Place, locate

MOST_NUMBERS = 10**8
"""In the arrays of a shipped model."""
MOST_NESTED = 8
"""How deep the lists of a parameter may be."""


# ---- the models that come with the library ---------------------------------------------------------------------------
def linear_gaussian(
    dim: int = 2, obs_dim: int = 0, low: float = 0.8, high: float = 0.97, variance: float = 0.1, seed: int = 0
) -> LinearGaussian:
    """A random linear-Gaussian model; obs_dim 0 stands for as many columns as states."""
    return LinearGaussian.random(dim, obs_dim or dim, low, high, variance, key=jax.random.key(seed))


def chaotic_rnn(
    dim: int = 5,
    step: float = 0.001,
    tau: float = 0.025,
    gamma: float = 2.5,
    transition_scale: float = 0.1,
    emission_scale: float = 0.1,
    df: float = 2.0,
    seed: int = 0,
) -> ChaoticRNN:
    """A chaotic recurrent network with random weights."""
    W = ChaoticRNN.random(dim, key=jax.random.key(seed)).W
    return ChaoticRNN(W, step, tau, gamma, transition_scale, emission_scale, df)


def stochastic_volatility(dim: int = 1, mu: float = 0.0, phi: float = 0.95, sigma: float = 0.3) -> StochasticVolatility:
    """Independent log variances, all with the same parameters."""
    return StochasticVolatility(*(jnp.full(dim, float(value)) for value in (mu, phi, sigma)))


def growth(transition_scale: float = 10**0.5, emission_scale: float = 1.0) -> Growth:
    """The nonstationary growth model, whose one input is the time."""
    return Growth(transition_scale, emission_scale)


SHIPPED: dict[str, Callable[..., StateSpaceModel]] = {
    "linear-gaussian": linear_gaussian,
    "chaotic-rnn": chaotic_rnn,
    "stochastic-volatility": stochastic_volatility,
    "growth": growth,
    "structural": structural,
}


# ---- any model -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Identity:
    """Which model it was: digests of its source file ("backstream" for a shipped one) and of its values."""

    source: str = ""
    values: str = ""


@dataclass(frozen=True)
class ModelChoice:
    """A model as a run directory or a configuration file names it."""

    name: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    identity: Identity = field(default_factory=Identity)

    def __post_init__(self):
        for name, value in self.parameters.items():
            if not _is_plain(value):
                raise ValueError(
                    f"The parameter {_short(name)} of the model must be a number, a text or a list of them, lists of "
                    f"lists at most {MOST_NESTED} deep."
                )


def find(
    name: str, parameters: dict[str, Any], expected: Identity | None = None, run: Path | None = None
) -> tuple[StateSpaceModel, ModelChoice]:
    """The model that the user has named in this command, with the choice to be written down.

    `name` is a shipped one, `file.py:Class` or `package.module:Class`. Where an identity is expected, a source file
    that has changed is refused before it is run, and values that have changed afterwards. Nothing that lies in the
    directory `run` is executed.
    """
    if name in SHIPPED:
        return _build(name, None, parameters, expected)
    if ":" not in name:
        raise InputError(
            f"There is no model {name!r}. Choose one of {', '.join(SHIPPED)}, "
            "or name your own: file.py:Class or package.module:Class."
        )
    return _build(name, _outside(name, run).read(), parameters, expected)


def find_again(recorded: ModelChoice, run: Path, named: str | None = None) -> StateSpaceModel:
    """The model of a run that is opened. Whatever opens a run comes here, and no other code decides what is run:

    - the model that the user has `named`, if any;
    - otherwise a shipped one, from the table above;
    - otherwise the recorded one, if the user's own list of trusted files has it as it is now.

    In each case it must be the one that the run was made with.
    """
    _require_name(recorded, run)
    if named is not None:
        if _class_name(named) != _class_name(recorded.name):
            raise InputError(f"{run} was made with the model {_short(recorded.name)!r}, not {named!r}.")
        return find(named, recorded.parameters, recorded.identity, run)[0]
    if recorded.name in SHIPPED:
        return _build(recorded.name, None, recorded.parameters, recorded.identity)[0]
    code = trust.trusted(_outside(recorded.name, run))
    if code is None:
        raise InputError(
            f"{run} was made with the model {_short(recorded.name)!r}, which is not part of backstream. Opening a run "
            "does not run code that only the run names: name the model yourself (--model file.py:Class, or "
            f"bs.load(path, model)), or check it and trust it (backstream trust {shlex.quote(str(run))})."
        )
    return _build(recorded.name, code, recorded.parameters, recorded.identity)[0]


def recorded_code(recorded: ModelChoice, run: Path) -> ModelCode:
    """The code that a run names, read for the user to look at, and not run. Raises InputError where `find_again` would
    refuse it even if it were trusted."""
    _require_name(recorded, run)
    code = _outside(recorded.name, run).read()
    _require_source(recorded.name, code.source, recorded.identity)
    if not code.defines_class():
        raise InputError(
            f"{code.place.file} does not define a class {code.place.class_name}: there is nothing in it to trust."
        )
    return code


def describe(model: StateSpaceModel) -> ModelChoice:
    """The choice to be written down for a model that was made in Python."""
    cls = type(model)
    try:
        source = hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        source = "unknown"  # defined in a notebook
    return ModelChoice(f"{cls.__module__}:{cls.__qualname__}", {"made-in": "Python"}, Identity(source, digest(model)))


def _outside(name: str, run: Path | None) -> Place:
    place = locate(name)
    if run is not None:
        place.require_outside(run)
    return place


def _require_name(recorded: ModelChoice, run: Path) -> None:
    if "made-in" in recorded.parameters:
        raise InputError(
            f"The model of {run} was made in Python ({_short(recorded.name)!r}): open the run there, with the model."
        )


def _require_source(name: str, source: str, expected: Identity) -> None:
    if source != expected.source:
        raise InputError(
            f"The source of the model {_short(name)!r} has changed since the run was started: bring back the file as "
            "it was, or begin a new run."
        )


def _class_name(name: str) -> str:
    return name.rpartition(":")[2]


def _build(
    name: str, code: ModelCode | None, parameters: dict[str, Any], expected: Identity | None
) -> tuple[StateSpaceModel, ModelChoice]:
    """A model from code that may be run, or, without any, a shipped one."""
    source = "backstream" if code is None else code.source
    if expected is not None:
        _require_source(name, source, expected)
    maker = SHIPPED[name] if code is None else code.run()
    try:
        inspect.signature(maker).bind(**parameters)
    except TypeError as error:
        allowed = ", ".join(inspect.signature(maker).parameters) or "none"
        raise InputError(
            f"The model {name} does not take these parameters ({_short(error)}); it takes: {allowed}."
        ) from error
    values = {key: jnp.asarray(v) if isinstance(v, list) else v for key, v in parameters.items()}
    try:
        if code is None:
            _require_possible(maker, values)
        model = maker(**values)
    except Exception as error:  # a maker, or JAX below it, raises errors of many types
        raise InputError(f"The model {name} refuses its parameters {_short(parameters)}: {_short(error)}") from error
    identity = Identity(source, digest(model))
    if expected is not None and identity.values != expected.values:
        raise InputError(
            f"The model {name} is not the one that the run was started with: its values differ. "
            "Give the same parameters, or begin a new run."
        )
    return model, ModelChoice(name if code is None else code.place.name, parameters, identity)


def _require_possible(maker: Callable[..., StateSpaceModel], values: dict[str, Any]) -> None:
    """Raises ValueError where a shipped model would be too large, before any memory is taken: its parameters may come
    from a run that somebody else made."""
    if "dim" in values and not values["dim"] >= 1:
        raise ValueError(f"dim must be at least 1: there are no states, or no observations, with {values['dim']}.")
    try:
        shapes = eqx.filter_eval_shape(maker, **values)
    except jax.errors.ConcretizationTypeError:  # it looks at numbers that it draws, and is as large as what it is given
        return
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "shape"))
    if size > MOST_NUMBERS:
        raise ValueError(f"it would consist of {size:.2g} numbers, where {MOST_NUMBERS:,} are the most.")


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether it can be written to TOML and read back the same."""
    if isinstance(value, list):
        return depth < MOST_NESTED and all(_is_plain(item, depth + 1) for item in value)
    return isinstance(value, bool | int | float | str)


def _short(words: object) -> str:
    text = str(words)
    return text if len(text) <= 200 else text[:200] + "…"
