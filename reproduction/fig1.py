"""Fig. 1: a linear-Gaussian model, d = 10, T = 500, learned offline with three kinds of gradients, N = 2, ten models.

    backstream reproduce fig1

How far below the exact log-likelihood per step the learned q ends, by its closed-form ELBO, and what a gradient costs:
the oracle (the exact gradient), reparameterized backward trajectories, the score estimator with the paper's settings
(M = 2 backward draws, Δ = 2, same-sample baseline), and with ours: all weights, leave-one-out, no truncation, the
recursion differentiated in reverse. Adam at 3e-2, which falls to zero over the second half of the epochs.
"""

from typing import Any

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

from backstream.estimators import (
    BackwardSampling,
    BackwardTrajectories,
    Exact,
    RecursiveScore,
    ReverseScore,
    SameSample,
    Scan,
    Truncated,
)
from backstream.families import Kalman
from backstream.learning import fit
from backstream.models import LinearGaussian
from backstream.plots import BLACK, BLUE, GREEN, ORANGE
from benchmarks.harness import MISSING, exact_per_step, over_seeds, spread, table, time_each

TITLE = "Fig. 1: linear-Gaussian, offline"
REPLICATES = 10
SETTINGS = {
    "dim": 10,
    "length": 500,
    "particles": 2,
    "draws": 2,
    "depth": 2,
    "epochs": 1000,
    "rate": 3e-2,
    "timings": 20,
}
QUICK = {"dim": 3, "length": 100, "epochs": 200, "rate": 3e-2, "timings": 3}
ORACLE, TRAJECTORIES, PAPER, OURS = "oracle", "trajectories", "score, paper's settings", "score, ours"
RECURSION = "score, ours, as a recursion"
STYLES = {ORACLE: (BLACK, ":"), TRAJECTORIES: (BLUE, "--"), PAPER: (ORANGE, "-."), OURS: (GREEN, "-")}
PUBLISHED = {ORACLE: "37.1 (1)", PAPER: "89.5 (2.4)"}


def estimators(settings: dict[str, Any]) -> dict[str, Any]:
    N = settings["particles"]
    paper = RecursiveScore(N, BackwardSampling(settings["draws"]), Truncated(settings["depth"]), SameSample())
    ours = RecursiveScore(N)
    return {
        ORACLE: Exact(),
        TRAJECTORIES: BackwardTrajectories(N),
        OURS: ReverseScore(ours),
        PAPER: Scan(paper),
        RECURSION: Scan(ours),
    }


def case(settings: dict[str, Any], seed: int):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(2), seed), 4)
    p = LinearGaussian.random(settings["dim"], settings["dim"], key=keys[0])
    return p, p.simulate(settings["length"], key=keys[1])[1], Kalman.random(p, key=keys[2]), keys[3]


def learned(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    p, ys, q, key = case(settings, seed)
    epochs, rate = settings["epochs"], settings["rate"]
    falling = optax.linear_schedule(rate, 0.0, epochs // 2, transition_begin=epochs // 2)
    optimizer = optax.adam(falling)
    found = fit(p, q, ys, estimator=estimators(settings)[name], optimizer=optimizer, num_epochs=epochs, key=key)
    return {
        "gap": float(exact_per_step(p, Kalman.from_model(p), ys) - exact_per_step(p, found.q, ys)),
        "elbo": np.round(np.asarray(found.elbo[:: max(1, epochs // 200)], float), 4).tolist(),
        "refused": int(found.refused),
    }


def times(settings: dict[str, Any]) -> dict[str, float]:
    """Processor milliseconds of one gradient, all in one process and in turns."""
    p, ys, q, key = case(settings, 0)

    def gradient(estimator):
        compiled = eqx.filter_jit(lambda q, ys, key: estimator(p, q, ys, key=key))
        return lambda: compiled(q, ys, key)

    return time_each({name: gradient(made) for name, made in estimators(settings).items()}, settings["timings"])


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    found: dict[str, Any] = {"time": lambda: times(settings)}
    for names in ((ORACLE, TRAJECTORIES, OURS), (PAPER,)):
        for seed in range(replicates):
            for name in names:
                found[f"{name}, seed {seed}"] = lambda name=name, seed=seed: learned(name, settings, seed)
    return found


def markdown(content: dict[str, Any]) -> str:
    parts, rows = content["parts"], []
    taken = parts.get("time")
    for name in (*STYLES, RECURSION):
        gap = "the same" if name == RECURSION else spread(over_seeds(parts, name, "gap"), 4)
        cost = MISSING if taken is None else f"{taken[name]:.1f} ({taken[name] / taken[ORACLE]:.2f})"
        rows.append([name, gap, PUBLISHED.get(name, ""), cost])
    header = [
        "gradient",
        "nats per step below the log-likelihood",
        "paper: ms per gradient (÷ oracle)",
        "ms (÷ oracle)",
    ]
    note = (
        f"After {content['settings']['epochs']} epochs, N = 2: mean ± standard deviation (number of models). The limit "
        "is 0, that of the Kalman smoother. The paper shows convergence to the optimum and no number.\n\n"
    )
    return note + table(header, rows)


def figure(content: dict[str, Any]):
    drawn, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, (color, style) in STYLES.items():
        curves = over_seeds(content["parts"], name, "elbo")
        if curves:
            mean, deviation = np.mean(curves, axis=0), np.std(curves, axis=0)
            k = np.linspace(0, content["settings"]["epochs"], len(mean))
            axes.fill_between(k, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)
            axes.plot(k, mean, style, color=color, label=name)
            axes.set_ylim(bottom=max(axes.get_ylim()[0], mean[-1] - 10))
    axes.set(xlabel="epoch", ylabel="ELBO per step, by each estimator")
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)
    return drawn
