"""How far predictions are off: which statistics of the rows depart from what exact predictions give.

With exact predictions the normal numbers of the PIT values are independent and standard normal, and ranks are uniform,
for every law. A departure counts where chance makes it in FALSE_ALARMS of all verdicts at most, all tests of all
columns together, and where it is large enough to matter (MATERIAL), some 0.03 nats per row.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from .remedies import Circumstances, follow, learn_it, named
from .tally import LEVEL, Figures, Mean
from .verdict import Reason

FALSE_ALARMS = 0.01
"""Of verdicts on exact predictions, at most."""
LEAST_ROWS, LEAST_VALUES = 30, 20
"""Fewer say nothing: rows of a run, and values of a column."""
MATERIAL = {"mean": 0.25, "variance": 0.35, "correlation": 0.2, "rank": 0.06, "inside": 0.07, "region": 0.07}
"""By how much each statistic must be off to matter."""
CENTER = {"mean": 0.0, "variance": 1.0, "correlation": 0.0, "rank": 0.5, "inside": LEVEL, "region": LEVEL}
SPREAD = {"mean": 1.0, "variance": 2**0.5, "correlation": 1.0, "rank": 12**-0.5, "inside": 0.3, "region": 0.3}
"""What each is where predictions are exact, and its standard error times √n. The first three are of PIT values as
normal numbers: their mean, variance and correlation with those of the row before."""
SUDDEN = 1.5
"""A departure that is so many times as large in the recent rows as in the long run has begun of late."""


class Finding(NamedTuple):
    """A departure of one statistic, in one column or in all."""

    name: str
    where: str
    value: float
    sudden: bool
    """Whether it is of the recent rows, and the long run does not have it."""


def _departures(recent: Figures, long: Figures, about: Circumstances) -> Iterator[Finding]:
    """What is off: in the recent rows, or in the long run where the recent rows do not say otherwise."""
    names, columns = list(CENTER), len(long["z"].value)
    tests = 2 * (2 + 4 * columns)
    limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * tests))
    for name in names:
        now, before = (_off(figures, name, limit) for figures in (recent, long))
        off = now.beyond | (before.beyond & (np.abs(now.value) > MATERIAL[name] / 2) & (now.value * before.value > 0))
        began = now.beyond & (np.abs(now.value) > SUDDEN * np.abs(before.value))
        began = began & (np.abs(now.value - before.value) > 2 * now.error)
        for i in np.flatnonzero(off):
            where = "" if now.value.size == 1 else named(about, int(i))
            value = (now if now.beyond[i] else before).value[i]
            yield Finding(name, where, float(value), bool(began[i]))


class _Off(NamedTuple):
    value: np.ndarray
    error: np.ndarray
    beyond: np.ndarray


def _off(figures: Figures, name: str, limit: float) -> _Off:
    found = _statistic(figures, name)
    value, count = np.atleast_1d(found.value - CENTER[name]), np.atleast_1d(found.count)
    error = SPREAD[name] / np.sqrt(np.maximum(count, 1e-9))
    with np.errstate(invalid="ignore"):
        beyond = (np.abs(value) > np.maximum(limit * error, MATERIAL[name])) & (count >= LEAST_VALUES)
    return _Off(np.nan_to_num(value), error, beyond)


def _statistic(figures: Figures, name: str) -> Mean:
    if name in ("rank", "inside", "region"):
        return figures[name]
    mean, square, lag = figures["z"], figures["z_square"], figures["z_lag"]
    variance = square.value - mean.value**2
    if name == "mean":
        return mean
    if name == "variance":
        return square._replace(value=variance)
    return lag._replace(value=np.clip((lag.value - mean.value**2) / np.maximum(variance, 1e-6), -1, 1))


def calibration(recent: Figures, long: Figures, about: Circumstances, lost: bool) -> list[Reason]:
    found: dict[tuple[str, bool, bool], list[Finding]] = {}
    for one in _departures(recent, long, about):
        found.setdefault((one.name, one.value > 0, one.sudden), []).append(one)
    kept = _without_repetition(found)
    return [_reason(findings, about, lost) for findings in kept.values()]


def _without_repetition(found: dict[tuple[str, bool, bool], list[Finding]]) -> dict[Any, list[Finding]]:
    """Bands, regions and ranks say the same as the spread, where there is one."""
    wide = any(name == "variance" for name, _, _ in found)
    once = {key: value for key, value in found.items() if not (wide and key[0] in ("inside", "region", "rank"))}
    if any(name in ("mean", "rank") for name, _, _ in once):
        once = {key: value for key, value in once.items() if key[0] not in ("inside", "region")}
    return once


WORDS = {
    ("mean", True): "The rows lie above their predictions, by {0:.2f} standard deviations on average",
    ("mean", False): "The rows lie below their predictions, by {0:.2f} standard deviations on average",
    ("variance", True): "The rows vary more than predicted: {1:.2f} times the variance",
    ("variance", False): "The rows vary less than predicted: {1:.2f} times the variance",
    ("correlation", True): "Prediction errors repeat from row to row: correlation {2:+.2f}",
    ("correlation", False): "Prediction errors alternate from row to row: correlation {2:+.2f}",
    ("rank", True): "The rows are more probable than they should be: their densities rank at {3:.2f} among replicates, "
    "not at 0.50",
    ("rank", False): "The rows are less probable than they should be: their densities rank at {3:.2f} among "
    "replicates, not at 0.50",
    ("inside", True): "{4:.0%} of the values lie inside the 90 % bands",
    ("inside", False): "{4:.0%} of the values lie inside the 90 % bands",
    ("region", True): "{4:.0%} of the rows lie inside the 90 % regions",
    ("region", False): "{4:.0%} of the rows lie inside the 90 % regions",
}
CAUSES = {
    "mean": "the level of the model or of the sensor is wrong",
    "variance": "the noise of the model has the wrong size, or a column has another unit",
    "correlation": "the dynamics of the model are wrong",
    "rank": "the noise or the probabilities of the model are wrong",
    "inside": "the noise of the model has the wrong size",
    "region": "the noise or the probabilities of the model are wrong",
}


def _reason(findings: list[Finding], about: Circumstances, lost: bool) -> Reason:
    worst = max(findings, key=lambda one: abs(one.value))
    name, value = worst.name, worst.value
    words = WORDS[name, value > 0].format(abs(value), 1 + value, value, 0.5 + value, LEVEL + value)
    where = ", ".join(one.where for one in findings[:3] if one.where) + (" and others" if len(findings) > 3 else "")
    when = ", in the latest rows" if worst.sudden else ""
    what = f"{words}{f' ({where})' if where else ''}{when}."
    if worst.sudden:
        return Reason(what, "the process or a sensor has changed", follow(about))
    if lost:
        return Reason(what, "the posterior does not follow the model, see below")
    return Reason(what, CAUSES[name], learn_it(about))
