"""A job as it reaches a worker. This module is imported there before JAX is, and sets what JAX reads at its start."""

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket import Bucket

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Job:
    """Plain values and bytes: nothing of it imports JAX when Spark unpacks it."""

    precision: str
    recipe: bytes
    """A `Recipe`, by Spark's own serializer (cloudpickle)."""
    observed: int
    inputs: int
    """How many columns there are of each."""
    forget_after: int = 0
    """Milliseconds without a row after which a stream ends; 0 for never."""

    def bucket(self) -> "Bucket":
        """What advances the buckets, compiled once in each worker process."""
        prepare_jax(self.precision)
        return _bucket(self.recipe)


def sealed(precision: str, recipe: Any, **rest: Any) -> Job:
    """A job for the workers, who need not be able to import the file that the model's class was read from."""
    from pyspark import cloudpickle  # pyright: ignore[reportMissingImports]

    module = sys.modules.get(type(recipe.learner.model).__module__)
    read_from_file = module is not None and module.__name__.startswith("backstream_model_")
    if read_from_file:
        cloudpickle.register_pickle_by_value(module)
    try:
        return Job(precision, cloudpickle.dumps(recipe), **rest)
    finally:
        if read_from_file:
            cloudpickle.unregister_pickle_by_value(module)


def prepare_jax(precision: str) -> None:
    """Settings that JAX reads when it is imported: the precision, one thread for each of Spark's cores, and a folder
    for compiled programs, so that a new worker starts quickly. What the environment sets already stays."""
    wanted = precision == "float64"
    if "jax" in sys.modules:
        import jax

        if jax.config.jax_enable_x64 != wanted:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"This worker computes with another precision than {precision}: run jobs of different precisions in "
                "different Spark applications."
            )
        return
    os.environ["JAX_ENABLE_X64"] = str(wanted)
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ.get("BACKSTREAM_CACHE") or str(caches / "backstream")


@cache
def spare_the_collector() -> None:
    """Once in a process, when it has read rows. Spark collects garbage after every task, and each time that would go
    through all objects of JAX and of the compiled programs, which stay. A task then takes 0.14 s less."""
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=4)
def _bucket(recipe: bytes) -> "Bucket":
    from pyspark import cloudpickle  # pyright: ignore[reportMissingImports]

    from .bucket import Bucket

    loads: Callable[[bytes], Any] = cloudpickle.loads
    return Bucket(loads(recipe))
