"""`backstream plot`: a run as a picture."""

import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import plainly
from .options import RunPath


@plainly
def plot(
    run: RunPath,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: RUN/plot.png.")] = None,
    states: Annotated[Path | None, typer.Option(help="A file with the true states, to be drawn too.")] = None,
    coordinate: Annotated[int, typer.Option(min=0, help="Which state.")] = 0,
    last: Annotated[int, typer.Option(min=2, help="How many of the latest rows.")] = 300,
    stream: Annotated[
        str | None, typer.Option(help="With many streams: which. Default: that of the first row.")
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="The model's parameters over time instead, where they are learned.")
    ] = False,
) -> None:
    """States with their 90 % bands, PIT values, log scores, the ELBO as the learner and trajectories see it.

    Smoothed states and a forecast are drawn where backstream smooth and backstream forecast have left them in the run;
    with the true states, calibration too.

    Example: backstream plot run/ --states states.csv --out picture.png

    Example: backstream plot run/ --stream pump-7
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    from statistics import NormalDist

    import matplotlib.pyplot as plt
    import numpy as np
    import pyarrow as pa

    from backstream import metrics, plots
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError, RunError
    from backstream.runs.results import read_parquet, scores_of
    from backstream.runs.store import open_config, read_filtered, read_reports, read_verdict

    from .open_run import say_verdict

    target, kinds = out or run / "plot.png", plt.gcf().canvas.get_supported_filetypes()
    if target.suffix.lower().removeprefix(".") not in kinds:
        raise InputError(f"{target} must end in one of .{', .'.join(kinds)}, so that its format is known.")
    config, streams = open_config(run), {}
    key = config.columns.key
    filtered, reports = read_filtered(run), read_reports(run)
    if key is not None:
        streams = dict.fromkeys(filter(None, filtered["key"].to_pylist()))
        stream = next(iter(streams), None) if stream is None else stream
        if stream not in streams:
            raise InputError(f"{run} has no stream {stream!r} among its {len(streams):,}.")
    elif stream is not None:
        raise InputError(f"{run} is a run of one stream: leave --stream out.")

    def of_stream(table: Any) -> Any:
        return table if key is None else table.filter(pa.array([name == stream for name in table["key"].to_pylist()]))

    filtered = of_stream(filtered)
    reports = [report for report in reports if report.stream == stream]
    if f"mean_{coordinate}" not in filtered.column_names:
        raise InputError(f"{run} has no state {coordinate}.")
    truth = None if states is None else read_all(open_source(states, dtype="float64")).ys
    rows = filtered["row"].to_numpy()
    if truth is not None and (len(truth) <= rows[-1] or truth.shape[1] <= coordinate):
        raise InputError(f"{states} has no state {coordinate} for row {rows[-1] + 1}: its shape is {truth.shape}.")

    figure, axes = plt.subplots(2, 3, figsize=(15, 6.5), layout="constrained")
    start = max(0, len(rows) - last)  # counted in the rows of the stream

    def draw(table: Any, label: str, colour: str, style: str) -> None:
        mean, std = (table[f"{name}_{coordinate}"].to_numpy() for name in ("mean", "std"))
        half = NormalDist().inv_cdf(0.95) * std
        times = np.arange(start, start + len(mean))
        plots.band(axes[0, 0], mean - half, mean + half, mean, label, colour, style, times)

    def left(name: str, *columns: str) -> Any:
        """Some columns of a table that another command has left in the run, of the stream that is drawn."""
        table, wanted = read_parquet(run / name), [column.format(coordinate) for column in columns]
        needed = wanted if key is None else ["key", *wanted]
        if not set(needed) <= set(table.column_names):
            raise RunError(f"{run / name} has no columns {', '.join(needed)}: write it anew, or remove it.")
        return of_stream(table).select(wanted)

    draw(filtered.slice(start), "filtered", plots.ORANGE, "--")
    if (run / "smoothed.parquet").is_file():
        draw(left("smoothed.parquet", "mean_{}", "std_{}").slice(start, last), "smoothed", plots.BLUE, "-")
    if (run / "forecast.parquet").is_file():
        ahead = left("forecast.parquet", "state_lower_{}", "state_upper_{}", "state_mean_{}")
        lower, upper, mean = (column.to_numpy() for column in ahead.columns)
        times = np.arange(len(rows), len(rows) + len(mean))
        if len(mean):  # of another stream, perhaps
            plots.band(axes[0, 0], lower, upper, mean, "forecast", plots.GREEN, "-.", times)
    if truth is not None:
        shown = truth[rows[start:], coordinate]
        axes[0, 0].plot(np.arange(start, len(rows)), shown, color=plots.BLACK, linewidth=0.9, label="truth")
        mean, std = (filtered[f"{name}_{coordinate}"].to_numpy() for name in ("mean", "std"))
        rows, mean, std = (part[~np.isnan(mean)] for part in (rows, mean, std))  # without those that were set aside
        levels = np.linspace(0.1, 0.9, 9)
        halves = [NormalDist().inv_cdf(0.5 + level / 2) * std for level in levels]
        known = truth[rows, coordinate]
        coverages = [metrics.coverage(mean - half, mean + half, known) for half in halves]
        plots.calibration(axes[0, 1], levels, {"filtered": coverages})
    else:
        axes[0, 1].set_axis_off()
    scores = scores_of(filtered)
    if scores is None:
        for empty in axes[:, 2]:
            empty.set_axis_off()
    else:
        plots.log_scores(axes[1, 2], filtered["row"].to_numpy(), scores[0])
        plots.pit_histogram(axes[0, 2], scores[1])
    axes[0, 0].set(xlabel="row" if key is None else f"row of {stream}", ylabel=f"state {coordinate}")
    axes[0, 0].legend(fontsize="small")
    if reports:
        plots.elbo(axes[1, 0], reports)
        # A learner that draws trajectories has no weights, and no effective sample size.
        weighted = not all(math.isnan(report.ess) for report in reports)
        (plots.effective_sample_size if weighted else plots.gradient_norm)(axes[1, 1], reports)
    else:
        for empty in axes[1, :2]:
            empty.set_axis_off()
            if key is not None:
                empty.text(0.5, 0.5, "The monitor has said nothing of this stream.", ha="center")
    of = "" if key is None else f" of {stream!r}, one of {len(streams):,} streams"
    if parameters:
        plt.close(figure)
        figure = _of_parameters(run, reports)
    try:
        plots.save(figure, target, config.text())
    except OSError as error:
        raise RunError(f"{target} could not be written: {error.strerror}. Choose another place with --out.") from error
    print(f"Picture{of}: {target}", file=sys.stderr)
    say_verdict(read_verdict(run, config))


def _of_parameters(run: Path, reports: list[Any]) -> Any:
    """One picture for each parameter that is learned."""
    import matplotlib.pyplot as plt

    from backstream import plots
    from backstream.errors import InputError

    told = [report for report in reports if report.parameters]
    if not told:
        raise InputError(f"{run} has no parameters of the model to draw: learn them with --learn-model.")
    names = list(told[-1].parameters)
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 2.6 * lines), layout="constrained", squeeze=False)
    for place, name in zip(axes.flat, names, strict=False):
        numbers = [report.parameters[name] for report in told]
        values, errors = zip(*numbers, strict=True)
        plots.parameter(place, [report.t for report in told], values, errors, name)
    for empty in axes.flat[len(names) :]:
        empty.set_axis_off()
    return figure
