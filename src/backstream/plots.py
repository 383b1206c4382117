"""Pictures: readable in print and by the color-blind (the Okabe-Ito palette, and line styles that differ).

Each function draws on the Axes that it is given and leaves figure, size and title to the caller.

>>> from backstream.posterior import Marginals
>>> law = Marginals(np.zeros((5, 1), "f"), np.ones((5, 1, 1), "f"))
>>> figure, axes = plt.subplots()
>>> states(axes, law, law, observed=np.zeros((5, 1)))
>>> [line.get_label() for line in axes.lines]
['observations', 'smoothed, 90 % band', 'filtered']
>>> plt.close(figure)
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

BLUE, ORANGE, GREEN, PURPLE, GRAY, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999", "#000000"
STYLES = ((BLUE, "o-"), (ORANGE, "s--"), (GREEN, "^-."), (PURPLE, "d:"))
"""Colors with their markers and dashes, so that a gray print tells curves apart."""


def band(
    axes: Axes, lower: Any, upper: Any, mean: Any, label: str, color: str, style: str = "-", times: Any = None
) -> None:
    """A mean with its credible band."""
    times = _times(times, len(mean))
    axes.fill_between(times, np.asarray(lower), np.asarray(upper), color=color, alpha=0.2, linewidth=0)
    axes.plot(times, np.asarray(mean), style, color=color, linewidth=1.2, label=label)


def regions(axes: Axes, pieces: Any, mean: Any, label: str, color: str, times: Any = None) -> None:
    """A mean with its regions of highest density, [T, k, 2], as `regions` of a law returns them for a coordinate. Where
    some are in several pieces, each row is drawn by itself."""
    times, pieces = _times(times, len(mean)), np.asarray(pieces)
    for lower, upper in np.moveaxis(pieces, 0, 2):
        there = ~np.isnan(lower)
        step = None if pieces.shape[1] == 1 else "mid"
        axes.fill_between(times, lower, upper, where=there, step=step, color=color, alpha=0.2, linewidth=0)
    axes.plot(times, np.asarray(mean), "-", color=color, linewidth=1.2, label=label)


def states(
    axes: Axes,
    filtered: Any,
    smoothed: Any,
    coordinate: int = 0,
    truth: Any = None,
    observed: Any = None,
    level: float = 0.9,
    times: Any = None,
) -> None:
    """One coordinate: smoothed with its band, filtered as a line, the truth and the observations if known.

    `filtered` and `smoothed` are `Marginals`, or `MixtureMarginals`, whose band may be in several pieces. Observations
    far outside the picture are drawn at its edge, missing ones not at all. `times` are numbers or dates, one for each
    row.
    """
    times = _times(times, len(smoothed.mean))
    pieces = np.asarray(smoothed.regions(level))[:, coordinate]
    low, high = _limits(pieces, *([] if truth is None else [np.asarray(truth)[:, coordinate]]))
    if observed is not None:
        y = np.clip(np.asarray(observed)[:, coordinate], low, high)
        axes.plot(times, y, ".", color=GRAY, markersize=3, label="observations")
    mean = np.asarray(smoothed.mean)[:, coordinate]
    regions(axes, pieces, mean, f"smoothed, {_percent(level)} band", BLUE, times)
    axes.plot(times, np.asarray(filtered.mean)[:, coordinate], "--", color=ORANGE, linewidth=0.9, label="filtered")
    if truth is not None:
        axes.plot(times, np.asarray(truth)[:, coordinate], color=BLACK, linewidth=0.9, label="truth")
    margin = 0.02 * (high - low)
    axes.set(xlabel="time", ylabel=f"state {coordinate}", ylim=(low - margin, high + margin))
    _legend(axes, ncols=2)


def hindsight(
    axes: Axes, filtered: Any, smoothed: Any, coordinate: int = 0, level: float = 0.9, times: Any = None
) -> None:
    """Smoothed against filtered: both bands, that of the filter as dashed edges, that of the smoother filled."""
    times = _times(times, len(smoothed.mean))
    lower, upper = (np.asarray(end)[:, coordinate] for end in filtered.interval(level))
    label = f"filtered, {_percent(level)} band"
    axes.plot(times, lower, "--", color=ORANGE, linewidth=0.9, label=label)
    axes.plot(times, upper, "--", color=ORANGE, linewidth=0.9)
    lower, upper = (np.asarray(end)[:, coordinate] for end in smoothed.interval(level))
    label = f"smoothed, {_percent(level)} band"
    band(axes, lower, upper, np.asarray(smoothed.mean)[:, coordinate], label, BLUE, times=times)
    axes.set(xlabel="time", ylabel=f"state {coordinate}")
    _legend(axes)


def learning_curve(axes: Axes, t: Any, values: Any, label: str, limit: float | None = None, ylabel: str = "") -> None:
    """A figure of merit against the number of observations read, and the limit it cannot cross."""
    axes.plot(t, values, "o-", color=BLUE, markersize=3, linewidth=1.2, label=label)
    if limit is not None:
        axes.axhline(limit, color=BLACK, linestyle=":", linewidth=1.0, label="particle limit")
    axes.set(xlabel="observations read", ylabel=ylabel)
    _legend(axes)


def parameter(axes: Axes, rows: Any, values: Any, errors: Any, name: str, truth: float | None = None) -> None:
    """One parameter of the model over the stream, with the 90 % band of its standard errors where there are any."""
    values, half = np.asarray(values, float), 1.645 * np.asarray(errors, float)
    band(axes, values - half, values + half, values, "estimate, 90 % band", BLUE, times=rows)
    if truth is not None:
        axes.axhline(truth, color=BLACK, linestyle="--", linewidth=0.9, label="truth")
    axes.set_xlabel("row")
    axes.set_ylabel(name, parse_math=False)
    _legend(axes)


def elbo(axes: Axes, reports: Sequence[Any]) -> None:
    """The ELBO that the learner reports, the unbiased ELBO of the same λ, and that of the averaged λ, the result.

    `reports` are those of a `Monitor`. Bars are two standard errors. A triangle at the foot marks a window of which the
    monitor warned.
    """
    t = [report.t for report in reports]
    unbiased, error = (np.array([getattr(r, name) for r in reports]) for name in ("unbiased_elbo", "unbiased_error"))
    axes.plot(t, [r.elbo for r in reports], "s--", color=ORANGE, markersize=3, linewidth=1.0, label="the learner's own")
    bars = {"color": BLUE, "markersize": 3, "linewidth": 1.0, "elinewidth": 0.8, "capsize": 2}
    axes.errorbar(t, unbiased, 2 * error, fmt="o-", label="unbiased", **bars)
    average = [r.average_elbo for r in reports]
    axes.plot(t, average, "^-.", color=GREEN, markersize=3, linewidth=1.0, label="unbiased, averaged λ")
    warned = [r.t for r in reports if r.warnings]
    if warned:
        foot = axes.get_xaxis_transform()
        axes.plot(warned, [0.03] * len(warned), "^", color=BLACK, markersize=5, transform=foot, label="warning")
    axes.set(xlabel="observations read", ylabel="ELBO, nats per observation")
    _legend(axes)


def effective_sample_size(
    axes: Axes, reports: Sequence[Any], num_particles: int | None = None, least: float = 1.5
) -> None:
    """The mean effective sample size of the backward weights in each window, on a logarithmic scale.

    `num_particles` draws the most it can be, `least` what the monitor warns below.
    """
    axes.plot(
        [r.t for r in reports], [r.ess for r in reports], "o-", color=BLUE, markersize=3, label="mean of a window"
    )
    if num_particles is not None:
        axes.axhline(num_particles, color=BLACK, linestyle=":", linewidth=1.0, label="particles")
    axes.axhline(least, color=ORANGE, linestyle="--", linewidth=1.0, label="too few")
    axes.set(xlabel="observations read", ylabel="effective sample size", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    _legend(axes)


def gradient_norm(axes: Axes, reports: Sequence[Any]) -> None:
    """The median norm of the gradient in each window, on a logarithmic scale."""
    norms = [r.gradient_norm for r in reports]
    axes.plot([r.t for r in reports], norms, "o-", color=BLUE, markersize=3, label="median of a window")
    axes.set(xlabel="observations read", ylabel="norm of the gradient", yscale="log")
    _legend(axes)


def calibration(axes: Axes, levels: Any, coverages: Any) -> None:
    """The share of states inside intervals against their nominal level; honest ones lie on the diagonal.

    `coverages` is one curve, or up to four by name. `metrics.calibration` computes one.
    """
    curves = coverages if isinstance(coverages, Mapping) else {"smoothed": coverages}
    if len(curves) > len(STYLES):
        raise ValueError(f"At most {len(STYLES)} curves can be told apart, not {len(curves)}.")
    axes.plot([0, 1], [0, 1], "-", color=GRAY, linewidth=1.0, label="honest")
    for (name, curve), (color, style) in zip(curves.items(), STYLES, strict=False):
        axes.plot(levels, curve, style, color=color, markersize=3, linewidth=1.2, label=name)
    axes.set(xlabel="nominal level", ylabel="share inside", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    _legend(axes)


def pit_histogram(axes: Axes, pits: Any, bins: int = 10) -> None:
    """Where the rows lay in their predictions. Honest predictions make all columns equally high, but for chance: the
    gray band holds a column with probability 95 %."""
    known = np.asarray(pits, float).ravel()
    known = known[np.isfinite(known)]
    axes.hist(known, np.linspace(0, 1, bins + 1).tolist(), color=BLUE, alpha=0.7, density=True, label="rows")
    half = 1.96 * np.sqrt((bins - 1) / max(len(known), 1))
    axes.axhspan(1 - half, 1 + half, color=GRAY, alpha=0.3, label="expected, 95 %")
    axes.set(xlabel="PIT value", ylabel="density", xlim=(0, 1))
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])
    _legend(axes)


def log_scores(axes: Axes, rows: Any, scores: Any, points: int = 60) -> None:
    """The log score over the stream: means of equally many rows, and of each the standard error, doubled."""
    rows, scores = np.asarray(rows), np.asarray(scores, float)
    known = np.isfinite(scores)
    parts = np.array_split(np.flatnonzero(known), min(points, max(1, int(known.sum()) // 5)))
    parts = [part for part in parts if len(part) > 1]
    means = np.array([scores[part].mean() for part in parts])
    errors = np.array([scores[part].std(ddof=1) / np.sqrt(len(part)) for part in parts])
    bars = {"color": BLUE, "markersize": 3, "linewidth": 1.0, "elinewidth": 0.8, "capsize": 2}
    axes.errorbar([rows[part].mean() for part in parts], means, 2 * errors, fmt="o-", label="mean", **bars)
    axes.set(xlabel="row", ylabel="log score, nats per row")
    _legend(axes)


def fan(
    axes: Axes,
    draws: Any,
    coordinate: int = 0,
    past: Any = None,
    future: Any = None,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    times: Any = None,
) -> None:
    """A forecast: its median and bands that widen with their level, after the past rows, and the rows that followed.

    `draws` is `forecast(...).observations` or `.states`. `past` and `future`, if known, are rows alike. `times` covers
    the past and the horizon; without it, time 0 is the first forecast.
    """
    before, horizon = 0 if past is None else len(past), draws.values.shape[1]
    times = np.arange(-before, horizon) if times is None else _times(times, before + horizon)
    if past is not None:
        axes.plot(times[:before], np.asarray(past)[:, coordinate], color=BLACK, linewidth=0.9, label="past")
    ahead = times[before:]
    for k, level in enumerate(sorted(levels, reverse=True)):
        lower, upper = (np.asarray(end)[:, coordinate] for end in draws.interval(level))
        shade = _tint(BLUE, 0.2 + 0.5 * k / len(levels))  # opaque, so that the legend shows what the picture does
        axes.fill_between(ahead, lower, upper, color=shade, linewidth=0, label=_percent(level))
    median = np.median(np.asarray(draws.values)[:, :, coordinate], axis=0)
    axes.plot(ahead, median, color=BLUE, linewidth=1.4, label="median")
    if future is not None:
        axes.plot(ahead, np.asarray(future)[:, coordinate], ".", color=ORANGE, markersize=4, label="what came")
    axes.set(xlabel="time")
    _legend(axes)


METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
"""Where a picture has room for what it was made from."""


def save(figure: Figure, path: str | Path, config: str = "") -> Path:
    """Writes the picture, with the configuration where its format has room for one, and closes the figure.

    The picture appears whole or not at all. A link in its place is replaced, not followed: a run directory made by
    somebody else may hold one.
    """
    path, content = Path(path), io.BytesIO()
    place = METADATA.get(path.suffix.lower())
    about = {place: config} if place and config else None
    kind = path.suffix.lower().removeprefix(".")
    figure.savefig(content, format=kind, dpi=150, bbox_inches="tight", metadata=about)
    plt.close(figure)
    incoming = path.with_name(f".incoming-{path.name}")
    incoming.unlink(missing_ok=True)
    with open(incoming, "xb") as file:
        file.write(content.getvalue())
    incoming.replace(path)
    return path


def _times(times: Any, length: int) -> np.ndarray:
    if times is None:
        return np.arange(length)
    if len(times) != length:
        raise ValueError(f"There are {length} rows to draw, but {len(times)} times.")
    return np.asarray(times)


def _limits(*curves: np.ndarray) -> tuple[float, float]:
    """The range of the curves and a quarter more on either side."""
    low = min(float(np.nanmin(curve)) for curve in curves)
    high = max(float(np.nanmax(curve)) for curve in curves)
    margin = 0.25 * (high - low)
    return low - margin, high + margin


def _tint(color: str, strength: float) -> tuple[float, ...]:
    """The color thinned with white."""
    return tuple(1 - strength * (1 - part) for part in to_rgb(color))


def _percent(level: float) -> str:
    return f"{100 * level:.4g} %"


def _legend(axes: Axes, ncols: int = 1) -> None:
    axes.legend(loc="best", fontsize="small", ncols=ncols, frameon=False)
