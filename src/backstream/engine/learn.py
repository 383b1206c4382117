"""`learn`: from a source to a result. `load`: open a saved result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import optax

from backstream.data.arrays import as_table
from backstream.data.columns import Columns
from backstream.data.sources import ALL, open_source
from backstream.errors import InputError
from backstream.learning.parameters import ALL_PARAMETERS, steps_by_name
from backstream.models import StateSpaceModel
from backstream.runs.config import Config, Precision
from backstream.runs.memory import MemoryRun
from backstream.runs.model_registry import describe
from backstream.runs.store import check_directory
from backstream.settings import FleetSettings, Saving, Settings

from .advance import Warn, advance, write
from .memory_result import MemoryResult
from .preparation import check_fit, require_writable
from .result import Result
from .run import Run


class RunOptions(TypedDict, total=False):
    """Options of `learn` about the run, not about what is learned."""

    saving: Saving | None
    fleet: FleetSettings | None
    resume: bool
    progress: bool
    warn: Warn


def learn(
    model: StateSpaceModel,
    source: Any,
    *,
    inputs: Any = None,
    out: str | Path | None = None,
    learn: str | Sequence[str] | Mapping[str, Any] = (),
    settings: Settings | None = None,
    columns: Columns = ALL,
    **options: Unpack[RunOptions],
) -> Result:
    """Reads a source once, row by row, and returns the estimated states and what was learned.

    Args:
        model: The state-space model.
        source: The observations: an array of shape [T, dy] or [T], a pandas Series or DataFrame, an Arrow table, or the
            path of a CSV, JSON Lines or Parquet file. NaN and empty cells are missing values.
        inputs: Known inputs of each row, of shape [T, k] or [T]. For a file or a table, you can use `columns` instead.
        out: A run directory to write while the rows are read. By default the result is kept in memory.
        learn: The parameters of the model to learn: field names, "all", or a dictionary from names to optax
            transformations. Use a dot for a part of a field. By default the parameters are fixed, unless `settings`
            says otherwise.
        settings: How to learn.
        columns: The roles of the columns of a file or a table. With a `key`, the source holds many streams.
        options: How to run it: `saving=Saving(...)`, when and how to write `out`; `fleet=FleetSettings(...)`, settings
            for many streams; `resume=True`, continue the run in `out` after the last row that it saved;
            `progress=False`, without a progress line; `warn=function`, which is called with each warning.

    Returns:
        The result. It is a `Run` if `out` is given.

    Raises:
        InputError: If the model, the source, the columns and the settings do not match.
        RunError: If a row cannot be used, or the directory cannot be written.
        TypeError: If there is no such option.

    Example:
        ```python
        result = bs.learn(model, ys, inputs=us)
        result = bs.learn(model, "obs.csv", out="run/", learn=["phi", "sigma"])
        result = bs.learn(model, ys, learn={"phi": optax.adam(1e-3), "sigma": optax.sgd(1e-4)})
        result = bs.learn(model, "plant.csv", out="plant/", columns=bs.Columns(key="sensor_id"))
        ```
    """
    unknown = options.keys() - RunOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"learn has no option {min(unknown)!r}. It has {', '.join(RunOptions.__annotations__)}.")
    resume, progress, warn = options.get("resume", False), options.get("progress", True), options.get("warn", print)
    precision: Precision = "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    table, columns = as_table(source, inputs, columns)
    opened = open_source(table, columns, dtype=precision)
    config = Config(
        precision=precision,
        model=describe(model),
        learning=_choosing(settings or Settings(), learn),
        columns=opened.columns,
        saving=options.get("saving") or Saving(),
        fleet=options.get("fleet") or FleetSettings(),
        model_optimizer=_steps(model, learn) if isinstance(learn, Mapping) else None,
    )
    check_fit(model, config)
    if out is None:
        if resume or config.columns.key is not None:
            what = "A run of many streams" if config.columns.key is not None else "A run that is resumed"
            raise InputError(f"{what} needs a directory: out='run/'.")
        kept = MemoryRun()
        advance(model, opened, config, kept, progress, warn, "rest")
        return MemoryResult(model, config, kept, ((source, inputs),))
    require_writable(config)
    path = Path(out)
    check_directory(path, resume)
    write(model, path, config, opened, progress, warn, holds="all", resume=resume)
    return Run(path, model, ((source, inputs),))


def _choosing(settings: Settings, learn: str | Iterable[str]) -> Settings:
    """The settings with the parameters to learn."""
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    if ALL_PARAMETERS in names:
        return replace(settings, learn_model=True, learn_parameters=())
    return replace(settings, learn_parameters=names) if names else settings


def _steps(model: StateSpaceModel, learn: Mapping[str, Any]) -> optax.GradientTransformation | None:
    try:
        return steps_by_name(model, learn) if learn else None
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error


def load(path: str | Path, model: StateSpaceModel | str | None = None) -> Run:
    """Opens a run directory.

    Args:
        path: The directory.
        model: Your model, or its name (`file.py:Class` or `package.module:Class`). Not needed for built-in models and
            for files that you have trusted with `backstream trust run/`.

    Returns:
        The run, with the same methods as the result of `learn`.

    Raises:
        InputError: If the directory is not a run, or the model differs from the one of the run.

    Example:
        ```python
        run = bs.load("run/", model)
        run.smooth("obs.csv").mean
        ```
    """
    return Run(path, model)
