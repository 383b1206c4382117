"""Runs as the commands that read them open them."""

import sys
from pathlib import Path

import pyarrow as pa
import typer

from backstream._terminal import visible
from backstream.cli import jax_setup
from backstream.engine.run import Run
from backstream.errors import InputError
from backstream.learning import Verdict
from backstream.runs.store import FILTERED, open_config, read_filtered

from .failures import FAILURE


def open_run(path: Path, model: str | None = None) -> Run:
    """A run with what it learned, in its own precision. Damage that could be worked around is reported on stderr."""
    jax_setup.start(open_config(path).precision)
    run = Run(path, model)
    _ = run.learned
    _say(run.warnings)
    run.warnings = []
    return run


def read_scored(path: Path) -> pa.Table:
    """The results of a run, with the predictive scores of its rows."""
    table = read_filtered(path)
    for name in ("log_score", "pit_0", "crps_0"):
        if name not in table.column_names:
            raise InputError(f"The results in {path / FILTERED} have no column {name!r}: they are not backstream's.")
    return table


def say_verdict(verdict: Verdict | None) -> None:
    """On stderr."""
    for line in [] if verdict is None else str(verdict).splitlines():
        print(visible(line), file=sys.stderr)


def conclude(run: Run) -> None:
    """Ends with code 1 where some streams of a source could not be used, once their neighbors' results are out."""
    if run.warnings:
        _say(run.warnings)
        raise typer.Exit(FAILURE)


def _say(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"backstream: {visible(warning)}", file=sys.stderr)
