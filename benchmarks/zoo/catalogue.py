"""All models of the zoo."""

from importlib import import_module

from benchmarks.zoo.case import Case

SINGLE_MODE = (
    "range_bearing",
    "bearings_only",
    "lorenz63_three",
    "lorenz63_one",
    "lorenz96_laplace",
    "spikes",
    "choices",
    "volatility",
    "volatilities",
    "epidemic",
    "labels",
    "wind",
    "revenue",
    "heating",
    "quasar",
    "lynx_and_hare",
    "diary",
    "pendulum",
    "thermometer",
    "trades",
    "sensors",
    "membrane",
    "aircraft",
    "sunspots",
    "load",
)
SEVERAL_MODES = ("growth", "absolute_value", "double_well", "price", "river")


def find(name: str) -> Case:
    """The model of that name."""
    if name not in SINGLE_MODE + SEVERAL_MODES:
        raise ValueError(f"No model {name!r} in the zoo; it has: {', '.join(SINGLE_MODE + SEVERAL_MODES)}.")
    return import_module(f"benchmarks.zoo.models.{name}").CASE
