"""Runs a result of the paper or a benchmark by parts, each written down when it is done.

    python -m benchmarks.runner reproduction.table1 --quick --out reproduced

A module has SETTINGS, what a quick run changes in them (QUICK), how many REPLICATES there are, `parts`, which maps
names to what computes them, and `markdown` and `figure`, which show what has been computed so far. `backstream
reproduce` and `backstream bench` run this file.
"""

import argparse
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from backstream import plots
from backstream.cli.jax_setup import start
from benchmarks.harness import Results, console

COMMANDS = {"reproduction": "backstream reproduce", "benchmarks": "backstream bench"}


class Result(NamedTuple):
    """A table or figure of the paper, or a benchmark."""

    name: str
    ABOUT: str
    """What the paper did and what we do: the rest of the module's docstring after the command."""
    TITLE: str
    SETTINGS: dict[str, Any]
    QUICK: dict[str, Any]
    REPLICATES: int
    parts: Callable[[dict[str, Any], int], dict[str, Callable[[], Any]]]
    markdown: Callable[[dict[str, Any]], str]
    figure: Callable[[dict[str, Any]], Any]


def result(module: str) -> Result:
    found = import_module(module)
    about = (found.__doc__ or "").split("\n\n", 2)[-1].strip()
    return Result(module.rpartition(".")[2], about, *(getattr(found, field) for field in Result._fields[2:]))


def run(module: str, folder: Path, quick: bool = False, replicates: int | None = None) -> Path:
    """Runs what has not been run yet, and writes NAME.json, NAME.md and NAME.png. A quick run has files of its own."""
    chosen = result(module)
    settings = chosen.SETTINGS | (chosen.QUICK if quick else {})
    command = f"{COMMANDS[module.partition('.')[0]]} {chosen.name}" + (" --quick" if quick else "")
    results = Results(folder / (f"{chosen.name}-quick.json" if quick else f"{chosen.name}.json"), command, settings)
    if replicates is None:
        replicates = 1 if quick else chosen.REPLICATES
    parts = chosen.parts(settings, replicates)
    for k, (part, compute) in enumerate(parts.items(), 1):
        results.run(part, compute, f"{k} of {len(parts)}: ")
    page = results.path.with_suffix(".md")
    page.write_text(f"# {chosen.TITLE}\n\n`{command}`\n\n{chosen.markdown(results.content)}")
    plots.save(chosen.figure(results.content), results.path.with_suffix(".png"))
    console.print(page.read_text(), markup=False, highlight=False)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runner")
    parser.add_argument("module")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--replicates", type=int)
    chosen = parser.parse_args()
    start("float32")
    try:
        page = run(chosen.module, chosen.out, chosen.quick, chosen.replicates)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    print(f"Written: {page}, and beside it .json and .png")


if __name__ == "__main__":
    main()
