"""The command line's main job, from Python."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from backstream.learning import FleetSettings, Settings
from backstream.models import StateSpaceModel

from . import keyed, streaming
from .catalogue import describe
from .config import Columns, Config, Precision, Saving, check_same
from .errors import InputError
from .progress import ProgressLine
from .results import Run
from .runs import RunWriter, is_run, open_config
from .sources import ALL, open_source


def stream(
    model: StateSpaceModel,
    source: Any,
    out: str | Path,
    *,
    settings: Settings | None = None,
    columns: Columns = ALL,
    saving: Saving | None = None,
    fleet: FleetSettings | None = None,
    resume: bool = False,
    progress: bool = True,
    warn: Callable[[str], None] = print,
) -> Run:
    """Learns from a source, writing a run directory as `backstream stream` does, and returns it opened.

    `source` is the path of a CSV, JSON Lines or Parquet file, an array [T, dy], or a pandas or Arrow table. With
    `resume`, a run that was stopped goes on after the last row that it saved. `columns` with a `key` make it a run of
    many streams, learned together as `fleet` says.

        run = bs.stream(model, "obs.csv", "run/", settings=bs.Settings(rate=1e-3))
        run = bs.stream(model, "plant.csv", "plant/", columns=bs.Columns(key="sensor_id"))
    """
    path = Path(out)
    precision: Precision = "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    opened = open_source(source, columns, dtype=precision)
    config = Config(
        precision=precision,
        model=describe(model),
        learning=settings or Settings(),
        columns=opened.columns,
        saving=saving or Saving(),
        fleet=fleet or FleetSettings(),
    )
    check_directory(path, resume)
    if is_run(path):
        check_same(open_config(path), config, path)
    streaming.check_fit(model, config)
    learn = streaming.learn if config.columns.key is None else keyed.learn
    with (
        closing(RunWriter(path, config)) as writer,
        ProgressLine(progress) as line,
        closing(learn(model, opened, config, writer, warn=warn)) as pieces,
    ):
        for piece in pieces:
            line.update(piece)
    return Run(path, model)


def check_directory(path: Path, resume: bool) -> None:
    """Raises InputError where a run may not be written: over another one, or among files that are none of ours."""
    if is_run(path) and not resume:
        raise InputError(f"{path} already holds a run: continue it with resume, or choose another directory.")
    if path.exists() and not is_run(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not a run directory: choose another.")
