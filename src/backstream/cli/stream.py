"""`backstream stream`: learn online."""

import os
import stat
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import Stop, plainly, silence_stdout
from .options import ConfigOption, FormatOption, ModelName, PrecisionOption, SetOption, SourceName, names, parameters


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
            help="With --resume and standard input: the rows already read come again, and are passed over. Otherwise a "
            "pipe goes on where it was.",
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more at the end of the file; Ctrl-C ends.")
    ] = False,
    columns: Annotated[
        str | None, typer.Option(help="What is observed, as y1,y2. Default: every numeric column that is not named.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="A column of times, kept beside the results.")] = None,
    input_columns: Annotated[str | None, typer.Option(help="Known inputs of the model, as u1,u2.")] = None,
    elapsed: Annotated[
        bool | None,
        typer.Option("--elapsed", help="Make the time since the last row (in seconds, for dates) an input, the last."),
    ] = None,
    format: FormatOption = None,
    set_: SetOption = None,
    config: ConfigOption = None,
    method: Annotated[
        str | None,
        typer.Option(help="window, or recursion for states that change over hundreds of rows. Default: window."),
    ] = None,
    lag: Annotated[int | None, typer.Option(help="Rows in the window. Default: 16.")] = None,
    trajectories: Annotated[int | None, typer.Option(help="Draws through the window. Default: 4.")] = None,
    particles: Annotated[int | None, typer.Option(help="Samples that the recursion carries. Default: 100.")] = None,
    rate: Annotated[float | None, typer.Option(help="Step size. Default: 0.003; 0.001 for recursion.")] = None,
    width: Annotated[int | None, typer.Option(help="Hidden units of the network. Default: 64.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of every draw: same seed, same bits. Default: 0.")] = None,
    learn_model: Annotated[
        bool | None, typer.Option("--learn-model", help="Learn the model's parameters from the same stream.")
    ] = None,
    precision: PrecisionOption = None,
    monitor_every: Annotated[
        int | None, typer.Option(help="Observations between two looks of the monitor. Default: 500.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Observations between two checkpoints. Default: 1000.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="How many checkpoints stay. Default: 3.")] = None,
    print_rows: Annotated[
        bool | None,
        typer.Option("--print/--no-print", help="JSON Lines on stdout. Default: into a pipe, or without --out."),
    ] = None,
) -> None:
    """Learn online from a stream, each row used once, and write where the hidden state is as the rows come.

    Empty cells are missing values. A run that was stopped, by Ctrl-C or kill -9, goes on with --resume as if it had
    not been.

    Example: backstream stream chaotic-rnn obs.csv --set dim=5 --out run/

    Example: sensor | backstream stream my_model.py:Drift - --columns x,y --time at | consumer

    Example: backstream stream stochastic-volatility returns.csv --follow --learn-model --out run/ --resume
    """
    flags = {
        "precision": precision,
        "model": {"name": model, "parameters": parameters(set_)},
        "learning": {
            "method": method,
            "lag": lag,
            "trajectories": trajectories,
            "particles": particles,
            "rate": rate,
            "width": width,
            "seed": seed,
            "learn_model": learn_model,
            "monitor_every": monitor_every,
        },
        "columns": {"observed": names(columns), "time": time, "inputs": names(input_columns), "elapsed": elapsed},
        "saving": {"checkpoint_every": checkpoint_every, "keep": keep},
    }
    path = None if out is None or out == "-" else Path(out)
    shown = print_rows if print_rows is not None else path is None or stat.S_ISFIFO(os.fstat(1).st_mode)
    _run(source, path, flags, config, resume, replay or source != "-", follow, format, shown)


def _run(
    source_name: str,
    path: Path | None,
    flags: dict[str, Any],
    config_file: Path | None,
    resume: bool,
    skip: bool,
    follow: bool,
    format: Any,
    shown: bool,
) -> None:
    from backstream.io.errors import InputError, RunError

    if source_name != "-" and not Path(source_name).exists():  # said before seconds are spent on imports
        raise InputError(f"There is no file {source_name}.")
    if path is None and resume:
        raise InputError("--resume needs the run directory that it continues: --out run/.")
    stop = Stop()
    from backstream.io.api import check_directory
    from backstream.io.catalogue import find
    from backstream.io.progress import ProgressLine
    from backstream.io.runs import RunWriter
    from backstream.io.sources import open_source
    from backstream.io.streaming import learn, prepare

    from . import machine
    from .settings import effective

    if path is not None:
        check_directory(path, resume)
    config, expected = effective(flags, config_file, path)
    machine.start(config.precision)
    model, choice = find(config.model.name, config.model.parameters, expected)
    try:
        source = open_source(
            source_name, config.columns, format=format, follow=follow, dtype=config.precision, stopped=stop.requested
        )
    except InputError:
        if stop.requested():  # while it waited for the first row
            raise typer.Exit(stop.exit_code()) from None
        raise
    config = replace(config, model=choice, columns=source.columns)
    prepared = prepare(model, config)
    last, warnings, refused = 0, 0, 0
    with (
        nullcontext() if path is None else closing(RunWriter(path, config)) as writer,
        ProgressLine() as line,
        closing(learn(prepared, source, config, writer, skip=skip, stopped=stop.requested, warn=line.say)) as pieces,
    ):
        for piece in pieces:
            line.update(piece)
            last, refused = piece.position, refused + int(piece.rows.refused.sum())
            for report in piece.reports:
                for warning in report.warnings:
                    warnings += 1
                    line.say(f"After {report.t:,} rows: {warning}")
            if shown:
                try:
                    _print(piece.rows)
                except BrokenPipeError:
                    silence_stdout()
                    where = "" if path is None else f" Everything up to there is saved in {path}."
                    raise RunError(f"The reader of standard output went away after row {last}.{where}") from None
                except OSError as error:
                    silence_stdout()
                    raise RunError(f"Standard output cannot be written: {error.strerror}.") from None
    if path is not None:
        health = "the monitor had nothing to say" if not warnings else f"the monitor warned {warnings} times"
        counted = "" if not refused else f", {refused:,} updates were not finite and were refused"
        print(f"{last:,} rows read{counted}, {health}. Next: backstream inspect {path}", file=sys.stderr)
    if stop.requested():
        raise typer.Exit(stop.exit_code())


def _print(rows: Any) -> None:
    import json

    lines = []
    for i in range(len(rows.mean)):
        row = {"row": rows.first + i} | ({} if rows.times is None else {"time": rows.times[i]})
        row |= {"mean": rows.mean[i].tolist(), "std": rows.std[i].tolist()}
        lines.append(json.dumps(row) + "\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
