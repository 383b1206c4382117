"""`backstream forecast`: the next states and observations."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import plainly
from .options import ModelOption, RawOption, RunPath


@plainly
def forecast(
    run: RunPath,
    horizon: Annotated[int, typer.Option("--horizon", "-n", min=1, help="The number of rows to forecast.")] = 50,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="A .parquet, .csv or .jsonl file, or -. Default: RUN/forecast.parquet."),
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="The number of simulated futures.")] = 1000,
    level: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="The probability of the intervals from lower to upper.")
    ] = 0.9,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="A file with the inputs of the next rows, the same for all streams. Elapsed times are in the column "
            "elapsed."
        ),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="With many streams: the stream to forecast. May be repeated. Default: all.")
    ] = None,
    model: ModelOption = None,
    raw: RawOption = False,
) -> None:
    """Forecast the next states and observations.

    The forecast starts after the last row that the run has read. Columns: step (1 is the next row); mean, std,
    lower and upper of each state (state_mean_0, …) and of each observed column.

    Example: backstream forecast run/ --horizon 50 --out ahead.csv
    """
    import pyarrow as pa

    from backstream.errors import InputError
    from backstream.runs.tables import check_suffix, write_result

    from .open_run import open_run, say_verdict

    target = str(run / "forecast.parquet") if out is None else out
    if target != "-":
        check_suffix(Path(target))
    opened = open_run(run, model)
    known = _known_inputs(opened.config, inputs, horizon)
    streams = [None] if opened.learned.fleet is None else stream or opened.streams()
    if not streams:
        raise InputError(f"{run} has no live stream, so there is nothing to forecast.")
    tables = [
        _table(opened.forecast(horizon, known, samples, one), one, opened.config.columns.observed, level)
        for one in streams
    ]
    write_result(pa.concat_tables(tables), target, opened.config.text(), raw)
    if target != "-":
        which = f"row {opened.learned.position:,}" if streams == [None] else f"the last of {len(streams):,} streams"
        print(f"{horizon} rows after {which} in {target}.", file=sys.stderr)
    say_verdict(opened.health)


def _known_inputs(config: Any, file: Path | None, horizon: int) -> Any:
    """The inputs of the next rows; None if the model has none."""
    import numpy as np

    from backstream.data.columns import Columns
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError

    wanted = (*config.columns.inputs, *(["elapsed"] if config.columns.elapsed else []))
    if not wanted:
        return None
    if file is None:
        raise InputError(
            f"The model has inputs ({', '.join(wanted)}): give those of the next {horizon} rows with --inputs FILE."
        )
    known = read_all(open_source(file, Columns(observed=wanted), dtype=config.precision)).ys
    if len(known) < horizon or not np.isfinite(known[:horizon]).all():
        raise InputError(f"{file} must hold {horizon} rows without empty cells; it holds {len(known)}.")
    return known[:horizon].astype(config.precision)


def _table(ahead: Any, stream: str | None, observed: tuple[str, ...], level: float) -> Any:
    """The forecast of one stream as a table: a row for each step."""
    import numpy as np
    import pyarrow as pa

    states, observations = ahead.states.to_arrow(level), ahead.observations.to_arrow(level)
    parts: dict[str, Any] = {} if stream is None else {"key": [stream] * len(states)}
    parts["step"] = np.arange(1, len(states) + 1)
    parts |= {f"state_{name}": states[name] for name in states.column_names if name != "row"}
    for name in observations.column_names:
        what, _, index = name.rpartition("_")
        if name != "row":
            parts[f"{observed[int(index)]}_{what}"] = observations[name]
    return pa.table(parts)
