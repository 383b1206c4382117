"""What a sensor may send, and a world that changes: learning goes on, or says what it refuses.

    python -m tests.soak.hostile_data

A learner that has settled reads a stream that goes wrong for a while, and the same stream as it should have been.
Printed: how many updates were refused, how many rows after the trouble it took until the filter was as good as without
it, and the error of what was learned in the end, on fresh data, as a multiple of that without the trouble.

Then the parameters of a model jump in mid-stream, while they are being learned.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from backstream import metrics, posterior
from backstream.families import Kalman
from backstream.learning import LearnerState, Monitor, OnlineLearner, Settings, default_learner
from backstream.models import ChaoticRNN, LinearGaussian
from benchmarks.harness import Results, console, copied, exact_per_step
from reproduction.version_0_1.innovation import Innovation

RESULTS = Path(__file__).parent / "results" / "hostile_data.json"
SETTINGS = {"warm": 4000, "rows": 3000, "fresh": 1000, "lag": 8, "width": 8, "jump": 10_000, "after": 20_000, "seed": 0}
BEGIN = 200
"""The row at which trouble begins."""


class Trouble(NamedTuple):
    """Something that happens to the rows from BEGIN on."""

    length: int
    apply: Callable[[np.ndarray, np.random.Generator], np.ndarray]

    def __call__(self, ys: np.ndarray) -> np.ndarray:
        ys, rows = ys.copy(), slice(BEGIN, BEGIN + self.length)
        ys[rows] = self.apply(ys[rows], np.random.default_rng(0))
        return ys


def _burst(ys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return ys + 1e5 * rng.choice([-1.0, 1.0], ys.shape)  # the noise has the scale 0.1


def _column(k: int, change: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    def apply(ys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        ys[:, k] = change(ys[:, k])
        return ys

    return apply


TROUBLES = {
    "20 rows off by 10⁶ standard deviations": Trouble(20, _burst),
    "one row off by 10⁶ standard deviations": Trouble(1, _burst),
    "1 000 missing rows": Trouble(1000, lambda ys, rng: np.full_like(ys, np.nan)),
    "a channel that is stuck for 1 000 rows": Trouble(1000, _column(1, lambda y: y[0])),
    "a channel shifted by 50 standard deviations for 1 000 rows": Trouble(1000, _column(0, lambda y: y + 5)),
    "every row twice, for 1 000 rows": Trouble(1000, lambda ys, rng: ys[np.arange(len(ys)) // 2]),
    "whole numbers, for 1 000 rows": Trouble(1000, lambda ys, rng: np.round(ys)),
    "half of the cells missing, for 1 000 rows": Trouble(
        1000, lambda ys, rng: np.where(rng.random(ys.shape) < 0.5, np.nan, ys)
    ),
    "a coordinate that is never seen again": Trouble(10**9, _column(1, lambda y: np.nan)),
}


class Settled(NamedTuple):
    """A learner that has read enough to be good, and what comes next, with the truth."""

    learner: OnlineLearner
    state: LearnerState
    states: np.ndarray
    ys: np.ndarray
    fresh: tuple[np.ndarray, np.ndarray]

    def read(self, ys: np.ndarray) -> tuple[LearnerState, np.ndarray, int]:
        """The state after the stream, the filter's error at each row, and the number of refused updates."""
        state, infos = self.learner.scan(copied(self.state), ys)
        return state, np.linalg.norm(np.asarray(infos.mean) - self.states, axis=1), int(np.sum(infos.refused))

    def error(self, state: LearnerState) -> float:
        """Of the smoothed states on fresh data."""
        states, ys = self.fresh
        return metrics.delta(posterior.smooth(self.learner.model, state.average, ys).mean, states)


def settled() -> Settled:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(21), SETTINGS["seed"]), 5)
    p = ChaoticRNN.random(2, key=keys[0])
    q = Innovation.from_model(p, SETTINGS["width"], key=keys[1])
    states, ys = (np.array(leaf) for leaf in p.simulate(SETTINGS["warm"] + SETTINGS["rows"], key=keys[2]))
    learner = default_learner(p, Settings(method="window", lag=SETTINGS["lag"]))
    state, _ = learner.step(learner.init(q, key=keys[3]), ys[0])
    state, _ = learner.scan(state, ys[1 : SETTINGS["warm"]])
    fresh = p.simulate(SETTINGS["fresh"], key=keys[4])
    return Settled(learner, state, states[SETTINGS["warm"] :], ys[SETTINGS["warm"] :], fresh)


def recovery(errors: np.ndarray, clean: np.ndarray, end: int, window: int = 50) -> int | None:
    """Rows after `end` until the mean error of the next `window` is within 10 % of that without trouble."""
    if end + window > len(errors):
        return None
    sums = [np.convolve(each, np.ones(window), "valid")[end:] for each in (errors, clean)]
    good = np.flatnonzero(sums[0] <= 1.1 * sums[1])
    return int(good[0]) if len(good) else None


def judge(case: Settled, trouble: Trouble, clean: tuple[LearnerState, np.ndarray, int]) -> dict[str, Any]:
    state, errors, refused = case.read(trouble(case.ys))
    learned = eqx.filter((state.q, state.average, state.optimizer, state.filtered), eqx.is_inexact_array)
    finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(learned))
    return {
        "refused": refused,
        "everything_finite": finite,
        "recovery": recovery(errors, clean[1], BEGIN + trouble.length),
        "error_ratio": float(f"{case.error(state) / case.error(clean[0]):.4g}"),
    }


def infinities(case: Settled) -> dict[str, Any]:
    """An infinity is an error that names it, before anything is learned from its block; the stream then goes on."""
    ys = case.ys.copy()
    ys[BEGIN, 1] = np.inf
    state = copied(case.state)
    try:
        case.learner.scan(state, ys)
    except ValueError as error:
        said = str(error)
    else:
        raise AssertionError("an infinity was read")
    ys[BEGIN, 1] = np.nan
    state, infos = case.learner.scan(state, ys)
    return {"said": said, "refused": int(np.sum(infos.refused)), "error": case.error(state)}


def units(scale: float, rows: int) -> dict[str, float]:
    """A linear-Gaussian stream in other units: its filter's error in those units, and the refused updates."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(22), SETTINGS["seed"]), 4)
    one = jnp.ones(2)
    p = LinearGaussian(0 * one, scale * one, 0.9 * one, one, 0.5 * scale * one, 0.7 * scale * one)
    states, ys = p.simulate(rows, key=keys[0])
    learner = default_learner(p, Settings(method="window", lag=SETTINGS["lag"]))
    state, _ = learner.step(learner.init(Innovation.from_model(p, SETTINGS["width"], key=keys[1]), key=keys[2]), ys[0])
    state, infos = learner.scan(state, ys[1:])
    exact = posterior.filter(p, Kalman.from_model(p), ys[1:]).mean
    own, best = (metrics.delta(np.asarray(mean, "float64") / scale, states[1:] / scale) for mean in (infos.mean, exact))
    return {"filtering": own, "kalman": best, "refused": int(np.sum(infos.refused))}


# ---- a change of regime ----------------------------------------------------------------------------------------------
def regime_change(jump: int, after: int, every: int = 500, within: float = 0.05) -> dict[str, Any]:
    """θ and λ are learned; at `jump` the dynamics lose memory and the noise of the state trebles.

    The gap is that of the closed-form ELBO per step, on fresh data of the new regime, to its log-likelihood.
    """
    keys, one = jax.random.split(jax.random.fold_in(jax.random.key(23), SETTINGS["seed"]), 5), jnp.ones(1)

    def model(A: float, scale: float) -> LinearGaussian:
        return LinearGaussian(0 * one, one, A * one, one, scale * one, 0.5 * one)

    start, old, new = model(0.2, 2.5), model(0.95, 0.3), model(0.5, 0.9)
    ys = np.concatenate([old.simulate(jump, key=keys[0])[1], new.simulate(after, key=keys[1])[1]])
    fresh = new.simulate(SETTINGS["fresh"], key=keys[2])[1]
    learner, monitor = (
        default_learner(
            start, Settings(method="window", lag=SETTINGS["lag"], learn_model=True, model_learning_rate=1e-3)
        ),
        Monitor(window=every),
    )
    best = float(exact_per_step(new, Kalman.from_model(new), fresh))

    def follow(first: int) -> list[dict[str, Any]]:
        state, _ = learner.step(learner.init(Kalman.from_model(start), key=keys[3]), ys[first])
        watch, rows = monitor.begin(state), []
        for begin in range(first + 1, len(ys) - every + 1, every):
            block = ys[begin : begin + every]
            state, infos = learner.scan(state, block)
            watch, report = monitor.look(learner, watch, state, infos, block)
            gap = best - float(exact_per_step(learner.current_model(state), state.average, fresh))
            rows.append({"after_jump": begin + every - jump, "gap": gap, "warnings": list(report.warnings)})
        return rows

    def recovered(rows: list[dict[str, Any]]) -> int | None:
        late = [row["after_jump"] for row in rows if not row["gap"] < within]
        return None if late[-1] == rows[-1]["after_jump"] else late[-1] + every

    through, anew = follow(0), follow(jump)
    calm, through = ([row for row in through if (row["after_jump"] > 0) == later] for later in (False, True))
    warned = [row for row in through if row["warnings"]]
    return {
        "first_gap": through[0]["gap"],
        "final_gap": through[-1]["gap"],
        "recovered_after": recovered(through),
        "fresh_learner_after": recovered(anew),
        "false_warnings_before": sum(bool(row["warnings"]) for row in calm),
        "first_warning_after": warned[0]["after_jump"] if warned else None,
        "first_warning": warned[0]["warnings"][0] if warned else None,
        "last_warning_after": warned[-1]["after_jump"] if warned else None,
    }


def main() -> None:
    results = Results(RESULTS, "python -m tests.soak.hostile_data", SETTINGS)
    case = settled()
    clean = case.read(case.ys)
    for name, trouble in TROUBLES.items():
        console.print(results.run(name, lambda trouble=trouble: judge(case, trouble, clean)))
    console.print(results.run("infinities", lambda: infinities(case)))
    for scale in (1.0, 1e-9, 1e9):
        console.print(results.run(f"units of {scale:g}", lambda scale=scale: units(scale, SETTINGS["rows"])))
    console.print(results.run("regime change", lambda: regime_change(SETTINGS["jump"], SETTINGS["after"])))


if __name__ == "__main__":
    main()
