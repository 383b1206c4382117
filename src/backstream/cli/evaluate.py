"""`backstream evaluate`: how close a run comes to a known truth."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .failures import plainly
from .options import FormatOption, ModelOption, RunPath


@plainly
def evaluate(
    run: RunPath,
    states: Annotated[Path, typer.Option(help="A file with the true states, a numeric column for each.")],
    source: Annotated[
        Path | None, typer.Option(help="The observations, to judge the final result on all of them, smoothed too.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="With --source: particles of a particle smoother, the best possible. 0: none.")
    ] = 0,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for a script.")] = False,
    model: ModelOption = None,
) -> None:
    """Root mean square errors and coverage of 90 % intervals, beside the raw observation and the best possible.

    The first line judges the states as they were estimated while the stream was read; the later ones what was learned
    in the end.

    Example: backstream evaluate run/ --states states.csv --source obs.csv --limit 10000
    """
    from dataclasses import asdict
    from statistics import NormalDist

    import numpy as np

    from backstream import metrics
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError

    from .open_run import conclude, open_run

    opened = open_run(run, model)
    truth = read_all(open_source(states, dtype="float64")).ys
    filtered = opened.filtered.table
    rows, d = filtered["row"].to_numpy(), opened.learned.q.state_dim
    if truth.shape[1] != d:
        raise InputError(f"{states} has {truth.shape[1]} numeric columns, but the model has {d} states.")
    if rows[-1] >= len(truth):
        raise InputError(f"{states} has {len(truth)} rows, but the run has read {rows[-1] + 1}.")
    mean, std = (np.column_stack([filtered[f"{name}_{i}"] for i in range(d)]) for name in ("mean", "std"))
    used = ~np.isnan(mean).any(1)  # not so for rows of a stream that was set aside
    rows, mean, std = rows[used], mean[used], std[used]
    known, half = truth[rows], NormalDist().inv_cdf(0.95)
    lines: list[tuple[str, float, float | None]] = [
        (
            "filtered while learning",
            metrics.rmse(mean, known),
            metrics.coverage(mean - half * std, mean + half * std, known),
        )
    ]
    if source is not None:
        batch = opened.data(source, format=format)
        if len(batch.ys) != len(truth):
            raise InputError(f"{source} has {len(batch.ys)} rows, but {states} has {len(truth)}.")
        if batch.ys.shape == truth.shape:
            lines.insert(0, ("the observation itself", metrics.rmse(batch.ys, truth), None))
        for name, law in (
            ("filtered, as learned", opened.filter(batch)),
            ("smoothed, as learned", opened.smooth(batch)),
        ):
            judged = np.where(np.isnan(law.mean), np.nan, truth)  # but for rows that could not be used
            lines.append((name, metrics.rmse(law.mean, judged), metrics.coverage(*law.interval(0.9), judged)))
        if limit:
            import jax

            if batch.keys is not None:
                raise InputError("--limit is for a run of one stream: leave it out.")
            best = metrics.particle_limit(opened.learned.model, batch.ys, batch.inputs, limit, key=jax.random.key(0))
            lines += [
                ("particle filter (limit)", metrics.rmse(best.filtered, truth), None),
                ("particle smoother (limit)", metrics.rmse(best.smoothed, truth), None),
            ]
    if as_json:
        found = {name: {"rmse": error, "coverage": covered} for name, error, covered in lines}
        json.dump(found | {"config": asdict(opened.config)}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _show(lines, len(known))
    conclude(opened)


def _show(lines: list[tuple[str, float, float | None]], count: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Error of the estimated states over {count:,} rows")
    table.add_column("")
    table.add_column("RMSE", justify="right")
    table.add_column("inside 90 % intervals", justify="right")
    for name, error, covered in lines:
        table.add_row(name, f"{error:.4f}", "" if covered is None else f"{100 * covered:.0f} %")
    Console().print(table)
