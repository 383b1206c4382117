"""What all tests share: precision, threads, the compilation cache and the checks of types and shapes."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

# The developer's own settings, and list of trusted models, are neither read nor written.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="backstream-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# Most of the time goes into compiling programs that run once: LLVM need not optimize them, and XLA's older emitters are
# three times as quick.
quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
flags = [os.environ.get("XLA_FLAGS", ""), quick]
# Under xdist each worker computes on one thread. The flags alone do not see to that: XLA sizes its thread
# pool by NPROC.
if "PYTEST_XDIST_WORKER" in os.environ:
    flags.append("--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    os.environ.setdefault("NPROC", "1")
os.environ["XLA_FLAGS"] = " ".join(flags).strip()

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Tests make float32 arrays explicitly where they want float32.
jax.config.update("jax_enable_x64", True)

# The workers share the cache. Reading an entry while another worker writes it costs a warning and a
# compilation, no more.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

# A first call compiles, so the time of one example says nothing.
settings.register_profile("backstream", deadline=None)
settings.load_profile("backstream")

# Before anything imports backstream: beartype checks every annotation, jaxtyping's shapes included.
install_import_hook("backstream", "beartype.beartype")

MOST_MAPPINGS = 20_000
"""The kernel allows a process 65 530 mappings of memory by default, and every compiled program takes some."""


ROOT = Path(__file__).parents[1]
OURS = {
    ".cache",
    ".coverage",
    ".hypothesis",
    ".import_linter_cache",
    ".pytest_cache",
    ".ruff_cache",
    "__pycache__",
    "build",
    "site",
}
"""What tools leave in the root of the repository."""


@pytest.fixture(autouse=True)
def leave_nothing_behind():
    """Fails a test that leaves a run, a picture or anything else in the root of the repository."""
    before = set(os.listdir(ROOT))
    yield
    assert set(os.listdir(ROOT)) - before <= OURS


@pytest.fixture(autouse=True)
def forget_programs():
    """Drops compiled programs before their number makes the compiler crash."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
