"""Fleets on Spark: streams beyond one machine. An extra, `backstream[spark]`.

Names are imported when they are first used: a worker sets what JAX reads at its start before it imports JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fleet import SETTINGS, Held, learn, learned, smooth, stream, write

WHAT_TO_INSTALL = (
    "Fleets on Spark need pyspark and Java 17: pip install 'backstream[spark]', and a Java runtime such as "
    "openjdk-17-jre-headless."
)
__all__ = ["SETTINGS", "Held", "learn", "learned", "smooth", "stream", "write"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.fleet"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pandas", "pyspark"):
            raise
        raise ModuleNotFoundError(WHAT_TO_INSTALL, name=error.name) from error
