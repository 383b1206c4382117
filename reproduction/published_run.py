"""The streaming run of the published research code, which diverges: does the monitor say so in time?

    python -m reproduction.published_run

Chaotic RNN, d = 10, `Conjugate` family with 100 units, N = 100, Δ = 2, M = 2, the same-sample baseline, the paper's
increments, Adam at 1e-3, no clipping. The recursion's ELBO and an unbiased one with eight times the monitor's
trajectories are compared every 250 observations: they have parted when they differ by more than the monitor's
tolerance from then on. The monitor looks every 500.
"""

from pathlib import Path

import jax
import numpy as np
import optax

from backstream.estimators import BackwardSampling, RecursiveScore, SameSample, Truncated
from backstream.families import Conjugate
from backstream.learning import Monitor, OnlineLearner
from backstream.models import ChaoticRNN
from benchmarks.harness import Results, console

RESULTS = Path(__file__).parent / "results" / "published_run.json"
SETTINGS = {"dim": 10, "observations": 30_000, "particles": 100, "width": 100, "rate": 1e-3, "seed": 0}
MONITOR, REFERENCE = Monitor(window=500), Monitor(window=250, num_trajectories=256)


def learner_and_data(dim: int, observations: int, particles: int, width: int, seed: int):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(6), seed), 4)
    p = ChaoticRNN.random(dim, key=keys[0])
    estimator = RecursiveScore(particles, BackwardSampling(2), Truncated(2), SameSample())
    learner = OnlineLearner(p, estimator, optax.adam(SETTINGS["rate"]))
    ys = p.simulate(observations + 1, key=keys[1])[1]
    return learner, Conjugate.create(dim, dim, width=width, key=keys[2]), ys, keys[3]


def watch(learner, q, ys, key) -> dict:
    """What the monitor said and when, and when the two ELBOs parted."""
    state, _ = learner.step(learner.init(q, key=key), ys[0])
    looks = {"monitor": MONITOR.begin(state), "reference": REFERENCE.begin(state)}
    gaps, warned, pieces = [], [], []
    for start in range(1, len(ys), REFERENCE.window):
        block = ys[start : start + REFERENCE.window]
        state, infos = learner.scan(state, block)
        looks["reference"], report = REFERENCE.look(learner, looks["reference"], state, infos, block)
        gaps.append({"t": report.t, "elbo": report.elbo, "unbiased": report.unbiased_elbo})
        pieces.append((block, infos))
        if len(pieces) == MONITOR.window // REFERENCE.window:
            blocks, infos = zip(*pieces, strict=True)
            joined = jax.tree.map(lambda *parts: np.concatenate(parts), *infos)
            looks["monitor"], report = MONITOR.look(learner, looks["monitor"], state, joined, np.concatenate(blocks))
            if report.warnings:
                warned.append({"t": report.t, "warnings": list(report.warnings)})
            pieces = []
        console.print(f"{gaps[-1]}, warned {len(warned)} times", style="dim")
    apart = [not abs(gap["elbo"] - gap["unbiased"]) <= MONITOR.tolerance for gap in gaps]
    together = [gap["t"] for gap, a in zip(gaps, apart, strict=True) if not a]
    parted = None if not apart[-1] else max(together, default=0)
    return {"parted": parted, "first_warnings": warned[:5], "warned": [w["t"] for w in warned], "gaps": gaps[::4]}


def main() -> None:
    settings = {name: SETTINGS[name] for name in ("dim", "observations", "particles", "width", "seed")}
    part = Results(RESULTS, "python -m reproduction.published_run", SETTINGS).run(
        "published", lambda: watch(*learner_and_data(**settings))
    )
    console.print(f"parted after {part['parted']}; the monitor warned at {part['warned'][:10]} …")


if __name__ == "__main__":
    main()
