"""Whether what a run reports can be used: one word, and the reasons for it.

Everything is judged from predictions of rows that had not been read: no true state is needed. With exact predictions
the normal numbers of the PIT values are independent and standard normal, and ranks are uniform, for every law. A doubt
needs both: a departure that chance makes in FALSE_ALARMS of all verdicts at most, all tests of all columns together,
and one that is large enough to matter (MATERIAL), some 0.03 nats per row.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from .particle_reference import Reference
from .tally import LEVEL, Figures, Mean, Tally
from .verdict import Kind, Reason, Verdict

FALSE_ALARMS = 0.01
"""Of verdicts on exact predictions, at most."""
LEAST_ROWS = 30
"""Fewer say nothing."""
MATERIAL = {"mean": 0.25, "variance": 0.35, "correlation": 0.2, "rank": 0.06, "inside": 0.07, "region": 0.07}
"""By how much each statistic must be off to matter."""
CENTRE = {"mean": 0.0, "variance": 1.0, "correlation": 0.0, "rank": 0.5, "inside": LEVEL, "region": LEVEL}
SPREAD = {"mean": 1.0, "variance": 2**0.5, "correlation": 1.0, "rank": 12**-0.5, "inside": 0.3, "region": 0.3}
"""What each is where predictions are exact, and its standard error times √n. The first three are of PIT values as
normal numbers: their mean, variance and correlation with those of the row before."""
SUDDEN = 1.5
"""A departure that is so many times as large in the recent rows as in the long run has begun of late."""
MOST_REFUSED, LEAST_REFUSED = 0.01, 3
"""The share of refused updates above which a run has failed, and how many there must be."""
LEAST_COVERAGE, LEAST_COLUMN = 0.7, 0.5
"""The share of values inside the 90 % bands below which it has failed: of all columns, and of one."""
LEAST_GAP, LEAST_NATS = 0.05, 5.0
"""What a posterior must lose against the particle filters to be doubted: nats per row, and in all; by chance they
exceed it with a probability of e⁻⁵ at most."""


class Circumstances(NamedTuple):
    """What is learned, and from where: which remedies there are."""

    scores: bool
    """Whether the posterior reads the model, and scores its rows."""
    components: int
    learns_model: bool
    improves: bool
    """Whether something is learned that has not settled: λ of a family that starts from nothing, or θ."""
    fallback: bool
    names: tuple[str, ...] = ()
    """Of the columns, where they have any."""


class Finding(NamedTuple):
    """A departure of one statistic, in one column or in all."""

    name: str
    where: str
    value: float
    sudden: bool
    """Whether it is of the recent rows, and the long run does not have it."""


def judge(
    tally: Tally, about: Circumstances, reference: Reference | None = None, warnings: tuple[str, ...] = ()
) -> Verdict:
    """The verdict on a run.

    Args:
        tally: What its rows have shown.
        about: What is learned.
        reference: What particle filters say of the latest rows that they were shown.
        warnings: What the monitor said at its latest look.
    """
    recent, long = Figures(tally, 0), Figures(tally, 1)
    figures = _figures(recent, long, reference)
    worse = _learned_worse(long, about)
    lost = _gap(reference, about, bool(worse))
    refused = _refusals(recent, long, about)
    failures = [*refused, *worse, *_coverage(recent, long, about, bool(lost))]
    doubts = [*_calibration(recent, long, about, bool(lost)), *lost, *(Reason(warning) for warning in warnings)]
    notes = _notes(long, about, reference)
    rising = about.improves and not refused and _rises(recent, long)
    if failures or doubts:
        kind: Kind = "learning" if rising else "failed" if failures else "doubtful"
        return Verdict(kind, (*failures, *doubts), notes, figures)
    rows = max(float(np.max(long[name].weight, initial=0.0)) for name in ("rank", "inside"))
    if rows < LEAST_ROWS:
        return Verdict("learning", (Reason(f"Only {rows:.0f} rows could be judged: too few."),), notes, figures)
    return Verdict("good", (), notes, figures)


def pooled(tallies: Tally) -> Tally:
    """The tally of several streams together; they are along the first axis."""
    return Tally(np.asarray(tallies.sums, float).sum(0), np.asarray(tallies.last)[0])  # type: ignore[arg-type]


# ---- calibration -----------------------------------------------------------------------------------------------------
def _departures(recent: Figures, long: Figures, about: Circumstances) -> Iterator[Finding]:
    """What is off: in the recent rows, or in the long run where the recent rows do not say otherwise."""
    names, columns = list(CENTRE), len(long["z"].value)
    tests = 2 * (2 + 4 * columns)
    limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * tests))
    for name in names:
        now, before = (_off(figures, name, limit) for figures in (recent, long))
        off = now.beyond | (before.beyond & (np.abs(now.value) > MATERIAL[name] / 2) & (now.value * before.value > 0))
        began = now.beyond & (np.abs(now.value) > SUDDEN * np.abs(before.value))
        began = began & (np.abs(now.value - before.value) > 2 * now.error)
        for i in np.flatnonzero(off):
            where = "" if now.value.size == 1 else _named(about, int(i))
            value = (now if now.beyond[i] else before).value[i]
            yield Finding(name, where, float(value), bool(began[i]))


class _Off(NamedTuple):
    value: np.ndarray
    error: np.ndarray
    beyond: np.ndarray


def _off(figures: Figures, name: str, limit: float) -> _Off:
    found = _statistic(figures, name)
    value, count = np.atleast_1d(found.value - CENTRE[name]), np.atleast_1d(found.count)
    error = SPREAD[name] / np.sqrt(np.maximum(count, 1e-9))
    with np.errstate(invalid="ignore"):
        return _Off(np.nan_to_num(value), error, np.abs(value) > np.maximum(limit * error, MATERIAL[name]))


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


def _named(about: Circumstances, column: int) -> str:
    return about.names[column] if column < len(about.names) else f"column {column}"


def _calibration(recent: Figures, long: Figures, about: Circumstances, lost: bool) -> list[Reason]:
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
        return Reason(what, "the process or a sensor has changed", _follow(about))
    if lost:
        return Reason(what, "the posterior does not follow the model, see below")
    return Reason(what, CAUSES[name], _learn_it(about))


def _follow(about: Circumstances) -> str:
    if about.learns_model:
        return "a --model-horizon, so that old rows are forgotten"
    return "look at the latest rows; if the change is real, --learn-model with a --model-horizon"


def _learn_it(about: Circumstances) -> str:
    if about.learns_model:
        return "more rows, or another model: the learned parameters cannot correct this"
    return "learn the model's parameters (--learn-model, bs.learn(..., learn='all')), and check the columns' units"


# ---- what else can be wrong ------------------------------------------------------------------------------------------
def _refusals(recent: Figures, long: Figures, about: Circumstances) -> list[Reason]:
    share, count = float(long["refused"].value), float(long["refused"].value * long["refused"].weight)
    latest = float(recent["refused"].value)
    if np.isnan(share) or not ((share > MOST_REFUSED and count >= LEAST_REFUSED - 0.5) or latest > 0.1):
        return []
    return [
        Reason(
            f"{max(share, latest):.1%} of the updates were not finite and were skipped.",
            "rows that are impossible in the model, a learning rate that is too high, or too little precision",
            f"look at the rows marked as refused; a lower --{'model-' if about.learns_model else ''}rate",
        )
    ]


def _coverage(recent: Figures, long: Figures, about: Circumstances, lost: bool) -> list[Reason]:
    """Bands that hold far too little, of late or in the long run."""
    for figures, rows in ((recent, "latest rows"), (long, "rows")):
        inside, region = figures["inside"], figures["region"]
        enough = inside.count >= LEAST_ROWS - 10
        covered, columns = inside.value[enough], np.flatnonzero(enough)
        if not len(covered):
            covered, columns = (np.atleast_1d(region.value), np.zeros(1, int)) if region.count >= 20 else ([], [])
        if not len(covered) or not (np.mean(covered) < LEAST_COVERAGE or np.min(covered) < LEAST_COLUMN):
            continue
        if figures is long and np.nanmean(recent["inside"].value) > LEVEL - 2 * MATERIAL["inside"]:
            continue
        bad = int(columns[int(np.argmin(covered))])
        where = f", in {_named(about, bad)} {np.min(covered):.0%}" if len(covered) > 1 else ""
        what = f"Of the {rows}, {np.mean(covered):.0%} lie inside their 90 % bands{where}."
        if lost:
            return [Reason(what, "the posterior does not follow the model, see below")]
        return [Reason(what, "the model does not describe these rows", _learn_it(about))]
    return []


def _gap(reference: Reference | None, about: Circumstances, worse: bool) -> list[Reason]:
    if reference is None or not np.isfinite(reference.gap):
        return []
    least = max(LEAST_GAP * reference.rows, LEAST_NATS, 3 * reference.error * reference.rows)
    if not reference.gap * reference.rows > least:
        return []
    what = f"A particle filter finds the latest rows more probable, by {reference.gap:.2f} nats per row."
    if not about.scores:
        return [Reason(what, "the posterior has not learned all of the model yet", "more rows, or the family guided")]
    if worse:
        return [Reason(what, "what was learned", "a lower --rate")]
    more = max(4, 2 * about.components)
    one = "one Gaussian cannot" if about.components == 1 else f"{about.components} components cannot"
    cause = f"the posterior has several modes or is curved, which {one} represent"
    return [Reason(what, cause, f"more components (--components {more}, Settings(components={more}))")]


def _gain(long: Figures) -> tuple[float, float]:
    """How much better the learned posterior's log score is, in nats per row, with its standard error."""
    gain, square = long["gain"], long["gain_square"]
    if not gain.count:
        return np.nan, np.nan
    return float(gain.value), float(np.sqrt(max(float(square.value - gain.value**2), 0.0) / max(gain.count, 1)))


def _learned_worse(long: Figures, about: Circumstances) -> list[Reason]:
    gain, error = _gain(long)
    if about.fallback or not gain < -3 * error:
        return []
    return [
        Reason(
            f"The learned posterior predicts worse than before learning, by {-gain:.3f} ± {error:.3f} nats per row.",
            "a learning rate that is too high, or too few rows",
            "a lower --rate, --no-learn, or leave --no-fallback out",
        )
    ]


def _notes(long: Figures, about: Circumstances, reference: Reference | None) -> tuple[str, ...]:
    gain, error = _gain(long)
    notes = []
    if about.fallback and gain < 0:
        notes.append(
            f"Learning did not help ({gain:.3f} ± {error:.3f} nats per row), so the posterior from before learning is "
            "reported."
        )
    if reference is not None and not reference.is_trusted:
        notes.append(
            "The particle filters cannot be trusted to find a problem of the posterior: their effective sample size "
            f"is {reference.ess:.0%} of the particles."
        )
    return tuple(notes)


def _rises(recent: Figures, long: Figures) -> bool:
    """Whether the learner's objective is better than it was, beyond chance."""
    now, before, square = recent["objective"], long["objective"], long["objective_square"]
    if not now.count:
        return False
    spread = np.sqrt(max(float(square.value - before.value**2), 0.0))
    return bool(now.value - before.value > 3 * spread / np.sqrt(now.count))


def _figures(recent: Figures, long: Figures, reference: Reference | None) -> dict[str, float | None]:
    values = {
        "log_score": long["log_score"].value,
        "recent_log_score": recent["log_score"].value,
        "coverage": _mean(long["inside"].value),
        "recent_coverage": _mean(recent["inside"].value),
        "rank": long["rank"].value,
        "refused": long["refused"].value,
        "gain": _gain(long)[0],
        "gain_error": _gain(long)[1],
    }
    if reference is not None:
        values |= {"gap": reference.gap, "gap_error": reference.error, "gap_rows": reference.rows}
        values |= {"gap_ess": reference.ess, "gap_trusted": reference.is_trusted}
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
