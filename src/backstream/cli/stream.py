"""`backstream stream`: learn online."""

import os
import stat
import sys
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from backstream._terminal import visible
from backstream.data.columns import Columns
from backstream.settings import FleetSettings, Saving, Settings

from .failures import NOT_USABLE, Stop, plainly, silence_stdout
from .generated import Group, generated
from .options import ConfigOption, FormatOption, ModelName, PrecisionOption, SetOption, SourceName, parameters


@dataclass(frozen=True)
class Request:
    """What the command is asked for, apart from the settings of the run."""

    out: Annotated[str | None, typer.Option("--out", "-o")] = None
    """The run directory to write. Without it, or with -, results go to stdout."""
    resume: bool = False
    """Continue the run in --out, if there is one."""
    replay: bool = False
    """With --resume and standard input: the input starts again from its first row, and rows already read are skipped.
    Default: the input continues after the last row."""
    new_rows: bool = False
    """With --resume: the file holds only rows that the run has not read."""
    follow: bool = False
    """Wait for more rows at the end of the file, also after log rotation. Ctrl-C ends."""
    format: FormatOption = None
    config: ConfigOption = None
    precision: PrecisionOption = None
    set_: SetOption = None
    particle_devices: Annotated[int, typer.Option("--particle-devices", min=1)] = 1
    """With --key: devices that share the particles of one stream (recursion)."""
    print_rows: Annotated[bool | None, typer.Option("--print/--no-print")] = None
    """Print JSON Lines to stdout. Default: if stdout is a pipe, or without --out."""

    @property
    def path(self) -> Path | None:
        return None if self.out is None or self.out == "-" else Path(self.out)

    @property
    def prints(self) -> bool:
        if self.print_rows is not None:
            return self.print_rows
        return self.path is None or stat.S_ISFIFO(os.fstat(1).st_mode)

    def holds(self, source: str) -> Any:
        """Which rows of a resumed run the source holds: new ones, those after the last, or all."""
        return "new" if self.new_rows else "rest" if source == "-" and not self.replay else "all"


LEARNING = {
    "learn": typer.Option("--no-learn", help="Learn nothing: only filter with the model as given."),
    "learn_parameters": typer.Option(
        "--learn", metavar="NAME,NAME", help="Learn these parameters of the model, as phi,sigma; or all."
    ),
}
COLUMNS = {
    "observed": typer.Option("--columns"),
    "inputs": typer.Option("--input-columns"),
    "elapsed": typer.Option(
        "--elapsed",
        help="Add the time since the previous row (in seconds, for dates) as the last input. Needs --time.",
    ),
}
FLEET = {"common": typer.Option("--own", help="Each stream has its own posterior. Default: one, learned from all.")}


@plainly
@generated(
    request=Group(Request, "Input and output"),
    columns=Group(Columns, "Columns", COLUMNS),
    learning=Group(Settings, "Learning", LEARNING),
    saving=Group(Saving, "Saving, with --out"),
    fleet=Group(FleetSettings, "Many streams, with --key", FLEET),
)
def stream(
    model: ModelName,
    source: SourceName,
    request: dict[str, Any],
    columns: dict[str, Any],
    learning: dict[str, Any],
    saving: dict[str, Any],
    fleet: dict[str, Any],
) -> None:
    """Learn online from a stream. Each row is used once, and the filtered state is written as the rows arrive.

    Empty cells are missing values. --resume continues a run that was stopped by Ctrl-C or kill -9, with identical
    results. The command ends with a verdict: good, learning, doubtful or failed. "failed" gives exit code 3.

    Example: backstream stream chaotic-rnn obs.csv --set dim=5 --out run/

    Example: sensor | backstream stream my_model.py:Drift - --columns x,y --time at | consumer

    Example: backstream stream stochastic-volatility returns.csv --follow --learn phi,sigma --out run/ --resume

    Example: backstream stream chaotic-rnn plant.csv --set dim=2 --key sensor_id --time at --out run/
    """
    asked = Request(**request)
    if learning.get("learn_parameters") == ["all"]:
        learning = learning | {"learn_model": True, "learn_parameters": None}
    flags = {
        "precision": asked.precision,
        "model": {"name": model, "parameters": parameters(asked.set_)},
        "learning": learning,
        "columns": columns,
        "saving": saving,
        "fleet": fleet,
    }
    _run(asked, source, flags)


def _run(asked: Request, source: str, flags: dict[str, Any]) -> None:
    from backstream.errors import InputError

    if source != "-" and not Path(source).exists():  # before seconds are spent on imports
        raise InputError(f"There is no file {source}.")
    if asked.path is None and asked.resume:
        raise InputError("--resume needs the run directory: add --out run/.")
    stop = Stop()
    from backstream.cli import jax_setup
    from backstream.runs.store import check_directory

    from .settings import effective

    if asked.path is not None:
        check_directory(asked.path, asked.resume)
    config, expected = effective(flags, asked.config, asked.path)
    if asked.particle_devices > 1 and config.columns.key is None:
        raise InputError("--particle-devices needs --key, also for a single stream.")
    jax_setup.start(config.precision)
    verdict = _learn(asked, source, config, expected, stop)
    if stop.requested():
        raise typer.Exit(stop.exit_code())
    if verdict is not None and verdict.kind == "failed":
        raise typer.Exit(NOT_USABLE)


def _learn(asked: Request, name: str, config: Any, expected: Any, stop: Stop) -> Any:
    """Returns the verdict; None if no row was read."""
    from backstream.engine.driver import learn
    from backstream.engine.preparation import check_fit
    from backstream.engine.progress import ProgressLine
    from backstream.runs.model_registry import find
    from backstream.runs.store import RunWriter

    model, choice = find(config.model.name, config.model.parameters, expected, asked.path)
    source = _opened(asked, name, config, stop)
    config = replace(config, model=choice, columns=source.columns)
    check_fit(model, config)
    output = _Output(asked, config.text())
    with (
        nullcontext() if asked.path is None else closing(RunWriter(asked.path, config, resume=asked.resume)) as writer,
        ProgressLine(True, source.length, asked.holds(name) == "all") as line,
        closing(
            learn(
                model,
                source,
                config,
                writer,
                mesh=_mesh(asked, config),
                holds=asked.holds(name),
                stopped=stop.requested,
                warn=line.say,
            )
        ) as pieces,
    ):
        for piece in pieces:
            line.update(piece, pieces.verdict)
            output.take(piece)
        verdict = pieces.verdict()
    output.conclude(verdict)
    return verdict


def _opened(asked: Request, name: str, config: Any, stop: Stop) -> Any:
    from backstream.data.sources import open_source
    from backstream.errors import InputError

    options = {"format": asked.format, "follow": asked.follow, "dtype": config.precision, "stopped": stop.requested}
    try:
        return open_source(name, config.columns, **options)
    except InputError:
        if stop.requested():  # while it waited for the first row
            raise typer.Exit(stop.exit_code()) from None
        raise


def _mesh(asked: Request, config: Any) -> Any:
    from backstream.errors import InputError
    from backstream.learning.multistream.sharding import device_mesh

    if config.columns.key is None:
        return None
    try:
        return device_mesh(asked.particle_devices)
    except ValueError as error:
        raise InputError(str(error)) from error


class _Output:
    """What is said of a stream while it is learned from, and in the end."""

    def __init__(self, asked: Request, config: str):
        self._asked, self._config = asked, config
        self._last = self._refused = 0

    def take(self, piece: Any) -> None:
        from backstream.errors import RunError
        from backstream.runs.tables import write_rows

        begun, self._last = self._last > 0, piece.position
        self._refused += int(piece.rows.refused.sum())
        if not self._asked.prints:
            return
        try:
            write_rows(_printed(piece.rows), None if begun else self._config)
        except BrokenPipeError:
            silence_stdout()
            where = "" if self._asked.path is None else f" The rows up to there are saved in {self._asked.path}."
            raise RunError(
                f"The program that reads standard output has closed it after row {self._last}.{where}"
            ) from None
        except OSError as error:
            silence_stdout()
            raise RunError(f"Standard output cannot be written: {error.strerror}.") from None

    def conclude(self, verdict: Any) -> None:
        from .open_run import say_verdict

        counted = "" if not self._refused else f", {self._refused:,} updates were not finite and were skipped"
        after = "" if self._asked.path is None else f" Next: backstream inspect {self._asked.path}"
        if after:
            print(visible(f"{self._last:,} rows read{counted}.{after}"), file=sys.stderr)
        say_verdict(verdict)


def _printed(rows: Any) -> list[dict[str, Any]]:
    import numpy as np

    printed = []
    for i in range(len(rows.mean)):
        row = {"row": rows.first + i} | ({} if rows.keys is None else {"key": rows.keys[i]})
        row |= {} if rows.times is None else {"time": rows.times[i]}
        known = not np.isnan(rows.mean[i]).any()  # not so where the row could not be used
        printed.append(row | {name: getattr(rows, name)[i].tolist() if known else None for name in ("mean", "std")})
    return printed
