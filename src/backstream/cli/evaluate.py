"""`backstream evaluate`: how well a run predicts its rows and, where the truth is known, how close it comes to it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import plainly
from .options import FormatOption, ModelOption, RunPath

Line = tuple[str, float, float | None]
"""What is judged, its root mean square error, and its coverage."""


@plainly
def evaluate(
    run: RunPath,
    states: Annotated[
        Path | None, typer.Option(help="A file with the true states, one numeric column for each, if they are known.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="With --states: the observations, to also evaluate the final result, filtered and smoothed."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=0, help="With --source: particles of a particle smoother, for comparison. Default: 0, off."),
    ] = 0,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
    model: ModelOption = None,
) -> None:
    """Evaluate the predictions and, if known, the states.

    Each row is compared with its prediction from the rows before: log scores, coverage of 90 % bands, PIT values, and
    CRPS in the units of the columns.

    With --states, also print root mean square errors of the states and the coverage of 90 % intervals, and compare them
    with the raw observations and a particle smoother. "filtered while learning" uses the estimates made during the
    stream. "as learned" uses the final result for all rows.

    Example: backstream evaluate run/

    Example: backstream evaluate run/ --states states.csv --source obs.csv --limit 10000
    """
    from backstream.errors import InputError
    from backstream.runs.store import open_config, read_verdict

    from .open_run import conclude, open_run, read_scored, say_verdict

    config, filtered = open_config(run), read_scored(run)
    predicted = _predictions(filtered)
    opened, lines, judged = None, [], 0
    if states is not None:
        opened = open_run(run, model)
        lines, judged = _errors(opened, filtered, states, source, format, limit)
    elif source is not None or limit:
        raise InputError("--source and --limit need the true states: --states FILE.")
    verdict = read_verdict(run, config)
    if as_json:
        _print_json(lines, predicted, verdict, config)
    else:
        _show_scores(predicted, config.columns.observed)
        if lines:
            _show_errors(lines, judged)
    say_verdict(verdict)
    if opened is not None:
        conclude(opened)


def _predictions(filtered: Any) -> Any:
    """How well the rows were predicted."""
    import numpy as np

    from backstream import metrics

    parts = [
        np.column_stack([filtered[name] for name in filtered.column_names if name.startswith(f"{kind}_")])
        for kind in ("pit", "crps")
    ]
    return metrics.predictive_scores(filtered["log_score"], *parts)


def _print_json(lines: list[Line], predicted: Any, verdict: Any, config: Any) -> None:
    from dataclasses import asdict

    found = {name: {"rmse": error, "coverage": covered} for name, error, covered in lines}
    scores = {name: None if value != value else value for name, value in predicted._asdict().items()}
    health = None if verdict is None else verdict.record()
    json.dump(found | {"predictive": scores, "health": health, "config": asdict(config)}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _errors(
    opened: Any, filtered: Any, states: Path, source: Path | None, format: Any, limit: int
) -> tuple[list[Line], int]:
    """What the true states say, and of how many rows."""
    from statistics import NormalDist

    import numpy as np

    from backstream import metrics
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError

    truth = read_all(open_source(states, dtype="float64")).ys
    rows, d = filtered["row"].to_numpy(), opened.learned.q.state_dim
    if truth.shape[1] != d:
        raise InputError(f"{states} has {truth.shape[1]} numeric columns, but the model has {d} states.")
    if rows[-1] >= len(truth):
        raise InputError(f"{states} has {len(truth)} rows, but the run has read {rows[-1] + 1}.")
    mean, std = (np.column_stack([filtered[f"{name}_{i}"] for i in range(d)]) for name in ("mean", "std"))
    used = ~np.isnan(mean).any(1)  # not so for rows of a stream that was set aside
    mean, std, known, half = mean[used], std[used], truth[rows[used]], NormalDist().inv_cdf(0.95)
    covered = metrics.coverage(mean - half * std, mean + half * std, known)
    lines: list[Line] = [("filtered while learning", metrics.rmse(mean, known), covered)]
    if source is None:
        return lines, len(known)
    batch = opened.data(source, format=format)
    if len(batch.ys) != len(truth):
        raise InputError(f"{source} has {len(batch.ys)} rows, but {states} has {len(truth)}.")
    if batch.ys.shape == truth.shape:
        lines.insert(0, ("the observation itself", metrics.rmse(batch.ys, truth), None))
    for name, law in (("filtered, as learned", opened.filter(batch)), ("smoothed, as learned", opened.smooth(batch))):
        judged = np.where(np.isnan(law.mean), np.nan, truth)  # but for rows that could not be used
        lower, upper = law.interval(0.9)
        lines.append((name, metrics.rmse(law.mean, judged), metrics.coverage(lower, upper, judged)))
    if limit:
        import jax

        if batch.keys is not None:
            raise InputError("--limit is for a run of one stream: leave it out.")
        best = metrics.particle_limit(opened.learned.model, batch.ys, batch.inputs, limit, key=jax.random.key(0))
        lines += [
            ("particle filter (limit)", metrics.rmse(best.filtered, truth), None),
            ("particle smoother (limit)", metrics.rmse(best.smoothed, truth), None),
        ]
    return lines, len(known)


def _show_scores(found: Any, columns: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    if found.rows:
        mean = f"{found.log_score:.4f} ± {found.log_score_error:.4f} nats per row"
        Console().print(f"Log score of {found.rows:,} rows, each given those before it: {mean}", highlight=False)
    table = Table(title="Predictions of the rows before they were read")
    table.add_column("")
    for name in (
        "inside 90 % bands",
        "mean of PIT (0.5)",
        "variance of PIT (0.083)",
        "correlation of errors (0)",
        "CRPS",
    ):
        table.add_column(name, justify="right")
    for name, *values in zip(
        columns, found.coverage, found.pit_mean, found.pit_variance, found.residual_correlation, found.crps, strict=True
    ):
        formats = "{:.0%}", "{:.3f}", "{:.3f}", "{:+.2f}", "{:.4g}"
        table.add_row(name, *("" if v is None else form.format(v) for v, form in zip(values, formats, strict=True)))
    Console().print(table)


def _show_errors(lines: list[Line], count: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Error of the estimated states over {count:,} rows")
    table.add_column("")
    table.add_column("RMSE", justify="right")
    table.add_column("inside 90 % intervals", justify="right")
    for name, error, covered in lines:
        table.add_row(name, f"{error:.4f}", "" if covered is None else f"{100 * covered:.0f} %")
    Console().print(table)
