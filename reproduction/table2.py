"""Table 2: one-step smoothing and filtering, non-amortized, against the regression of Campbell et al. (2021).

    backstream reproduce table2

Chaotic RNN, d = 5, T = 500, eight generative models. Each observation has a diagonal q_t and a backward network of 100
ReLU units of its own, learned by K = 500 Adam steps at 1e-2. Both estimators have N = 100 samples. The regression fits
H_t − log q_t by kernel ridge regression once, at the end of an observation's steps, and takes its gradient along
reparameterized pairs. Times are of all K steps and the fit, divided by K; both learners read the same stretch of
observations in turns, in one process.
"""

import time
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

from backstream import metrics
from backstream.estimators import Frozen, KernelRidge, RecursiveScore, Regression
from backstream.families import PerStep
from backstream.learning import PerStepLearner
from backstream.plots import BLACK, BLUE, ORANGE
from benchmarks.harness import console, for_each_seed, over_seeds, spread, table, thinned

from .table1 import case

TITLE = "Table 2: one-step smoothing, non-amortized"
REPLICATES = 8
SETTINGS = {
    "dim": 5,
    "length": 500,
    "width": 100,
    "particles": 100,
    "updates": 500,
    "rate": 1e-2,
    "bandwidth": 2.0,
    "ridge": 0.1,
    "block": 25,
    "limit_particles": 20_000,
}
QUICK = {"length": 26, "updates": 50, "block": 5, "limit_particles": 2000}
SCORE, REGRESSION = NAMES = "score", "regression"
PUBLISHED = {SCORE: ("8.9 ± 0.2", "10.3 ± 0.2", "1"), REGRESSION: ("9.2 ± 0.2", "10.3 ± 0.2", "4.8")}


def learner(name: str, settings: dict[str, Any], p) -> PerStepLearner:
    N, regressor = settings["particles"], KernelRidge(settings["bandwidth"], settings["ridge"])
    score, regression = RecursiveScore(N, sensitivity=Frozen()), Regression(N, regressor, Frozen())
    estimator = score if name == SCORE else regression
    return PerStepLearner(p, estimator, optax.adam(settings["rate"]), settings["updates"])


def begin(name: str, settings: dict[str, Any], seed: int):
    """Learner, state and what is known after the first two observations, once all is compiled."""
    judge, (key_family, key_draws) = case(settings, seed)
    d = settings["dim"]
    q = PerStep.create(d, d, settings["width"], std=0.1, key=key_family)
    made = learner(name, settings, judge.p)
    state, first = made.step(made.init(q, key=key_draws), judge.ys[0])
    return judge, made, state, first


def run(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    judge, made, state, first = begin(name, settings, seed)
    means, previous, elbos = [np.asarray(first.mean)[None]], [], []
    for start in range(1, settings["length"], settings["block"]):
        state, infos = made.scan(state, judge.ys[start : start + settings["block"]])
        means.append(np.asarray(infos.mean))
        previous.append(np.asarray(infos.previous_mean))
        elbos.append(np.asarray(infos.elbo))
        error = metrics.delta(means[-1], judge.states[start : start + settings["block"]])
        console.print(f"{start + settings['block']} observations, filtering RMSE of the last {error:.4f}", style="dim")
    errors = np.sqrt(np.mean((np.concatenate(means) - np.asarray(judge.states)) ** 2, axis=1))
    return {
        "one_step": metrics.kappa_one(np.concatenate(previous), judge.states),
        "filtering": metrics.delta(np.concatenate(means), judge.states),
        "elbo": float(np.mean(np.concatenate(elbos))),
        "running": running(errors),
    }


def running(errors: np.ndarray) -> dict[str, list[float]]:
    """The running mean of a curve over a twentieth of it, at no more than 200 places."""
    width = max(1, len(errors) // 20)
    mean = np.convolve(errors, np.ones(width) / width, mode="valid")
    place = thinned(range(len(mean)), 200)
    return {"observation": [width + k for k in place], "error": mean[place].tolist()}


def times(settings: dict[str, Any], rounds: int = 5) -> dict[str, float]:
    """Processor milliseconds per gradient step."""
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    running = {}
    length = min(4, settings["block"])
    for name in NAMES:
        judge, made, state, _ = begin(name, settings, 0)
        state, _ = made.scan(state, judge.ys[1 : 1 + length])
        running[name] = judge, made, state
    for k in range(1, 1 + rounds):
        for name, (judge, made, state) in running.items():
            began = time.process_time()
            state, infos = made.scan(state, judge.ys[1 + length * k : 1 + length * (k + 1)])
            jax.block_until_ready(infos)
            taken[name].append(1e3 * (time.process_time() - began) / length / settings["updates"])
            running[name] = judge, made, state
    return {name: float(np.median(values)) for name, values in taken.items()}


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    def limit(seed):
        return case(settings, seed)[0].limit(settings["limit_particles"], smoothing=False)

    seeds = for_each_seed(replicates, NAMES, lambda name, seed: run(name, settings, seed), limit)
    return {"time": lambda: times(settings)} | seeds


def markdown(content: dict[str, Any]) -> str:
    parts, rows = content["parts"], []
    for name in NAMES:
        one_step, filtering, milliseconds = PUBLISHED[name]
        found = (spread(over_seeds(parts, name, error), 2, 100) for error in ("one_step", "filtering"))
        cost = f"{parts['time'][name]:.2f}" if "time" in parts else "not run yet"
        rows.append([name, one_step, filtering, *found, milliseconds, cost])
    limit = (spread(over_seeds(parts, "limit", error), 2, 100) for error in ("one_step", "filtering"))
    raw = spread(over_seeds(parts, "limit", "raw"), 2, 100)
    rows += [["particle limit", "", "", *limit, "", ""], ["the observation itself", "", "", raw, raw, "", ""]]
    header = [
        "gradient", "paper: one-step", "paper: filtering", "one-step", "filtering", "paper: ms per step", "ms per step"
    ]  # fmt: skip
    return "RMSE × 10⁻²: mean ± standard deviation (number of models).\n\n" + table(header, rows)


def figure(content: dict[str, Any]):
    """The filtering error over time, averaged over models; the paper has no figure."""
    drawn, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, color, style in ((SCORE, BLUE, "-"), (REGRESSION, ORANGE, "--")):
        curves = over_seeds(content["parts"], name, "running")
        if curves:
            mean = np.mean([curve["error"] for curve in curves], axis=0)
            axes.plot(curves[0]["observation"], mean, style, color=color, label=name)
    for kind, style, label in (("filtering", ":", "particle limit"), ("raw", "--", "the observation itself")):
        lines = over_seeds(content["parts"], "limit", kind)
        if lines:
            axes.axhline(np.mean(lines), color=BLACK, linestyle=style, linewidth=1, label=label)
    axes.set(xlabel="observation", ylabel="filtering RMSE, running mean")
    axes.set_ylim(bottom=0)
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)
    return drawn
