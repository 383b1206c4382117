"""`backstream smooth`: the states, given all rows of a source."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .failures import plainly
from .options import FormatOption, ModelOption, RawOption, RunPath, SourceName


@plainly
def smooth(
    run: RunPath,
    source: SourceName,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="A .parquet, .csv or .jsonl file, or -. Default: RUN/smoothed.parquet."),
    ] = None,
    format: FormatOption = None,
    model: ModelOption = None,
    raw: RawOption = False,
) -> None:
    """Estimate the state at every row, given all rows.

    Uses what the run has learned. The source can be the one used for learning, or another one with the same
    columns. It must fit in memory.

    Example: backstream smooth run/ obs.csv --out smoothed.csv
    """
    from backstream.runs.tables import check_suffix, write_result

    from .open_run import conclude, open_run, say_verdict

    target = str(run / "smoothed.parquet") if out is None else out
    if target != "-":
        check_suffix(Path(target))
    opened = open_run(run, model)
    batch = opened.data(source, format=format)
    table = opened.smooth(batch).to_arrow()
    for name, values in (("time", batch.times), ("key", batch.keys)):
        if values is not None:
            table = table.add_column(1, name, [values])
    write_result(table, target, opened.config.text(), raw)
    if target != "-":
        print(f"{len(table):,} rows in {target}. Next: backstream plot {run}", file=sys.stderr)
    say_verdict(opened.health)
    conclude(opened)
