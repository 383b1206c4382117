"""`backstream stream`: learn online."""

import os
import stat
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from backstream._terminal import visible

from .failures import NOT_USABLE, Stop, plainly, silence_stdout
from .options import (
    ConfigOption,
    FormatOption,
    ModelName,
    PrecisionOption,
    SetOption,
    SourceName,
    names,
    number_or_word,
    parameters,
)


@plainly
def stream(
    model: ModelName,
    source: SourceName,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="The run directory to write. Without it, or with -, results go to stdout."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")] = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="With --resume and standard input: the input starts again from its first row, and rows already read "
            "are skipped. Default: the input continues after the last row.",
        ),
    ] = False,
    new_rows: Annotated[
        bool,
        typer.Option("--new-rows", help="With --resume: the file holds only rows that the run has not read."),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Wait for more rows at the end of the file, also after log rotation. Ctrl-C ends."
        ),
    ] = False,
    columns: Annotated[
        str | None, typer.Option(help="The observed columns, as y1,y2. Default: all other numeric columns.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="The time column. It is copied to the results.")] = None,
    key: Annotated[
        str | None, typer.Option(help="The column with the name of the stream, to process many streams together.")
    ] = None,
    own: Annotated[
        bool | None,
        typer.Option("--own", help="With --key: each stream has its own posterior. Default: one, learned from all."),
    ] = None,
    tick_rows: Annotated[
        int | None, typer.Option(help="With --key: maximum number of rows in one update. Default: 64.")
    ] = None,
    forget_after: Annotated[
        int | None,
        typer.Option(help="With --key: end a stream after this many rows of other streams. Default: 0, never."),
    ] = None,
    watched: Annotated[
        int | None, typer.Option(help="With --key: number of streams that are monitored. Default: 4.")
    ] = None,
    input_columns: Annotated[str | None, typer.Option(help="Known inputs of the model, as u1,u2.")] = None,
    elapsed: Annotated[
        bool | None,
        typer.Option(
            "--elapsed", help="Add the time since the previous row (in seconds, for dates) as the last input."
        ),
    ] = None,
    format: FormatOption = None,
    set_: SetOption = None,
    config: ConfigOption = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="The posterior: guided (reads the model), or conjugate or recurrent (the paper's). Default: guided."
        ),
    ] = None,
    components: Annotated[
        str | None,
        typer.Option(
            metavar="auto|NUMBER",
            help="Normal laws that a guided posterior is made of, for several modes. Default: auto, by the first rows.",
        ),
    ] = None,
    no_learn: Annotated[
        bool, typer.Option("--no-learn", help="Learn nothing: only filter with the model as given.")
    ] = False,
    fallback: Annotated[
        bool | None,
        typer.Option(
            "--fallback/--no-fallback",
            help="Report the posterior from before learning if it predicts better. Default: --fallback. With "
            "--no-fallback, always report the learned posterior.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="The gradient: log-score, window or recursion. Default: depends on the family."),
    ] = None,
    lag: Annotated[int | None, typer.Option(help="Rows in the window. Default: 16.")] = None,
    trajectories: Annotated[
        int | None, typer.Option(help="Number of sampled trajectories in the window. Default: 4.")
    ] = None,
    particles: Annotated[int | None, typer.Option(help="Number of particles of the recursion. Default: 100.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate. Default: 0.01 (log-score), 0.003 (window), 0.001 (recursion).")
    ] = None,
    rate_halved_after: Annotated[
        int | None,
        typer.Option(help="Rows until the learning rate has halved; 0: constant. Default: 30000, or 0 with --horizon."),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(help="Rows after which the posterior forgets. Default: 4000, with a falling learning rate."),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Hidden units of the paper's families. Default: 64.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The random seed. The same seed gives identical results. Default: 0.")
    ] = None,
    learn_model: Annotated[
        bool | None, typer.Option("--learn-model", help="Learn all parameters of the model from the same stream.")
    ] = None,
    learn: Annotated[
        str | None,
        typer.Option("--learn", metavar="NAMES", help="Learn these parameters of the model, as phi,sigma; or all."),
    ] = None,
    model_rate: Annotated[
        float | None, typer.Option(help="Learning rate of Adam for the model. Default: chosen automatically.")
    ] = None,
    model_rate_halved_after: Annotated[
        int | None, typer.Option(help="Rows until --model-rate has halved; 0: constant. Default: 30000.")
    ] = None,
    model_horizon: Annotated[
        int | None, typer.Option(help="Rows after which the model's parameters forget. Default: never.")
    ] = None,
    precision: PrecisionOption = None,
    monitor_every: Annotated[
        int | None, typer.Option(help="Rows between two reports of the monitor. Default: 500.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Rows between two checkpoints. Default: 1000.")] = None,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(help="Also save new rows after this many seconds. Default: 0, off."),
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Number of checkpoints to keep. Default: 3.")] = None,
    keep_results: Annotated[
        str | None,
        typer.Option(
            help="How much of the latest results stays: rows (100000), an age (7d) or a size (2GB). Default: all."
        ),
    ] = None,
    particle_devices: Annotated[
        int, typer.Option(min=1, help="With --key: devices that share the particles of one stream (recursion).")
    ] = 1,
    print_rows: Annotated[
        bool | None,
        typer.Option(
            "--print/--no-print", help="Print JSON Lines to stdout. Default: if stdout is a pipe, or without --out."
        ),
    ] = None,
) -> None:
    """Learn online from a stream. Each row is used once, and the filtered state is written as the rows arrive.

    Empty cells are missing values. --resume continues a run that was stopped by Ctrl-C or kill -9, with identical
    results. The command ends with a verdict: good, learning, doubtful or failed. "failed" gives exit code 3.

    Example: backstream stream chaotic-rnn obs.csv --set dim=5 --out run/

    Example: sensor | backstream stream my_model.py:Drift - --columns x,y --time at | consumer

    Example: backstream stream stochastic-volatility returns.csv --follow --learn phi,sigma --out run/ --resume

    Example: backstream stream chaotic-rnn plant.csv --set dim=2 --key sensor_id --time at --out run/
    """
    flags = {
        "precision": precision,
        "model": {"name": model, "parameters": parameters(set_)},
        "learning": {
            "family": family,
            "components": number_or_word(components),
            "learn": False if no_learn else None,
            "fallback": fallback,
            "method": method,
            "lag": lag,
            "trajectories": trajectories,
            "particles": particles,
            "rate": rate,
            "rate_halved_after": rate_halved_after,
            "width": width,
            "seed": seed,
            "learn_model": True if learn == "all" else learn_model,
            "learn_parameters": None if learn == "all" else names(learn),
            "model_rate": model_rate,
            "model_rate_halved_after": model_rate_halved_after,
            "model_horizon": model_horizon,
            "horizon": horizon,
            "monitor_every": monitor_every,
        },
        "columns": {"observed": names(columns), "time": time, "inputs": names(input_columns), "elapsed": elapsed}
        | {"key": key},
        "saving": {
            "checkpoint_every": checkpoint_every,
            "checkpoint_seconds": checkpoint_seconds,
            "keep": keep,
            "keep_results": keep_results,
        },
        "fleet": {
            "common": None if own is None else not own,
            "tick_rows": tick_rows,
            "forget_after": forget_after,
            "watched": watched,
        },
    }
    path = None if out is None or out == "-" else Path(out)
    shown = print_rows if print_rows is not None else path is None or stat.S_ISFIFO(os.fstat(1).st_mode)
    holds = "new" if new_rows else "rest" if source == "-" and not replay else "all"
    _run(_Request(source, path, resume, holds, follow, format, shown, particle_devices), flags, config)


class _Request(NamedTuple):
    """What is asked for beside the settings of the run."""

    source: str
    path: Path | None
    resume: bool
    holds: Any
    follow: bool
    format: Any
    shown: bool
    particle_devices: int


def _run(asked: _Request, flags: dict[str, Any], config_file: Path | None) -> None:
    from backstream.errors import InputError

    if asked.source != "-" and not Path(asked.source).exists():  # said before seconds are spent on imports
        raise InputError(f"There is no file {asked.source}.")
    if asked.path is None and asked.resume:
        raise InputError("--resume needs the run directory: add --out run/.")
    stop = Stop()
    from backstream.cli import jax_setup
    from backstream.runs.store import check_directory

    from .settings import effective

    if asked.path is not None:
        check_directory(asked.path, asked.resume)
    config, expected = effective(flags, config_file, asked.path)
    if asked.particle_devices > 1 and config.columns.key is None:
        raise InputError("--particle-devices needs --key, also for a single stream.")
    jax_setup.start(config.precision)
    verdict = _learn(asked, config, expected, stop)
    if stop.requested():
        raise typer.Exit(stop.exit_code())
    if verdict is not None and verdict.kind == "failed":
        raise typer.Exit(NOT_USABLE)


def _learn(asked: _Request, config: Any, expected: Any, stop: Stop) -> Any:
    """The verdict in the end; None where no row was read."""
    from backstream.engine.driver import learn
    from backstream.engine.preparation import check_fit
    from backstream.engine.progress import ProgressLine
    from backstream.runs.model_registry import find
    from backstream.runs.store import RunWriter

    model, choice = find(config.model.name, config.model.parameters, expected, asked.path)
    source = _opened(asked, config, stop)
    config = replace(config, model=choice, columns=source.columns)
    check_fit(model, config)
    output = _Output(asked, config.text())
    with (
        nullcontext() if asked.path is None else closing(RunWriter(asked.path, config, resume=asked.resume)) as writer,
        ProgressLine() as line,
        closing(
            learn(
                model,
                source,
                config,
                writer,
                mesh=_mesh(asked, config),
                holds=asked.holds,
                stopped=stop.requested,
                warn=line.say,
            )
        ) as pieces,
    ):
        for piece in pieces:
            line.update(piece)
            output.take(piece)
        verdict = pieces.verdict()
    output.conclude(verdict)
    return verdict


def _opened(asked: _Request, config: Any, stop: Stop) -> Any:
    from backstream.data.sources import open_source
    from backstream.errors import InputError

    options = {"format": asked.format, "follow": asked.follow, "dtype": config.precision, "stopped": stop.requested}
    try:
        return open_source(asked.source, config.columns, **options)
    except InputError:
        if stop.requested():  # while it waited for the first row
            raise typer.Exit(stop.exit_code()) from None
        raise


def _mesh(asked: _Request, config: Any) -> Any:
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

    def __init__(self, asked: _Request, config: str):
        self._asked, self._config = asked, config
        self._last = self._refused = 0

    def take(self, piece: Any) -> None:
        from backstream.errors import RunError
        from backstream.runs.tables import write_rows

        begun, self._last = self._last > 0, piece.position
        self._refused += int(piece.rows.refused.sum())
        if not self._asked.shown:
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
