"""Table 3 and Fig. 4: a chaotic RNN stream, d = 10, 100 000 observations, each read once. Five seeds.

    backstream reproduce table3

Each seed draws its own model, stream, fresh sequence, family and samples. Three learners: the default of version 0.1;
the paper's estimator with renewal, averaged iterates and corrected weights, on `Innovation`; and the paper's own
settings: its conjugate family with 100 units, N = 100, M = 2, Δ = 2, the same-sample baseline, increments, Adam at
1e-3.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from backstream import metrics, posterior
from backstream.estimators import (
    BackwardSampling,
    Forward,
    MomentCorrected,
    RecursiveScore,
    Renewal,
    SameSample,
    Truncated,
)
from backstream.families import BackwardFamily, Conjugate
from backstream.learning import Monitor, OnlineLearner, Settings, default_learner
from backstream.learning.presets import falling
from backstream.models import ChaoticRNN
from backstream.plots import BLUE, GRAY, GREEN, ORANGE
from benchmarks.harness import MISSING, Judge, learn, over_seeds, spread, table, thinned

from .version_0_1.innovation import Innovation

TITLE = "Table 3 and Fig. 4: a chaotic stream, d = 10"
REPLICATES = 5
SETTINGS = {
    "dim": 10,
    "observations": 100_000,
    "fresh": 1000,
    "every": 5000,
    "width": 100,
    "particles": 100,
    "gamma": 0.9,
    "rate": 1e-3,
    "draws": 2,
    "depth": 2,
    "limit_particles": 20_000,
    "test": 5000,
    "snapshots": [0, 10_000, 100_000],
}
QUICK = {
    "dim": 5,
    "observations": 4000,
    "fresh": 400,
    "every": 1000,
    "width": 32,
    "particles": 30,
    "limit_particles": 2000,
    "test": 500,
    "snapshots": [0, 1000, 4000],
}
DEFAULT, RECURSION, PAPER = "default", "recursion with renewal", "paper's settings"
NAMES = (DEFAULT, RECURSION, PAPER)
SHOWN = 500
"""How many points of a test sequence the picture has: about as many as its pixels can show."""
STYLES = {DEFAULT: (BLUE, "o-"), RECURSION: (GREEN, "^-"), PAPER: (ORANGE, "s--")}


def case(settings: dict[str, Any], seed: int) -> tuple[Judge, jax.Array]:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), 5)
    return Judge(ChaoticRNN.random(settings["dim"], key=keys[0]), settings["fresh"], key=keys[2]), keys


def learner_and_family(name: str, settings: dict[str, Any], p: ChaoticRNN, key: jax.Array):
    N, d, rate = settings["particles"], settings["dim"], settings["rate"]
    if name == PAPER:
        score = RecursiveScore(N, BackwardSampling(settings["draws"]), Truncated(settings["depth"]), SameSample())
        return OnlineLearner(p, score, optax.adam(rate)), Conjugate.create(d, d, width=settings["width"], key=key)
    q = Innovation.from_model(p, width=settings["width"], key=key)
    if name == DEFAULT:
        return default_learner(p, Settings(method="window")), q
    score = RecursiveScore(N, MomentCorrected(), Forward(settings["gamma"]), objective=Renewal(settings["gamma"]))
    return OnlineLearner(p, score, optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(rate)))), q


class Snapshots:
    """Judges a stream on fresh data, and keeps what q was after some numbers of observations."""

    def __init__(self, q: BackwardFamily, judge: Any, settings: dict[str, Any]):
        self.judge, self.every, self.wanted = judge, settings["every"], settings["snapshots"]
        self.looks, self.kept, self.last = 0, {0: _copy(q)}, q

    def errors(self, q: BackwardFamily) -> dict[str, float]:
        self.looks, self.last = self.looks + 1, q
        if self.looks * self.every in self.wanted:
            self.kept[self.looks * self.every] = _copy(q)
        return self.judge.errors(q)

    def on(self, states: Any, ys: Any) -> dict[str, Any]:
        """The first coordinate of a test sequence, and its smoothed mean at each snapshot."""
        means = {str(n): _shown(posterior.smooth(self.judge.p, q, ys).mean) for n, q in self.kept.items()}
        return {"time": thinned(range(len(ys)), SHOWN), "states": _shown(states), "smoothed": means}


def _copy(q: BackwardFamily) -> BackwardFamily:
    """The learner's next block overwrites the buffers of its state."""
    arrays, static = eqx.partition(q, eqx.is_array)
    return eqx.combine(jax.tree.map(jnp.copy, arrays), static)


def _shown(values: Any) -> list[float]:
    return thinned(np.round(np.asarray(values, float)[:, 0], 3).tolist(), SHOWN)


def run(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    judge, keys = case(settings, seed)
    states, ys = judge.p.simulate(settings["observations"] + 2, key=keys[1])
    learner, q = learner_and_family(name, settings, judge.p, keys[3])
    snapshots = Snapshots(q, judge, settings)
    curve = learn(learner, q, ys, snapshots.errors, settings["every"], key=keys[4])
    smoothed, filtered = (law(judge.p, snapshots.last, ys).mean for law in (posterior.smooth, posterior.filter))
    found = {"curve": curve, "end": curve[-1], "held": held_elbos(learner, snapshots.last, judge.ys, keys[4])}
    found["training"] = {"smoothing": metrics.delta(smoothed, states), "filtering": metrics.delta(filtered, states)}
    if seed == 0:
        test = judge.p.simulate(settings["test"], key=jax.random.fold_in(keys[2], 1))
        found["test"] = snapshots.on(*test)
    return found


def held_elbos(learner: OnlineLearner, q: BackwardFamily, ys: Any, key: jax.Array) -> dict[str, float]:
    """The learner's own ELBO per step and an unbiased one, of the same fresh data under the same λ, which is held."""
    held, start = OnlineLearner(learner.model, learner.estimator, optax.set_to_zero()), 100
    monitor = Monitor(len(ys) - start)
    state, _ = held.scan(held.init(_copy(q), key=key), ys[:start])
    watch = monitor.begin(state)
    state, infos = held.scan(state, ys[start:])
    report = monitor.look(held, watch, state, infos, ys[start:])[1]
    return {"own": report.elbo, "unbiased": report.unbiased_elbo, "error": report.unbiased_error}


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    limits = {
        f"limit, seed {seed}": lambda seed=seed: case(settings, seed)[0].limit(settings["limit_particles"])
        for seed in range(replicates)
    }
    return limits | {
        f"{name}, seed {seed}": lambda name=name, seed=seed: run(name, settings, seed)
        for name in NAMES
        for seed in range(replicates)
    }


def markdown(content: dict[str, Any]) -> str:
    parts = content["parts"]
    errors = ("smoothing", "filtering")
    rows = [["paper, as printed", "0.281", "0.311", "0.278 ± 0.010", "0.305 ± 0.014"]]
    for name in NAMES:
        rows.append(
            [name]
            + [spread(over_seeds(parts, name, "training", error), 4) for error in errors]
            + [spread(over_seeds(parts, name, "end", error), 4) for error in errors]
        )
    rows.append(["particle limit", "", "", *(spread(over_seeds(parts, "limit", error), 4) for error in errors)])
    rows.append(["the observation itself", "", "", *(spread(over_seeds(parts, "limit", "raw"), 4) for _ in errors)])
    header = ["learner", "training: smoothing", "filtering", "fresh: smoothing", "filtering"]
    text = "RMSE: mean ± standard deviation (number of seeds).\n\n" + table(header, rows)
    covered = over_seeds(parts, "default", "end", "coverage_90")
    if covered:
        low, high = (f"{100 * pick(covered):.0f}" for pick in (min, max))
        held = f"{low} to {high} % of the fresh states"
        text += f"\nThe smoothed 90 % intervals of the default hold {held}: they are narrow.\n"
    return text + "\nEach seed on its fresh sequence, against the limit on the same sequence:\n\n" + each_seed(parts)


def each_seed(parts: dict[str, Any]) -> str:
    rows = []
    for part, found in parts.items():
        name, _, seed = part.rpartition(", seed ")
        limit = parts.get(f"limit, seed {seed}")
        if name in NAMES and limit is not None:
            last, curve = found["end"], found["curve"]
            above = [f"{100 * (last[k] / limit[k] - 1):+.1f} %" for k in ("smoothing", "filtering")]
            elbos = f"{last['elbo']:.2f} / {last['unbiased_elbo']:.2f}"
            held = " / ".join(f"{found['held'][kind]:.3f}" for kind in ("own", "unbiased")) if "held" in found else ""
            warned = str(sum(bool(row["warnings"]) for row in curve))
            milliseconds = f"{1e3 * last['seconds'] / last['observations']:.2f}"
            row = [part, f"{last['observations']:,}", *above, elbos, held]
            rows.append([*row, f"{warned} of {len(curve)}", milliseconds])
    if not rows:
        return MISSING + "\n"
    elbos = ["ELBO: own / unbiased", "the same, λ held"]
    header = ["learner", "read", "smoothing", "filtering", *elbos, "looks that warned", "ms each"]
    note = (
        "The ELBOs per observation are those of the last window, the learner's own with λ as it moved, the unbiased "
        "one with the last λ; and those of the fresh sequence, both with the averaged λ.\n\n"
    )
    return note + table(header, rows)


def figure(content: dict[str, Any]):
    """Top: the ELBO per observation while learning. Below, for each learner that was run: a test sequence, smoothed at
    the snapshots."""
    run = {name: content["parts"].get(f"{name}, seed 0") for name in STYLES}
    run = {name: part for name, part in run.items() if part is not None}
    tested = {name: part["test"] for name, part in run.items() if "test" in part}
    drawn, axes = plt.subplots(
        1 + len(tested), 1, figsize=(8, 3 + 2.2 * len(tested)), layout="constrained", squeeze=False
    )
    top, *rest = axes[:, 0]
    for name, part in run.items():
        color, style = STYLES[name]
        t = [row["observations"] for row in part["curve"]]
        top.plot(t, [row["elbo"] for row in part["curve"]], style, color=color, markersize=3, label=f"{name}, its own")
        unbiased = [row["unbiased_elbo"] for row in part["curve"]]
        top.plot(t, unbiased, ":", color=color, label=f"{name}, unbiased")
    top.set(xlabel="observations read", ylabel="ELBO per observation", xscale="log")
    top.set_ylim(bottom=max(top.get_ylim()[0], -60))
    if top.lines:
        top.legend(fontsize="small", frameon=False)
    for (name, test), panel in zip(tested.items(), rest, strict=True):
        _snapshots(panel, name, test)
    return drawn


def _snapshots(axes: Any, name: str, test: dict[str, Any]) -> None:
    axes.plot(test["time"], test["states"], color=GRAY, linewidth=2.5, label="truth")
    colors = (ORANGE, GREEN, BLUE)
    for (count, mean), color, style in zip(test["smoothed"].items(), colors, (":", "--", "-"), strict=False):
        axes.plot(test["time"], mean, style, color=color, linewidth=0.8, label=f"after {max(1, int(count)):,}")
    low, high = np.min(test["states"]), np.max(test["states"])
    margin = 0.3 * (high - low)
    axes.set(xlabel="time", ylabel="x₁", ylim=(low - margin, high + margin), title=f"{name}: test sequence, smoothed")
    axes.legend(fontsize="x-small", frameon=False, ncols=4)
