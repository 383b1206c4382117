"""JAX as the command line uses it. Here, and nowhere else in the library, is its configuration touched."""

import os
from pathlib import Path


def start(precision: str) -> None:
    """Sets the precision, and a folder for compiled programs, so that the second start of a command is quick.

    The folder is BACKSTREAM_CACHE, or JAX's own variable where that is set, or the user's cache; one that cannot be
    written is done without.
    """
    import jax

    jax.config.update("jax_enable_x64", precision == "float64")
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(os.environ.get("BACKSTREAM_CACHE") or caches / "backstream")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))
