"""Backstream: online variational smoothing for state-space models.

The names here are what most users need. The rest is in `bs.models`, `bs.laws`, `bs.families`, `bs.estimators`,
`bs.learning`, `bs.metrics`, `bs.plots` and, with its extra, `bs.spark`. Everything is imported when it is first used,
so that the command line's help does not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from backstream._version import __version__

if TYPE_CHECKING:
    from backstream import estimators, families, laws, learning, metrics, models, plots
    from backstream.data.columns import Columns
    from backstream.engine import spark
    from backstream.engine.learn import learn, load
    from backstream.engine.result import Result
    from backstream.engine.run import Run
    from backstream.engine.tracker import Tracker
    from backstream.errors import InputError, RunError
    from backstream.families import Guided, GuidedMixture
    from backstream.models import (
        ChaoticRNN,
        Growth,
        LinearGaussian,
        StateSpaceModel,
        StochasticVolatility,
        Unconstrained,
        structural,
        unconstrained,
    )
    from backstream.posterior import filter, forecast, sample_trajectories, smooth
    from backstream.settings import FleetSettings, Saving, Settings

_MODULES = {
    "data.columns": ("Columns",),
    "engine.learn": ("learn", "load"),
    "engine.result": ("Result",),
    "engine.run": ("Run",),
    "engine.tracker": ("Tracker",),
    "errors": ("InputError", "RunError"),
    "families": ("Guided", "GuidedMixture"),
    "models": (
        "ChaoticRNN",
        "Growth",
        "LinearGaussian",
        "StateSpaceModel",
        "StochasticVolatility",
        "Unconstrained",
        "structural",
        "unconstrained",
    ),
    "posterior": ("filter", "forecast", "sample_trajectories", "smooth"),
    "settings": ("FleetSettings", "Saving", "Settings"),
}
_NAMESPACES = "estimators", "families", "laws", "learning", "metrics", "models", "plots", "spark"


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"backstream.{'engine.' if name == 'spark' else ''}{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"backstream.{module}"), name)
    raise AttributeError(f"module 'backstream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_NAMESPACES, *(name for names in _MODULES.values() for name in names)])
