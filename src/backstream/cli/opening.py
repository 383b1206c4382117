"""Runs as the commands that read them open them."""

import sys
from pathlib import Path

from backstream.io.results import Run
from backstream.io.runs import open_config

from . import machine


def open_run(path: Path, model: str | None = None) -> Run:
    """A run with what it learned, in its own precision; damage that could be got round is told on stderr."""
    machine.start(open_config(path).precision)
    run = Run(path, name=model)
    _ = run.learned
    for warning in run.warnings:
        print(f"backstream: {warning}", file=sys.stderr)
    return run
