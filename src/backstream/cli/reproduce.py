"""`backstream reproduce`, a table or figure of the paper, and `backstream bench`, what our own work is judged by."""

import os
import sys
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import plainly


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
        int | None, typer.Option(min=1, help="How many sequences or seeds. As many as the paper, or one with --quick.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the numbers, the table and the picture.")] = Path(
        "reproduction"
    ),
) -> None:
    """Run an experiment of the paper: with the paper's settings, with ours, and beside the best possible.

    Writes NAME.json with every number, NAME.md with the table and NAME.png. What is in NAME.json already is not run
    again: after an interruption the same command goes on.

    Example: backstream reproduce table1 --quick
    """
    _run(name.value, out, quick, replicates, "reproduce")


@plainly
def bench(
    name: Annotated[
        Bench,
        typer.Argument(
            help="speed: time, compile time and memory, as ratios and against sizes. "
            "gradients: bias, noise and price of each estimator, for given λ. "
            "learning: errors on fresh data against observations and seconds."
        ),
    ] = Bench.speed,
    quick: Quick = False,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=2, help="gradients: how many runs of each estimator, 16 or, with --quick, 4; learning: seeds, 5 or 1."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the numbers, the table and the picture.")] = Path("bench"),
) -> None:
    """Measure what the library claims of itself. Files and interruptions are as with `reproduce`.

    Example: backstream bench speed --quick
    """
    if name is Bench.speed:  # on one core: XLA sizes its thread pool by NPROC, once; and compiling is timed as well
        os.environ |= {"NPROC": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    few = 4 if name is Bench.gradients else None
    _run(name.value, out, quick, few if quick and replicates is None else replicates, "bench")


def _run(name: str, out: Path, quick: bool, replicates: int | None, command: str) -> None:
    from .jax_setup import start

    start("float32")
    os.environ.setdefault("MPLBACKEND", "Agg")
    page = _experiments("reproduction").reproduce(name, out, quick, replicates, command)
    print(f"Written: {page}, and beside it .json and .png")


def _experiments(module: str) -> Any:
    """A module of `experiments/`: part of an installed package, or in the repository that this is run from."""
    if find_spec("backstream.experiments") is not None:
        return import_module(f"backstream.experiments.{module}")
    root = Path(__file__).parents[3]
    if not (root / "experiments" / f"{module}.py").exists():
        from backstream.errors import RunError

        raise RunError("The experiments are not installed here: run the command from a clone of the repository.")
    sys.path.insert(0, str(root))
    return import_module(f"experiments.{module}")
