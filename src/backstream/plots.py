"""Pictures: readable in print and by the colour-blind (the Okabe-Ito palette, and line styles that differ)."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#999999", "#000000"


def band(
    axes: Axes, lower: Any, upper: Any, mean: Any, label: str, colour: str, style: str = "-", start: int = 0
) -> None:
    """A mean with its credible band, from time `start` on."""
    steps = np.arange(start, start + len(mean))
    axes.fill_between(steps, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, mean, style, color=colour, linewidth=1.2, label=label)


def states(
    axes: Axes, filtered: Any, smoothed: Any, coordinate: int = 0, truth: Any = None, observed: Any = None
) -> None:
    """One coordinate: smoothed with its 90 % band, filtered as a line, the truth and the observations if known.

    `filtered` and `smoothed` are `Marginals`. Observations far outside the picture are drawn at its edge.
    """
    lower, upper = (np.asarray(end)[:, coordinate] for end in smoothed.interval(0.9))
    values = [lower, upper] + ([] if truth is None else [np.asarray(truth)[:, coordinate]])
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    margin = 0.25 * (high - low)
    if observed is not None:
        y = np.clip(np.asarray(observed)[:, coordinate], low - margin, high + margin)
        axes.plot(y, ".", color=GREY, markersize=3, label="observations")
    band(axes, lower, upper, np.asarray(smoothed.mean)[:, coordinate], "smoothed, 90 % band", BLUE)
    axes.plot(np.asarray(filtered.mean)[:, coordinate], "--", color=ORANGE, linewidth=0.9, label="filtered")
    if truth is not None:
        axes.plot(np.asarray(truth)[:, coordinate], color=BLACK, linewidth=0.9, label="truth")
    axes.set(xlabel="time", ylabel=f"state {coordinate}", ylim=(low - 1.1 * margin, high + 1.1 * margin))
    axes.legend(loc="upper right", fontsize="small", ncols=2)


def learning_curve(axes: Axes, t: Any, values: Any, label: str, limit: float | None = None, ylabel: str = "") -> None:
    """A figure of merit against the number of observations read, and the limit it cannot cross."""
    axes.plot(t, values, "o-", color=BLUE, markersize=3, linewidth=1.2, label=label)
    if limit is not None:
        axes.axhline(limit, color=BLACK, linestyle=":", linewidth=1.0, label="particle limit")
    axes.set(xlabel="observations read", ylabel=ylabel)
    axes.legend(fontsize="small")


def elbos(axes: Axes, reports: Any) -> None:
    """What the monitor saw, one report for each window: the recursion's ELBO and unbiased ones, per observation."""
    t = [report.t for report in reports]
    error = np.array([report.unbiased_error for report in reports])
    unbiased = np.array([report.unbiased_elbo for report in reports])
    axes.fill_between(t, unbiased - 3 * error, unbiased + 3 * error, color=ORANGE, alpha=0.2, linewidth=0)
    axes.plot(t, unbiased, "--", color=ORANGE, linewidth=1.2, label="unbiased, ± 3 standard errors")
    axes.plot(t, [report.elbo for report in reports], color=BLUE, linewidth=1.2, label="the recursion's")
    axes.plot(t, [report.average_elbo for report in reports], ":", color=BLACK, label="unbiased, of the result")
    axes.set(xlabel="observations read", ylabel="ELBO per observation")
    axes.legend(fontsize="small")


def effective_sizes(axes: Axes, reports: Any) -> None:
    """The effective sample size over time; gaps where the estimator has none."""
    axes.plot([report.t for report in reports], [report.ess for report in reports], color=BLUE, linewidth=1.2)
    axes.set(xlabel="observations read", ylabel="effective sample size", ylim=(0, None))


def calibration(axes: Axes, levels: Any, coverages: Any, label: str = "smoothed") -> None:
    """The share of states inside intervals against their nominal level."""
    axes.plot([0, 1], [0, 1], ":", color=BLACK, linewidth=1.0, label="honest")
    axes.plot(levels, coverages, "o-", color=BLUE, markersize=3, linewidth=1.2, label=label)
    axes.set(xlabel="nominal level", ylabel="share of states inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize="small")


def save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return path
