"""`backstream plot`: a picture of a run."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import typer

from backstream._terminal import visible

from .failures import plainly
from .options import RunPath


@plainly
def plot(
    run: RunPath,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: RUN/plot.png.")] = None,
    states: Annotated[Path | None, typer.Option(help="A file with the true states, to draw them too.")] = None,
    coordinate: Annotated[int, typer.Option(min=0, help="The index of the state to draw.")] = 0,
    last: Annotated[int, typer.Option(min=2, help="The number of latest rows to draw.")] = 300,
    stream: Annotated[
        str | None, typer.Option(help="With many streams: the stream to draw. Default: that of the first row.")
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Draw the learned parameters of the model over time instead.")
    ] = False,
) -> None:
    """Draw the states and diagnostics of a run.

    Shows states with 90 % bands, PIT values, log scores and the ELBO over time. Smoothed states and a forecast are
    drawn if backstream smooth and backstream forecast were run before with their default output. With --states, the
    calibration is drawn too.

    Example: backstream plot run/ --states states.csv --out picture.png

    Example: backstream plot run/ --stream pump-7
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    from backstream import plots
    from backstream.errors import InputError, RunError
    from backstream.runs.store import open_config, read_verdict

    from .open_run import say_verdict

    target, kinds = out or run / "plot.png", plt.gcf().canvas.get_supported_filetypes()
    if target.suffix.lower().removeprefix(".") not in kinds:
        raise InputError(f"{target} must end in one of .{', .'.join(kinds)}, so that its format is known.")
    config = open_config(run)
    shown = _shown(run, config, coordinate, stream)
    figure = _of_parameters(run, shown.reports) if parameters else _of_states(shown, _truth(states, shown), last)
    try:
        plots.save(figure, target, config.text())
    except OSError as error:
        raise RunError(f"{target} could not be written: {error.strerror}. Choose another place with --out.") from error
    of = "" if shown.stream is None else f" of {shown.stream!r}, one of {shown.streams:,} streams"
    print(visible(f"Picture{of}: {target}"), file=sys.stderr)
    say_verdict(read_verdict(run, config))


class _Shown(NamedTuple):
    """One state of one stream of a run."""

    run: Path
    filtered: Any
    reports: list[Any]
    coordinate: int
    stream: str | None
    streams: int

    def part(self, table: Any) -> Any:
        """The rows of the stream."""
        import pyarrow as pa

        if self.stream is None:
            return table
        return table.filter(pa.array([name == self.stream for name in table["key"].to_pylist()]))

    def left(self, name: str, *columns: str) -> Any:
        """Some columns of a table that another command has left in the run; None where it has left none."""
        from backstream.errors import RunError
        from backstream.runs.results import read_parquet

        path = self.run / name
        if not path.is_file():
            return None
        table, wanted = read_parquet(path), [f"{column}_{self.coordinate}" for column in columns]
        needed = wanted if self.stream is None else ["key", *wanted]
        if not set(needed) <= set(table.column_names):
            raise RunError(f"{path} has no columns {', '.join(needed)}: write it again, or remove it.")
        return [column.to_numpy() for column in self.part(table).select(wanted).columns]


def _shown(run: Path, config: Any, coordinate: int, stream: str | None) -> _Shown:
    from backstream.errors import InputError
    from backstream.runs.store import read_reports

    from .open_run import read_scored

    filtered, streams = read_scored(run), {}
    if config.columns.key is not None:
        streams = dict.fromkeys(filter(None, filtered["key"].to_pylist()))
        stream = next(iter(streams), None) if stream is None else stream
        if stream not in streams:
            raise InputError(f"{run} has no stream {stream!r} among its {len(streams):,}.")
    elif stream is not None:
        raise InputError(f"{run} is a run of one stream: leave --stream out.")
    if f"mean_{coordinate}" not in filtered.column_names:
        raise InputError(f"{run} has no state {coordinate}.")
    reports = [report for report in read_reports(run) if report.stream == stream]
    shown = _Shown(run, filtered, reports, coordinate, stream, len(streams))
    return shown._replace(filtered=shown.part(filtered))


def _truth(path: Path | None, shown: _Shown) -> Any:
    """The true states at the rows of the stream; None where they are not given."""
    from backstream.data.sources import open_source, read_all
    from backstream.errors import InputError

    if path is None:
        return None
    rows, truth = shown.filtered["row"].to_numpy(), read_all(open_source(path, dtype="float64")).ys
    if len(truth) <= rows[-1] or truth.shape[1] <= shown.coordinate:
        raise InputError(f"{path} has no state {shown.coordinate} for row {rows[-1] + 1}: its shape is {truth.shape}.")
    return truth[rows, shown.coordinate]


def _of_states(shown: _Shown, truth: Any, last: int) -> Any:
    """The state over the whole width, and below it whatever there is to say about how good it is."""
    import matplotlib.pyplot as plt

    below = _diagnostics(shown, truth)
    figure = plt.figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(2, len(below), height_ratios=(3, 2))
    _draw_states(figure.add_subplot(grid[0, :]), shown, truth, last)
    for i, draw in enumerate(below):
        draw(figure.add_subplot(grid[1, i]))
    return figure


def _draw_states(axes: Any, shown: _Shown, truth: Any, last: int) -> None:
    from backstream import plots
    from backstream.engine.picture import times_of

    filtered, count = shown.filtered, len(shown.filtered)
    start, half = max(0, count - last), NormalDist().inv_cdf(0.95)
    ahead = shown.left("forecast.parquet", "state_lower", "state_upper", "state_mean")
    horizon = 0 if ahead is None else len(ahead[0])
    texts = filtered["time"].to_pylist() if "time" in filtered.column_names else None
    times = times_of(texts, count, horizon)

    def draw(mean: Any, std: Any, label: str, color: str, style: str) -> None:
        mean, width = mean[start:], half * std[start:]
        at = times[start : start + len(mean)]
        plots.band(axes, mean - width, mean + width, mean, label, color, style, at)

    smoothed = shown.left("smoothed.parquet", "mean", "std")
    if smoothed is not None:
        draw(smoothed[0][:count], smoothed[1][:count], "smoothed, 90 % band", plots.BLUE, "-")
    mean, std = (filtered[f"{name}_{shown.coordinate}"].to_numpy() for name in ("mean", "std"))
    draw(mean, std, "filtered, 90 % band", plots.ORANGE, "--")
    if ahead is not None and horizon:
        lower, upper, middle = ahead
        plots.band(axes, lower, upper, middle, "forecast, 90 % band", plots.GREEN, "-.", times[count:])
    if truth is not None:
        axes.plot(times[start:count], truth[start:], color=plots.BLACK, linewidth=0.9, label="truth")
    of = "" if shown.stream is None else f" of {shown.stream}"
    axes.set_xlabel(visible(("row" if texts is None else "") + of), parse_math=False)
    axes.set_ylabel(f"state {shown.coordinate}")
    axes.margins(x=0.01)
    axes.legend(fontsize="small", frameon=False, ncols=4, loc="upper left")


def _diagnostics(shown: _Shown, truth: Any) -> list[Callable[[Any], None]]:
    """What there is to draw: each is a function of the axes."""
    import numpy as np

    from backstream import plots

    filtered, reports = shown.filtered, shown.reports
    found: list[Callable[[Any], None]] = []
    if truth is not None:
        found.append(lambda axes: _draw_calibration(axes, shown, truth))
    names = [name for name in filtered.column_names if name.startswith("pit_")]
    pits = np.column_stack([filtered[name].to_numpy() for name in names])
    if np.isfinite(pits).any():  # labels have none
        found.append(lambda axes: plots.pit_histogram(axes, pits))
    scores = filtered["log_score"].to_numpy()
    if np.isfinite(scores).any():
        found.append(lambda axes: plots.log_scores(axes, filtered["row"].to_numpy(), scores))
    if len(reports) > 1 or not found:
        found.append(lambda axes: plots.elbo(axes, reports))
    # A learner that draws trajectories has no weights, and no effective sample size.
    if len(reports) > 1 and not all(math.isnan(report.ess) for report in reports):
        found.append(lambda axes: plots.effective_sample_size(axes, reports))
    return found


def _draw_calibration(axes: Any, shown: _Shown, truth: Any) -> None:
    import numpy as np

    from backstream import metrics, plots

    mean, std = (shown.filtered[f"{name}_{shown.coordinate}"].to_numpy() for name in ("mean", "std"))
    used = ~np.isnan(mean)  # not so for rows that were set aside
    mean, std, known, levels = mean[used], std[used], truth[used], np.linspace(0.1, 0.9, 9)
    halves = [NormalDist().inv_cdf(0.5 + level / 2) * std for level in levels]
    plots.calibration(
        axes, levels, {"filtered": [metrics.coverage(mean - half, mean + half, known) for half in halves]}
    )


def _of_parameters(run: Path, reports: list[Any]) -> Any:
    """One picture for each parameter that is learned."""
    import matplotlib.pyplot as plt

    from backstream import plots
    from backstream.errors import InputError

    known = [report for report in reports if report.parameters]
    if not known:
        raise InputError(f"{run} has no parameters of the model to draw: learn them with --learn-model.")
    names = list(known[-1].parameters)
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 2.6 * lines), layout="constrained", squeeze=False)
    for place, name in zip(axes.flat, names, strict=False):
        numbers = [report.parameters[name] for report in known]
        values, errors = zip(*numbers, strict=True)
        plots.parameter(place, [report.t for report in known], values, errors, name)
    for empty in axes.flat[len(names) :]:
        empty.set_axis_off()
    return figure
