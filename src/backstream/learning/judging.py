"""Whether what a run reports can be used: one word, and the reasons for it.

Everything is judged from predictions of rows that had not been read: no true state is needed.
"""

from typing import NamedTuple

import numpy as np

from .calibration import LEAST_ROWS, LEAST_VALUES, MATERIAL, calibration
from .particle_reference import Reference
from .plan_check import UNCHANGED, PlanNews
from .remedies import Circumstances, follow, learn_it, named
from .starting_theta import ThetaGain
from .tally import LEVEL, Figures, Tally
from .verdict import Kind, Reason, Verdict

LEAST_WEIGHT = 0.05
"""Of a column among the recent rows: below it there has been no value for 300 rows, or never."""
MOST_REFUSED, LEAST_REFUSED = 0.01, 3
"""The share of refused updates above which a run has failed, and how many there must be."""
LEAST_COVERAGE, LEAST_COLUMN = 0.7, 0.5
"""The share of values inside the 90 % bands below which it has failed: of all columns, and of one."""
LEAST_GAP, LEAST_NATS = 0.05, 5.0
"""What a posterior must lose against the particle filters to be doubted: nats per row, and in all; by chance they
exceed it with a probability of e⁻⁵ at most."""


class Checks(NamedTuple):
    """What was looked at beside the rows' own predictions."""

    reference: Reference | None = None
    """What particle filters say of the latest rows that they were shown."""
    theta_gain: ThetaGain | None = None
    """What learning θ has gained."""
    same: tuple[tuple[int, int], ...] = ()
    """Pairs of columns that have the same values in the latest rows."""
    warnings: tuple[str, ...] = ()
    """What the monitor said at its latest look."""
    plan: PlanNews = UNCHANGED
    """What has become of the posterior's plan."""


NOTHING = Checks()


def judge(tally: Tally, about: Circumstances, checks: Checks = NOTHING) -> Verdict:
    """The verdict on a run.

    Args:
        tally: What its rows have shown.
        about: What is learned.
        checks: What else was looked at.
    """
    recent, long = Figures(tally, 0), Figures(tally, 1)
    figures = _figures(recent, long, checks)
    worse = _learned_worse(long, about)
    lost = _gap(checks.reference, about, bool(worse))
    refused = _refusals(recent, long, about)
    failures = [*refused, *worse, *_coverage(recent, long, about, bool(lost))]
    doubts = [
        *calibration(recent, long, about, bool(lost)),
        *lost,
        *_elsewhere(checks.plan, about),
        *_unseen(recent, about),
        *_repeated(checks.same, about),
    ]
    doubts += [*_misfit(checks.reference, about), *_theta_worse(checks.theta_gain), *map(Reason, checks.warnings)]
    notes = _notes(long, about, checks)
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


# ---- what else can be wrong ------------------------------------------------------------------------------------------
def _refusals(recent: Figures, long: Figures, about: Circumstances) -> list[Reason]:
    share, count = float(long["refused"].value), float(long["refused"].value * long["refused"].weight)
    latest = float(recent["refused"].value)
    if np.isnan(share) or not ((share > MOST_REFUSED and count >= LEAST_REFUSED - 0.5) or latest > 0.1):
        return []
    what = f"{max(share, latest):.1%} of the updates were not finite and were skipped."
    if about.learns_model:
        cause = "a parameter has left the values that it may have, such as a scale that became negative"
        remedy = "declare what they may be (constraints = {'scale': constraints.positive} in the model), or a lower"
        return [Reason(what, cause, f"{remedy} --model-learning-rate")]
    cause = "rows that are impossible in the model, a learning rate that is too high, or too little precision"
    return [Reason(what, cause, "look at the rows marked as refused; a lower --learning-rate")]


def _coverage(recent: Figures, long: Figures, about: Circumstances, lost: bool) -> list[Reason]:
    """Bands that hold far too little, of late or in the long run."""
    (now, now_columns), (before, columns) = _covered(recent), _covered(long)
    for covered, of, rows in ((now, now_columns, "latest rows"), (before, columns, "rows")):
        if not len(covered) or not (np.mean(covered) < LEAST_COVERAGE or np.min(covered) < LEAST_COLUMN):
            continue
        if covered is before and len(now) and np.mean(now) > LEVEL - 2 * MATERIAL["inside"]:
            continue
        bad = int(of[int(np.argmin(covered))])
        where = f", in {named(about, bad)} {np.min(covered):.0%}" if len(covered) > 1 else ""
        what = f"Of the {rows}, {np.mean(covered):.0%} lie inside their 90 % bands{where}."
        if lost:
            return [Reason(what, "the posterior does not follow the model, see below")]
        if np.mean(before) - np.mean(covered) > 2 * MATERIAL["inside"]:
            return [Reason(what, "the process or a sensor has changed", follow(about))]
        return [Reason(what, "the model does not describe these rows", learn_it(about))]
    return []


def _covered(figures: Figures) -> tuple[np.ndarray, np.ndarray]:
    """The share of values inside the bands of each column of which enough is known, and which these columns are; of
    rows inside their regions where no column has bands."""
    inside, region = figures["inside"], figures["region"]
    columns = np.flatnonzero(inside.count >= LEAST_VALUES)
    if len(columns) or region.count < LEAST_VALUES:
        return inside.value[columns], columns
    return np.atleast_1d(region.value), np.zeros(1, int)


def _gap(reference: Reference | None, about: Circumstances, worse: bool) -> list[Reason]:
    if reference is None or not np.isfinite(reference.gap):
        return []
    what = f"A particle filter finds the latest rows more probable, by {reference.gap:.2f} nats per row."
    if not reference.gap * reference.rows > _least(reference):
        if not (reference.several > LEAST_GAP and reference.several * reference.rows > LEAST_NATS):
            return []
        what = f"Several components predict the latest rows better than one, by {reference.several:.2f} nats per row."
    if not about.scores:
        return [Reason(what, "the posterior has not learned all of the model yet", "more rows, or the family guided")]
    if worse:
        return [Reason(what, "what was learned", "a lower --learning-rate")]
    more = max(4, 2 * about.components)
    one = "one Gaussian cannot" if about.components == 1 else f"{about.components} components cannot"
    cause = f"the posterior has several modes or is curved, which {one} represent"
    return [Reason(what, cause, f"more components (--components {more}, Settings(components={more}))")]


def _least(reference: Reference) -> float:
    """Nats in all that matter, and that chance does not explain."""
    return max(LEAST_GAP * reference.rows, LEAST_NATS, 3 * reference.error * reference.rows)


def _elsewhere(plan: PlanNews, about: Circumstances) -> list[Reason]:
    """A model that is another one than the posterior takes it to be."""
    if not plan.contradicted:
        return []
    cause = "a switch or a bend that the model does not have near its prior, or not with the inputs of the first row"
    remedy = "more rows, by which the model is read again where the states are, or a prior that reaches these states"
    if about.learns_model:
        cause += ", or parameters that began where the model is simpler, such as a factor of zero"
        remedy += "; begin parameters away from such values"
    return [Reason(plan.contradicted, cause, remedy)]


def _misfit(reference: Reference | None, about: Circumstances) -> list[Reason]:
    """A learned posterior that predicts better than the model can makes up for what is wrong with the model."""
    if reference is None or not reference.is_trusted or not about.scores:
        return []
    if not -reference.gap * reference.rows > _least(reference):
        return []
    what = (
        f"The posterior finds the latest rows more probable than the model does, by {-reference.gap:.2f} nats per row."
    )
    return [Reason(what, "the noise of the model has the wrong size, and what was learned hides it", learn_it(about))]


def _unseen(recent: Figures, about: Circumstances) -> list[Reason]:
    """Columns of which nothing has been seen for long."""
    rows, seen = float(recent["refused"].weight), recent["inside"].weight
    if not (seen > LEAST_WEIGHT).any():  # none has an order, or none has values
        seen = np.broadcast_to(recent["rank"].weight, seen.shape)
    empty = np.flatnonzero(seen < LEAST_WEIGHT)
    if rows < LEAST_ROWS or not len(empty):
        return []
    names = ", ".join(named(about, int(i)) for i in empty[:3]) + (" and others" if len(empty) > 3 else "")
    return [
        Reason(
            f"The latest rows have no value that could be judged in {names}.",
            "the column is empty, is another one than was meant, or cannot be predicted by finite numbers",
            "look at the column in the source, and name the columns that are observed",
        )
    ]


def _repeated(same: tuple[tuple[int, int], ...], about: Circumstances) -> list[Reason]:
    if not same:
        return []
    pairs = ", ".join(f"{named(about, i)} and {named(about, j)}" for i, j in same[:3])
    return [
        Reason(
            f"Columns have the same values in all of the latest rows: {pairs}{' and others' if len(same) > 3 else ''}.",
            "one column is given twice, and its noise is counted as that of two measurements",
            "leave one of them out, of the rows and of the model",
        )
    ]


def _theta_worse(gain: ThetaGain | None) -> list[Reason]:
    if gain is None or not -gain.mean > max(LEAST_GAP, 3 * gain.error):
        return []
    return [
        Reason(
            "The learned parameters predict worse than those at the start, by "
            f"{-gain.mean:.3f} ± {gain.error:.3f} nats per row.",
            "steps of the parameters that are too large, or too few rows",
            "a lower --model-learning-rate, or leave --learn-model out",
        )
    ]


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
            "a lower --learning-rate, --no-learn, or leave --no-fallback out",
        )
    ]


def _notes(long: Figures, about: Circumstances, checks: Checks) -> tuple[str, ...]:
    (gain, error), reference, theta = _gain(long), checks.reference, checks.theta_gain
    notes = []
    if theta is not None:
        told = f"{abs(theta.mean):.3f} ± {theta.error:.3f} nats per row against those at the start"
        notes.append(f"Learning the parameters has {'gained' if theta.mean > 0 else 'lost'} {told}.")
    if about.fallback and gain < 0:
        notes.append(
            f"Learning did not help ({gain:.3f} ± {error:.3f} nats per row), so the posterior from before learning is "
            "reported."
        )
    if checks.plan.row:
        notes.append(
            f"After row {checks.plan.row:,} the model was read again, where the states were: it is another one there "
            "than near its prior. The filtered states of the rows before it are better in result.filter()."
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


def _figures(recent: Figures, long: Figures, checks: Checks) -> dict[str, float | None]:
    reference, theta = checks.reference, checks.theta_gain
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
        if np.isfinite(reference.several):
            values |= {"several_gap": reference.several, "several_gap_error": reference.several_error}
    if theta is not None:
        values |= {"theta_gain": theta.mean, "theta_gain_error": theta.error}
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
