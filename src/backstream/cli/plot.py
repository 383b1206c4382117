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
) -> None:
    """States with their 90 % bands, the ELBO as the learner and as unbiased trajectories see it, sample sizes.

    Smoothed states and a forecast are drawn where backstream smooth and backstream forecast have left them in the run;
    with the true states, calibration too.

    Example: backstream plot run/ --states states.csv --out picture.png
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    from statistics import NormalDist

    import matplotlib.pyplot as plt
    import numpy as np

    from backstream import __version__, metrics, plots
    from backstream.io.errors import InputError, RunError
    from backstream.io.runs import open_config, read_filtered, read_parquet, read_reports
    from backstream.io.sources import open_source, read_all

    target, kinds = out or run / "plot.png", plt.gcf().canvas.get_supported_filetypes()
    if target.suffix.lower().removeprefix(".") not in kinds:
        raise InputError(f"{target} must end in one of .{', .'.join(kinds)}, so that its format is known.")
    config = open_config(run)
    filtered, reports = read_filtered(run), read_reports(run)
    if f"mean_{coordinate}" not in filtered.column_names:
        raise InputError(f"{run} has no state {coordinate}.")
    truth = None if states is None else read_all(open_source(states, dtype="float64")).ys
    rows = filtered["row"].to_numpy()
    if truth is not None and (len(truth) <= rows[-1] or truth.shape[1] <= coordinate):
        raise InputError(f"{states} has no state {coordinate} for row {rows[-1] + 1}: its shape is {truth.shape}.")

    figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), layout="constrained")
    shown, start = slice(-last, None), int(rows[-last:][0])

    def draw(table: Any, label: str, colour: str, style: str, start: int) -> None:
        mean, std = (table[f"{name}_{coordinate}"].to_numpy() for name in ("mean", "std"))
        half = NormalDist().inv_cdf(0.95) * std
        times = np.arange(start, start + len(mean))
        plots.band(axes[0, 0], mean - half, mean + half, mean, label, colour, style, times)

    def drawn(name: str, *columns: str) -> Any:
        """Some columns of a table that another command has left in the run."""
        table, wanted = read_parquet(run / name), [column.format(coordinate) for column in columns]
        if not set(wanted) <= set(table.column_names):
            raise RunError(f"{run / name} has no columns {', '.join(wanted)}: write it anew, or remove it.")
        return table.select(wanted)

    draw(filtered.slice(max(0, len(rows) - last)), "filtered", plots.ORANGE, "--", start)
    if (run / "smoothed.parquet").is_file():
        smoothed = drawn("smoothed.parquet", "mean_{}", "std_{}")
        draw(smoothed.slice(start, last), "smoothed", plots.BLUE, "-", start)
    if (run / "forecast.parquet").is_file():
        ahead = drawn("forecast.parquet", "state_lower_{}", "state_upper_{}", "state_mean_{}")
        lower, upper, mean = (column.to_numpy() for column in ahead.columns)
        times = np.arange(int(rows[-1]) + 1, int(rows[-1]) + 1 + len(mean))
        plots.band(axes[0, 0], lower, upper, mean, "forecast", plots.GREEN, "-.", times)
    if truth is not None:
        axes[0, 0].plot(rows[shown], truth[rows[shown], coordinate], color=plots.BLACK, linewidth=0.9, label="truth")
        mean, std = (filtered[f"{name}_{coordinate}"].to_numpy() for name in ("mean", "std"))
        levels = np.linspace(0.1, 0.9, 9)
        halves = [NormalDist().inv_cdf(0.5 + level / 2) * std for level in levels]
        known = truth[rows, coordinate]
        coverages = [metrics.coverage(mean - half, mean + half, known) for half in halves]
        plots.calibration(axes[0, 1], levels, {"filtered": coverages})
    else:
        axes[0, 1].set_axis_off()
    axes[0, 0].set(xlabel="row", ylabel=f"state {coordinate}")
    axes[0, 0].legend(fontsize="small")
    if reports:
        plots.elbo(axes[1, 0], reports)
        # A learner that draws trajectories has no weights, and no effective sample size.
        weighted = not all(math.isnan(report.ess) for report in reports)
        (plots.effective_sample_size if weighted else plots.gradient_norm)(axes[1, 1], reports)
    else:
        for empty in axes[1]:
            empty.set_axis_off()
    try:
        plots.save(figure, target, f"backstream {__version__}", config.text())
    except OSError as error:
        raise RunError(f"{target} could not be written: {error.strerror}. Choose another place with --out.") from error
    print(f"Picture: {target}", file=sys.stderr)
