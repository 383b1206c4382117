"""A learner goes on: rows of a source into a run, on disk or in memory."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from backstream.data.arrays import as_before
from backstream.data.sources import Source, open_source
from backstream.errors import InputError
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.store import RunWriter

from .driver import Holds, learn
from .progress import ProgressLine

Warn = Callable[[str], None]


def write(
    model: StateSpaceModel,
    path: Path,
    config: Config,
    source: Source,
    progress: bool,
    warn: Warn,
    *,
    holds: Holds,
    resume: bool = True,
) -> None:
    """Into a run directory."""
    with closing(RunWriter(path, config, resume=resume)) as writer:
        advance(model, source, config, writer, progress, warn, holds)


def advance(
    model: StateSpaceModel, source: Source, config: Config, writer: Any, progress: bool, warn: Warn, holds: Holds
) -> None:
    with (
        ProgressLine(progress, source.length, holds == "all") as line,
        closing(learn(model, source, config, writer, holds=holds, warn=warn)) as pieces,
    ):
        for piece in pieces:
            line.update(piece, pieces.verdict)
        verdict = pieces.verdict()
    if verdict is not None and verdict.kind in ("doubtful", "failed"):
        warn(str(verdict))


def continued(config: Config, source: Any, inputs: Any) -> Source:
    """Further rows, by the columns that were learned from."""
    table, columns = as_before(source, inputs, config.columns)
    opened = open_source(table, columns, dtype=config.precision)
    if opened.columns != config.columns:
        raise InputError(f"The rows must have the column {config.columns.time!r}, as those before.")
    return opened
