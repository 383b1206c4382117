"""`backstream reproduce`: a table or figure of the paper. `backstream bench`: our own benchmarks."""

import os
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from backstream.errors import RunError

from .failures import plainly

CLONE = Path(__file__).parents[3]
"""The repository, where the package is used from one."""


class Name(StrEnum):
    fig1 = "fig1"
    fig2 = "fig2"
    table1 = "table1"
    fig3 = "fig3"
    table2 = "table2"
    table3 = "table3"
    ablations = "ablations"


class Bench(StrEnum):
    speed = "speed"
    gradients = "gradients"
    learning = "learning"


Quick = Annotated[bool, typer.Option("--quick", help="A shortened version: minutes instead of hours.")]


@plainly
def reproduce(
    name: Annotated[Name, typer.Argument(help="The table or figure; fig4 comes with table3.")],
    quick: Quick = False,
    replicates: Annotated[
        int | None,
        typer.Option(min=1, help="The number of sequences or seeds. Default: as in the paper, or 1 with --quick."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the numbers, the table and the picture.")] = Path(
        "reproduced"
    ),
) -> None:
    """Run an experiment of the paper.

    Uses the settings of the paper and ours, and compares both with the best possible result.

    Writes NAME.json with all numbers, NAME.md with the table, and NAME.png. After an interruption, the same command
    continues: results that are already in NAME.json are not computed again. Needs a clone of the repository.

    Example: backstream reproduce table1 --quick
    """
    _run(f"reproduction.{name.value}", out, quick, replicates, {})


@plainly
def bench(
    name: Annotated[
        Bench,
        typer.Argument(
            help="speed: time, compile time and memory, as ratios and against sizes. "
            "gradients: bias, noise and cost of each estimator, for given λ. "
            "learning: errors on fresh data over observations and seconds."
        ),
    ] = Bench.speed,
    quick: Quick = False,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="gradients: runs of each estimator (16, or 4 with --quick). learning: seeds (5, or 1 with --quick).",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the numbers, the table and the picture.")] = Path("bench"),
) -> None:
    """Run a benchmark of the library. Output files and interruptions work as in `reproduce`.

    Example: backstream bench speed --quick
    """
    environment = {}
    if name is Bench.speed:  # on one core: XLA sizes its thread pool by NPROC, once; and compiling is timed as well
        flags = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
        environment = {"NPROC": "1", "JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": flags}
    few = 4 if name is Bench.gradients else None
    _run(f"benchmarks.{name.value}", out, quick, few if quick and replicates is None else replicates, environment)


def _run(module: str, out: Path, quick: bool, replicates: int | None, environment: Mapping[str, str]) -> None:
    """Runs a module of the repository in a process of its own, which starts in the clone and imports from there."""
    if not (CLONE / "benchmarks" / "runner.py").exists():
        raise RunError(
            "This command needs a clone of the repository. The installed package does not contain the benchmarks and "
            "the reproduction of the paper."
        )
    words = [sys.executable, "-m", "benchmarks.runner", module, "--out", str(out.absolute())]
    words += ["--quick"] if quick else []
    words += [] if replicates is None else ["--replicates", str(replicates)]
    variables = {"MPLBACKEND": "Agg", **os.environ, **environment}
    ended = subprocess.run(words, cwd=CLONE, env=variables, check=False)
    if ended.returncode:
        raise typer.Exit(ended.returncode)
