"""Table 1: a chaotic RNN, d = 5, one sequence of 500 observations, learned offline. Smoothing error and time per step.

    backstream reproduce table1

The paper's settings: its conjugate family with 8 hidden units, N = 2, Adam at 1e-3, the score estimator with M = 2
backward draws, Δ = 2 and the same-sample baseline. It does not say how many epochs; here are 2 000. Ours: `Innovation`
as it comes, N = 20, Adam from 1e-2 by a cosine to zero in 300 epochs; the score estimator as the library's recursion
has it, with corrected weights and renewal, and differentiated in reverse.
"""

import time
from typing import Any

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

from backstream import metrics, posterior
from backstream.estimators import (
    BackwardSampling,
    BackwardTrajectories,
    MomentCorrected,
    RecursiveScore,
    Renewal,
    ReverseScore,
    SameSample,
    Scan,
    Truncated,
)
from backstream.families import Conjugate
from backstream.learning import fit
from backstream.models import ChaoticRNN
from backstream.plots import BLUE, GREEN, ORANGE, PURPLE
from benchmarks.harness import Judge, over_seeds, spread, table, time_each

from .version_0_1.innovation import Innovation

TITLE = "Table 1: chaotic RNN, d = 5, offline"
REPLICATES = 5
SETTINGS = {
    "dim": 5,
    "length": 500,
    "paper": {"width": 8, "particles": 2, "draws": 2, "depth": 2, "rate": 1e-3, "epochs": 2000},
    "ours": {"width": 64, "particles": 20, "gamma": 0.8, "rate": 1e-2, "epochs": 300},
    "limit_particles": 20_000,
    "timings": 20,
}
QUICK = {
    "length": 100,
    "paper": SETTINGS["paper"] | {"epochs": 100},
    "ours": SETTINGS["ours"] | {"epochs": 100},
    "limit_particles": 2000,
    "timings": 3,
}
PUBLISHED = {
    "score, paper's settings": ("13.5 ± 0.7", "173"),
    "trajectories, paper's settings": ("11.9 ± 0.4", "17"),
    "score, ours": ("", ""),
    "trajectories, ours": ("", ""),
}
NAMES = tuple(PUBLISHED)
STYLES = dict(zip(NAMES, ((ORANGE, "-"), (PURPLE, "--"), (BLUE, "-"), (GREEN, "--")), strict=True))


def case(settings: dict[str, Any], seed: int) -> tuple[Judge, list[jax.Array]]:
    """A model with its sequence, which is both learned from and judged on, as in the paper."""
    key_model, key_data, *keys = jax.random.split(jax.random.fold_in(jax.random.key(10), seed), 4)
    return Judge(ChaoticRNN.random(settings["dim"], key=key_model), settings["length"], key=key_data), keys


def start(name: str, settings: dict[str, Any], judge: Judge, key: jax.Array):
    """Family, estimator and optimizer."""
    own = settings["ours" if name.endswith("ours") else "paper"]
    N, d = own["particles"], settings["dim"]
    if name.endswith("ours"):
        q = Innovation.from_model(judge.p, width=own["width"], key=key)
        optimizer = optax.adam(optax.cosine_decay_schedule(own["rate"], own["epochs"]))
        score = ReverseScore(RecursiveScore(N, MomentCorrected(), objective=Renewal(own["gamma"])))
    else:
        q = Conjugate.create(d, d, width=own["width"], key=key)
        optimizer = optax.adam(own["rate"])
        score = Scan(RecursiveScore(N, BackwardSampling(own["draws"]), Truncated(own["depth"]), SameSample()))
    return q, score if name.startswith("score") else BackwardTrajectories(N), optimizer


def learned(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    judge, (key_family, key_fit) = case(settings, seed)
    q, estimator, optimizer = start(name, settings, judge, key_family)
    epochs = settings["ours" if name.endswith("ours") else "paper"]["epochs"]
    began = time.process_time()
    found = fit(judge.p, q, judge.ys, estimator=estimator, optimizer=optimizer, num_epochs=epochs, key=key_fit)
    smoothed = posterior.smooth(judge.p, found.q, judge.ys)
    return {
        "smoothing": metrics.delta(smoothed.mean, judge.states),
        "filtering": metrics.delta(posterior.filter(judge.p, found.q, judge.ys).mean, judge.states),
        "coverage_90": metrics.coverage(*smoothed.interval(0.9), judge.states),
        "elbo": np.round(np.asarray(found.elbo[:: max(1, epochs // 100)], float), 4).tolist(),
        "refused": int(found.refused),
        "seconds": round(time.process_time() - began, 1),
    }


def times(settings: dict[str, Any]) -> dict[str, float]:
    """Processor milliseconds of one gradient, all in one process and in turns."""
    judge, (key, key_draws) = case(settings, 0)

    def gradient(name):
        q, estimator, _ = start(name, settings, judge, key)
        compiled = eqx.filter_jit(lambda q, ys, key: estimator(judge.p, q, ys, key=key))
        return lambda: compiled(q, judge.ys, key_draws)

    return time_each({name: gradient(name) for name in NAMES}, settings["timings"])


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    found: dict[str, Any] = {"time": lambda: times(settings)}
    for own in (True, False):  # ours first: the paper's take longer
        names = [name for name in NAMES if name.endswith("ours") == own]
        for seed in range(replicates):
            for name in reversed(names):  # the cheaper first
                found[f"{name}, seed {seed}"] = lambda name=name, seed=seed: learned(name, settings, seed)
            found[f"limit, seed {seed}"] = lambda seed=seed: case(settings, seed)[0].limit(settings["limit_particles"])
    return found


def markdown(content: dict[str, Any]) -> str:
    parts, rows = content["parts"], []
    for name in NAMES:
        found = (
            spread(over_seeds(parts, name, "smoothing"), 2, 100),
            spread(over_seeds(parts, name, "filtering"), 2, 100),
        )
        milliseconds = f"{parts['time'][name]:.1f}" if "time" in parts else "not run yet"
        rows.append([name, PUBLISHED[name][0], *found, PUBLISHED[name][1], milliseconds])
    for line, title in (("raw", "the observation itself"), ("smoothing", "particle limit")):
        smoothing = spread(over_seeds(parts, "limit", line), 2, 100)
        filtering = spread(over_seeds(parts, "limit", "raw" if line == "raw" else "filtering"), 2, 100)
        rows.append([title, "", smoothing, filtering, "", ""])
    header = ["gradient", "paper: smoothing", "smoothing", "filtering", "paper: ms per gradient", "ms per gradient"]
    return "RMSE × 10⁻²: mean ± standard deviation (number of sequences).\n\n" + table(header, rows)


def figure(content: dict[str, Any]):
    """The learning curves behind the table; the paper has none."""
    drawn, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in NAMES:
        color, style = STYLES[name]
        curves = over_seeds(content["parts"], name, "elbo")
        if curves:
            mean = np.mean(curves, axis=0)
            axes.plot(np.linspace(0, 100, len(mean)), mean, style, color=color, label=name)
    axes.set(xlabel="percent of the epochs", ylabel="ELBO per step, by each gradient's own estimator")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], -30))
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)
    return drawn
