"""The results of the paper, one module each, and how any of them is run: by parts, each written down when it is done.

A module has SETTINGS, what a quick run changes in them (QUICK), how many REPLICATES there are, `parts`, which maps
names to what computes them, and `markdown` and `figure`, which show what has been computed so far.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from backstream import plots

from .harness import Results, console

NAMES = ("fig1", "fig2", "table1", "fig3", "table2", "table3", "ablations")


class Result(NamedTuple):
    """A table or figure of the paper."""

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


def result(name: str) -> Result:
    module = import_module(f".{name}", __package__)
    about = (module.__doc__ or "").split("\n\n", 2)[-1].strip()
    return Result(name, about, *(getattr(module, field) for field in Result._fields[2:]))


def reproduce(
    name: str, folder: Path, quick: bool = False, replicates: int | None = None, command: str = "reproduce"
) -> Path:
    """Runs what has not been run yet, and writes NAME.json, NAME.md and NAME.png. A quick run has files of its own."""
    chosen = result(name)
    settings = chosen.SETTINGS | (chosen.QUICK if quick else {})
    command = f"backstream {command} {name}" + (" --quick" if quick else "")
    results = Results(f"{name}-quick" if quick else name, settings, folder, command)
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
