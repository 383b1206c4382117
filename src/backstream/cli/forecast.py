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
    import numpy as np
    import pyarrow as pa

    from backstream.data.columns import Columns
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError
    from backstream.runs.tables import check_suffix, write_result

    from .open_run import open_run, say_verdict

    target = str(run / "forecast.parquet") if out is None else out
    if target != "-":
        check_suffix(Path(target))
    opened = open_run(run, model)
    columns, known = opened.config.columns, None
    wanted = (*columns.inputs, *(["elapsed"] if columns.elapsed else []))
    if wanted:
        if inputs is None:
            raise InputError(
                f"The model has inputs ({', '.join(wanted)}): give those of the next {horizon} rows with --inputs FILE."
            )
        known = read_all(open_source(inputs, Columns(observed=wanted), dtype=opened.config.precision)).ys
        if len(known) < horizon or not np.isfinite(known[:horizon]).all():
            raise InputError(f"{inputs} must hold {horizon} rows without empty cells; it holds {len(known)}.")
        known = known[:horizon].astype(opened.config.precision)
    streams = [None] if opened.learned.fleet is None else stream or opened.streams()
    if not streams:
        raise InputError(f"{run} has no live stream, so there is nothing to forecast.")
    tables = []
    for one in streams:
        ahead = opened.forecast(horizon, known, samples, one)
        parts: dict[str, Any] = {} if one is None else {"key": [one] * horizon}
        parts |= {"step": np.arange(1, horizon + 1)}
        for prefix, draws, labels in (
            ("state_", ahead.states, None),
            ("", ahead.observations, columns.observed),
        ):
            table = draws.to_arrow(level).drop_columns("row")
            for name in table.column_names:
                what, _, index = name.rpartition("_")
                label = f"{prefix}{name}" if labels is None else f"{labels[int(index)]}_{what}"
                parts[label] = table[name]
        tables.append(pa.table(parts))
    write_result(pa.concat_tables(tables), target, opened.config.text(), raw)
    if target != "-":
        which = f"row {opened.learned.position:,}" if streams == [None] else f"the last of {len(streams):,} streams"
        print(f"{horizon} rows after {which} in {target}.", file=sys.stderr)
    say_verdict(opened.health)
