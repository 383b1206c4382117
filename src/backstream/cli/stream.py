"""`backstream stream`: learn online."""

import os
import stat
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import Stop, plainly, silence_stdout
from .options import ConfigOption, FormatOption, ModelName, PrecisionOption, SetOption, SourceName, names, parameters
from .others import Others


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
    key: Annotated[
        str | None, typer.Option(help="A column that names the stream of each row: many are learned from together.")
    ] = None,
    own: Annotated[
        bool | None,
        typer.Option("--own", help="With --key: each stream has its own posterior. Default: one, learned from all."),
    ] = None,
    tick_rows: Annotated[
        int | None, typer.Option(help="With --key: rows that are averaged for one step, at most. Default: 64.")
    ] = None,
    forget_after: Annotated[
        int | None,
        typer.Option(help="With --key: end a stream when so many rows came since its last. Default: 0, never."),
    ] = None,
    watched: Annotated[
        int | None, typer.Option(help="With --key: streams that the monitor looks at. Default: 4.")
    ] = None,
    input_columns: Annotated[str | None, typer.Option(help="Known inputs of the model, as u1,u2.")] = None,
    elapsed: Annotated[
        bool | None,
        typer.Option("--elapsed", help="Make the time since the last row (in seconds, for dates) an input, the last."),
    ] = None,
    format: FormatOption = None,
    set_: SetOption = None,
    config: ConfigOption = None,
    family: Annotated[
        str | None,
        typer.Option(help="guided, which reads the model, or the paper's conjugate or recurrent. Default: guided."),
    ] = None,
    learn: Annotated[
        bool | None,
        typer.Option("--learn/--no-learn", help="Learn, or only filter with the model as given. Default: --learn."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Gradient from the log-score, a window or the recursion. Default: as the family needs."),
    ] = None,
    lag: Annotated[int | None, typer.Option(help="Rows in the window. Default: 16.")] = None,
    trajectories: Annotated[int | None, typer.Option(help="Draws through the window. Default: 4.")] = None,
    particles: Annotated[int | None, typer.Option(help="Samples that the recursion carries. Default: 100.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Step size. Default: 0.01 (log-score), 0.003 (window), 0.001 (recursion).")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Hidden units of the paper's families. Default: 64.")] = None,
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
    hosts: Annotated[
        bool,
        typer.Option("--hosts", help="With --key: be one of several processes, all started with the same command."),
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(envvar="JAX_COORDINATOR_ADDRESS", help="With --hosts: HOST:PORT of the first process.")
    ] = None,
    process_count: Annotated[
        int | None, typer.Option(envvar="JAX_NUM_PROCESSES", min=1, help="With --hosts: how many there are.")
    ] = None,
    process_index: Annotated[
        int | None, typer.Option(envvar="JAX_PROCESS_ID", min=0, help="With --hosts: which one this is, from 0.")
    ] = None,
    host_timeout: Annotated[
        int, typer.Option(min=1, help="With --hosts: seconds to wait for the others, before giving up.")
    ] = 600,
    particle_devices: Annotated[
        int, typer.Option(min=1, help="With --key: devices that share the particles of one stream (recursion).")
    ] = 1,
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

    Example: backstream stream chaotic-rnn plant.csv --set dim=2 --key sensor_id --time at --out run/
    """
    flags = {
        "precision": precision,
        "model": {"name": model, "parameters": parameters(set_)},
        "learning": {
            "family": family,
            "learn": learn,
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
        "columns": {"observed": names(columns), "time": time, "inputs": names(input_columns), "elapsed": elapsed}
        | {"key": key},
        "saving": {"checkpoint_every": checkpoint_every, "keep": keep},
        "fleet": {
            "common": None if own is None else not own,
            "tick_rows": tick_rows,
            "forget_after": forget_after,
            "watched": watched,
        },
    }
    path = None if out is None or out == "-" else Path(out)
    shown = print_rows if print_rows is not None else path is None or stat.S_ISFIFO(os.fstat(1).st_mode)
    others = Others(hosts, coordinator, process_count, process_index, host_timeout, particle_devices)
    _run(source, path, flags, config, resume, replay or source != "-", follow, format, shown, others)


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
    others: Others,
) -> None:
    from backstream.io.errors import InputError

    if source_name != "-" and not Path(source_name).exists():  # said before seconds are spent on imports
        raise InputError(f"There is no file {source_name}.")
    if path is None and resume:
        raise InputError("--resume needs the run directory that it continues: --out run/.")
    stop = Stop()
    from backstream.io.api import check_directory

    from . import machine
    from .settings import effective

    if path is not None:
        check_directory(path, resume)
    config, expected = effective(flags, config_file, path)
    others.check(source_name, config.columns.key, follow)
    machine.start(config.precision, others.wanted)
    with others.together():
        _learn(source_name, path, config, expected, skip, follow, format, shown, others, stop)
    others.end(stop.exit_code() if stop.requested() else 0)


def _learn(
    source_name: str,
    path: Path | None,
    config: Any,
    expected: Any,
    skip: bool,
    follow: bool,
    format: Any,
    shown: bool,
    others: Others,
    stop: Stop,
) -> None:
    from backstream.io import keyed, streaming
    from backstream.io.catalogue import find
    from backstream.io.errors import InputError, RunError
    from backstream.io.progress import ProgressLine
    from backstream.io.sources import open_source
    from backstream.io.tables import write_rows

    model, choice = find(config.model.name, config.model.parameters, expected, path)
    try:
        source = open_source(
            source_name,
            config.columns,
            format=format,
            follow=follow,
            dtype=config.precision,
            stopped=others.never if others.wanted else stop.requested,
        )
    except InputError:
        if stop.requested():  # while it waited for the first row
            raise typer.Exit(stop.exit_code()) from None
        raise
    config = replace(config, model=choice, columns=source.columns)
    streaming.check_fit(model, config)
    last, warnings, refused, told, learn = 0, 0, 0, False, streaming.learn
    if config.columns.key is not None:
        learn = partial(keyed.learn, mesh=others.mesh())
    stopped = others.agree(config, stop.requested)
    with (
        nullcontext() if path is None else closing(others.writer(path, config)) as writer,
        ProgressLine(others.is_first()) as line,
        closing(
            learn(model, source, config, writer, skip=skip, stopped=stopped, warn=others.first(line.say))
        ) as pieces,
    ):
        for piece in pieces:
            others.progress()
            line.update(piece)
            last, refused = piece.position, refused + int(piece.rows.refused.sum())
            for report in piece.reports:
                for warning in report.warnings:
                    warnings += 1
                    whose = "After" if report.stream is None else f"Stream {report.stream!r}, after"
                    line.say(f"{whose} {report.t:,} rows: {warning}")
            if shown and others.is_first():
                try:
                    write_rows(_printed(piece.rows), None if told else config.text())
                    told = True
                except BrokenPipeError:
                    silence_stdout()
                    where = "" if path is None else f" Everything up to there is saved in {path}."
                    raise RunError(f"The reader of standard output went away after row {last}.{where}") from None
                except OSError as error:
                    silence_stdout()
                    raise RunError(f"Standard output cannot be written: {error.strerror}.") from None
    if path is not None and others.is_first():
        health = "the monitor had nothing to say" if not warnings else f"the monitor warned {warnings} times"
        counted = "" if not refused else f", {refused:,} updates were not finite and were refused"
        print(f"{last:,} rows read{counted}, {health}. Next: backstream inspect {path}", file=sys.stderr)


def _printed(rows: Any) -> list[dict[str, Any]]:
    import numpy as np

    printed = []
    for i in range(len(rows.mean)):
        row = {"row": rows.first + i} | ({} if rows.keys is None else {"key": rows.keys[i]})
        row |= {} if rows.times is None else {"time": rows.times[i]}
        known = not np.isnan(rows.mean[i]).any()  # not so where the row could not be used
        printed.append(row | {name: getattr(rows, name)[i].tolist() if known else None for name in ("mean", "std")})
    return printed
