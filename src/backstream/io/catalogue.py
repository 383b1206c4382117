"""Models by name: those that come with the library, and a user's own by file or by module.

A name and parameters in plain TOML stand for a model, so that a run can be continued without anything having been
pickled. Its identity, a digest of the source file and one of the parameters, is compared before any of that file's
code is run.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from backstream import __version__
from backstream.models import ChaoticRNN, Growth, LinearGaussian, StateSpaceModel, StochasticVolatility, structural

from .checkpoints import digest
from .errors import InputError


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
    """Which model it was: digests of its source file (or the version, for one of the library's) and of its values."""

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
                raise ValueError(f"The parameter {name} of the model must be a number, a text or a list of them.")


def find(
    name: str, parameters: dict[str, Any], expected: Identity | None = None, run: Path | None = None
) -> tuple[StateSpaceModel, ModelChoice]:
    """The model of a name, with the choice to be written down.

    `name` is a shipped one, `file.py:Class` or `package.module:Class`. Where an identity is expected, a source file
    that has changed is refused before it is run, and values that have changed afterwards. Nothing that lies in the
    directory `run` is executed.
    """
    maker, source, full_name = _maker(name, expected, run)
    try:
        inspect.signature(maker).bind(**parameters)
    except TypeError as error:
        allowed = ", ".join(inspect.signature(maker).parameters) or "none"
        raise InputError(f"The model {name} does not take these parameters ({error}); it takes: {allowed}.") from error
    try:
        model = maker(**{key: jnp.asarray(v) if isinstance(v, list) else v for key, v in parameters.items()})
    except Exception as error:  # a maker, or JAX below it, raises errors of many types
        raise InputError(f"The model {name} refuses its parameters {parameters}: {error}") from error
    if not isinstance(model, StateSpaceModel):
        raise InputError(f"{name} makes a {type(model).__name__}, not a backstream.StateSpaceModel.")
    identity = Identity(source, digest(model))
    if expected is not None and identity.values != expected.values:
        raise InputError(
            f"The model {name} is not the one that the run was started with: its values differ. "
            "Give the same parameters, or begin a new run."
        )
    return model, ModelChoice(full_name, parameters, identity)


def describe(model: StateSpaceModel) -> ModelChoice:
    """The choice to be written down for a model that was made in Python."""
    cls = type(model)
    try:
        source = _digest(Path(inspect.getfile(cls)).read_bytes())
    except (OSError, TypeError):
        source = "unknown"  # defined in a notebook
    return ModelChoice(f"{cls.__module__}:{cls.__qualname__}", {"made-in": "Python"}, Identity(source, digest(model)))


def _maker(name: str, expected: Identity | None, run: Path | None) -> tuple[Callable[..., Any], str, str]:
    """What makes the model, the digest of where it stands, and the name it can be found by from anywhere."""
    if name in SHIPPED:
        return SHIPPED[name], f"backstream {__version__}", name
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise InputError(
            f"There is no model {name!r}. Choose one of {', '.join(SHIPPED)}, "
            "or name your own: file.py:Class or package.module:Class."
        )
    if where.endswith(".py"):
        path = Path(where).absolute()
        _require_outside(name, path, run)
        module, source = _from_file(name, path, expected)
        full_name = f"{path}:{attribute}"
    else:
        module, source = _from_module(name, where, expected, run)
        full_name = name
    maker = getattr(module, attribute, None)
    if not callable(maker):
        defined = [key for key, value in vars(module).items() if _is_model_class(value)]
        raise InputError(f"{where} has no model {attribute}; it defines: {', '.join(defined) or 'none'}.")
    return maker, source, full_name


def _from_file(name: str, path: Path, expected: Identity | None) -> tuple[ModuleType, str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"The model file {path} cannot be read: {error.strerror}.") from error
    source = _digest(content)
    _check_source(name, source, expected)
    module = ModuleType(f"backstream_model_{path.stem}_{source[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their annotations up there
    try:
        exec(compile(content, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise InputError(f"The model file {path} cannot be run: {type(error).__name__}: {error}") from error
    return module, source


def _from_module(name: str, where: str, expected: Identity | None, run: Path | None) -> tuple[ModuleType, str]:
    # The package first: to find a module in it, Python runs its __init__.
    for part in (where.partition(".")[0], where):
        try:
            spec = importlib.util.find_spec(part)
        except (ImportError, ValueError):
            spec = None
        except (Exception, SystemExit) as error:
            raise InputError(f"The module {where} cannot be imported: {type(error).__name__}: {error}") from error
        if spec is not None:
            for place in filter(None, (spec.origin, *(spec.submodule_search_locations or ()))):
                _require_outside(name, Path(place).absolute(), run)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise InputError(f"There is no Python module {where!r} (for the model {name!r}): is it installed?")
    source = _digest(Path(spec.origin).read_bytes())
    _check_source(name, source, expected)
    try:
        return importlib.import_module(where), source
    except (Exception, SystemExit) as error:
        raise InputError(f"The module {where} cannot be imported: {type(error).__name__}: {error}") from error


def _require_outside(name: str, path: Path, run: Path | None) -> None:
    if run is None:
        return
    if path.is_relative_to(run.absolute()) or path.resolve().is_relative_to(run.resolve()):
        raise InputError(f"The model {name} lies in the run directory, from which nothing is executed: move it.")


def _check_source(name: str, source: str, expected: Identity | None) -> None:
    if expected is not None and source != expected.source:
        raise InputError(
            f"The source of the model {name} has changed since the run was started: bring back the file as it was, "
            "or begin a new run."
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_plain(value: Any) -> bool:
    """Whether it can be written to TOML and read back the same."""
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float | str)


def _is_model_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, StateSpaceModel) and value is not StateSpaceModel
