"""Fig. 2: a linear-Gaussian stream, d = 10, 500 000 observations in float32, and a test sequence of 500.

    backstream reproduce fig2

The paper's settings: N = 10, Adam at 1e-3, M = 2, Δ = 2, the same-sample baseline, increments; λ starts with A ~
U[−0.9, 0.9] and B at random. Ours: the default learner from the same start. Judged on fresh data: the closed-form ELBO
per step against the exact log-likelihood per step, and the errors against those of the Kalman filter and smoother.
"""

from typing import Any

import jax
import optax

from backstream.estimators import BackwardSampling, RecursiveScore, SameSample, Truncated
from backstream.families import Kalman
from backstream.learning import OnlineLearner, Settings, default_learner
from backstream.models import LinearGaussian
from benchmarks.harness import MISSING, LinearJudge, learn, table

from .table3 import DEFAULT, PAPER, Snapshots
from .table3 import figure as stream_figure

TITLE = "Fig. 2: a linear-Gaussian stream, d = 10"
REPLICATES = 1
SETTINGS = {
    "dim": 10,
    "observations": 500_000,
    "fresh": 2000,
    "every": 10_000,
    "particles": 10,
    "rate": 1e-3,
    "draws": 2,
    "depth": 2,
    "test": 500,
    "snapshots": [0, 10_000, 500_000],
}
QUICK = {"dim": 3, "observations": 6000, "fresh": 500, "every": 1000, "snapshots": [0, 1000, 6000]}


def case(settings: dict[str, Any], seed: int) -> tuple[LinearJudge, jax.Array]:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), seed), 5)
    p = LinearGaussian.random(settings["dim"], settings["dim"], low=0.6, high=0.9, key=keys[0])
    return LinearJudge(p, settings["fresh"], key=keys[2]), keys


def run(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    judge, keys = case(settings, seed)
    ys = judge.p.simulate(settings["observations"] + 2, key=keys[1])[1]
    q = Kalman.random(judge.p, key=keys[3])
    weights = BackwardSampling(settings["draws"])
    score = RecursiveScore(settings["particles"], weights, Truncated(settings["depth"]), SameSample())
    paper = OnlineLearner(judge.p, score, optax.adam(settings["rate"]))
    learner = default_learner(judge.p, Settings(method="window")) if name == DEFAULT else paper
    snapshots = Snapshots(q, judge, settings)
    curve = learn(learner, q, ys, snapshots.errors, settings["every"], key=keys[4])
    test = judge.p.simulate(settings["test"], key=jax.random.fold_in(keys[2], 1))
    return {"curve": curve, "end": curve[-1], "test": snapshots.on(*test)}


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed in range(replicates):
        found[f"limit, seed {seed}"] = lambda seed=seed: case(settings, seed)[0].limit()
        for name in (PAPER, DEFAULT):
            found[f"{name}, seed {seed}"] = lambda name=name, seed=seed: run(name, settings, seed)
    return found


def markdown(content: dict[str, Any]) -> str:
    parts, rows = content["parts"], []
    columns = ("fresh_elbo", "smoothing", "filtering")
    for name in (DEFAULT, PAPER, "limit"):
        seeds = [part for part in parts if part.startswith(f"{name}, seed ")]
        if not seeds:
            rows.append([name, MISSING, "", "", "", ""])
        for part in seeds:
            end = parts[part].get("end", parts[part])
            cost = ["", ""]
            if "curve" in parts[part]:
                cost = [f"{end['observations']:,}", f"{1e3 * end['seconds'] / end['observations']:.2f}"]
            title = part.replace("limit", "Kalman filter and smoother, with the true model")
            rows.append([title, *(f"{end[column]:.4f}" for column in columns), *cost])
    header = ["learner", "ELBO per step, fresh data", "smoothing RMSE", "filtering RMSE", "read", "ms each"]
    return "The paper's figure has no numbers: its ELBO rises and settles.\n\n" + table(header, rows)


def figure(content: dict[str, Any]):
    return stream_figure(content)
