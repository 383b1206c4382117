"""Fig. 3: updates inside an epoch against one update per epoch. Chaotic RNN, d = 5, T = 500, ten sequences, 50 epochs.

    backstream reproduce fig3

The paper's settings: its conjugate family with 10 hidden units, N = 10, Adam at 1e-3, which restarts in each epoch
with updates inside; M = 2, Δ = 2, same-sample baseline. One update per epoch goes on beyond the picture, to see how
many epochs it needs. Ours: `Innovation`, and inside epochs the library's recursion as it comes; Adam at the same rate,
1e-3, for both. All curves are unbiased ELBOs of the λ at the end of an epoch.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

from backstream.estimators import BackwardSampling, BackwardTrajectories, RecursiveScore, SameSample, Truncated
from backstream.families import Conjugate
from backstream.learning import OnlineLearner, Settings, default_learner, fit, fit_within_epochs
from backstream.plots import BLUE, GREEN, ORANGE, PURPLE
from benchmarks.harness import MISSING, for_each_seed, over_seeds, spread, table

from .table1 import case
from .version_0_1.innovation import Innovation

TITLE = "Fig. 3: updates inside an epoch, or one per epoch"
REPLICATES = 10
SETTINGS = {
    "dim": 5,
    "length": 500,
    "width": 10,
    "particles": 10,
    "draws": 2,
    "depth": 2,
    "rate": 1e-3,
    "epochs": 50,
    "long_epochs": 1000,
    "judged_by": 20,
    "limit_particles": 20_000,
}
QUICK = {"length": 100, "epochs": 5, "long_epochs": 100, "limit_particles": 2000}
INSIDE, PER_EPOCH = "inside epochs, paper's settings", "one per epoch, paper's settings"
OUR_INSIDE, OUR_PER_EPOCH = "inside epochs, ours", "one per epoch, ours"
STYLES = {INSIDE: (ORANGE, "-"), PER_EPOCH: (BLUE, "--"), OUR_INSIDE: (GREEN, "-."), OUR_PER_EPOCH: (PURPLE, ":")}


def curve(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    judge, (key_family, key_fit) = case(settings, seed)
    p, ys, d, N = judge.p, judge.ys, settings["dim"], settings["particles"]
    optimizer = optax.adam(settings["rate"])
    ours = name in (OUR_INSIDE, OUR_PER_EPOCH)
    q = Conjugate.create(d, d, width=settings["width"], key=key_family)
    q = Innovation.from_model(p, key=key_family) if ours else q
    unbiased = BackwardTrajectories(settings["judged_by"])
    elbo = eqx.filter_jit(lambda q, ys, key: unbiased(p, q, ys, key=key).elbo / len(ys))
    if name in (PER_EPOCH, OUR_PER_EPOCH):
        found = fit(
            p, q, ys, estimator=BackwardTrajectories(N), optimizer=optimizer,
            num_epochs=settings["long_epochs"], key=key_fit,
        )  # fmt: skip
        q, values = found.q, np.asarray(found.elbo)
    else:
        score = RecursiveScore(N, BackwardSampling(settings["draws"]), Truncated(settings["depth"]), SameSample())
        learner = OnlineLearner(p, score, optimizer)
        learner = default_learner(p, Settings(method="recursion", learning_rate=settings["rate"])) if ours else learner
        values = [float(elbo(q, ys, key_fit))]
        for epoch in range(settings["epochs"]):
            key = jax.random.fold_in(key_fit, epoch)
            q = fit_within_epochs(learner, q, ys, num_epochs=1, key=key).q
            values.append(float(elbo(q, ys, key)))
    return summary(values, settings["epochs"]) | judge.errors(q)


def summary(values: Sequence[float], epochs: int) -> dict[str, Any]:
    """Of a curve: the epochs of the picture, the mean of the last five, and when it was first above all before.

    The last is all that tells after how many epochs any value was first reached.
    """
    values = [round(float(value), 4) for value in values]
    best = np.fmax.accumulate(values)
    records = [0, *(1 + np.flatnonzero(best[1:] > best[:-1])).tolist()]
    return {
        "elbo": values[: epochs + 1],
        "end": float(np.mean(values[-5:])),
        "records": [[epoch, values[epoch]] for epoch in records],
    }


def epochs_needed(records: list[list[float]], end: float, start: float, share: float = 0.99) -> int | None:
    """After how many epochs `share` of the way from the first ELBO to `end` is first behind."""
    return next((int(epoch) for epoch, value in records if value >= start + share * (end - start)), None)


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    def limit(seed):
        return case(settings, seed)[0].limit(settings["limit_particles"], smoothing=False)

    return for_each_seed(replicates, STYLES, lambda name, seed: curve(name, settings, seed), limit)


def ahead(parts: dict[str, Any], epochs: int) -> str:
    """On how many sequences updates inside are ahead at the end of the picture."""
    counts = []
    for inside, per_epoch in ((INSIDE, PER_EPOCH), (OUR_INSIDE, OUR_PER_EPOCH)):
        pairs = zip(*(over_seeds(parts, name, "elbo") for name in (inside, per_epoch)), strict=False)
        last = slice(max(0, epochs - 4), epochs + 1)
        won = [np.mean(a[last]) > np.mean(b[last]) for a, b in pairs]
        counts.append(f"{sum(won)} of {len(won)}")
    return (
        f"After {epochs} epochs updates inside are ahead on {counts[0]} sequences with the paper's settings, on "
        f"{counts[1]} with ours."
    )


def markdown(content: dict[str, Any]) -> str:
    parts, epochs = content["parts"], content["settings"]["epochs"]
    rows = []
    for name in STYLES:
        curves = over_seeds(parts, name, "elbo")
        ends = [np.mean(values[max(0, epochs - 4) : epochs + 1]) for values in curves]
        runs = [part for key, part in parts.items() if key.startswith(f"{name}, seed ")]
        own = [epochs_needed(run["records"], run["end"], run["elbo"][0]) for run in runs]
        needed = []
        for seed in range(len(curves)):
            same = (INSIDE, PER_EPOCH) if name in (INSIDE, PER_EPOCH) else (OUR_INSIDE, OUR_PER_EPOCH)
            known = [parts.get(f"{other}, seed {seed}") for other in (name, *same)]
            if None not in known:
                best = max(run["end"] for run in known[1:])
                needed.append(epochs_needed(known[0]["records"], best, known[1]["elbo"][0]))
        counts = [", ".join("never" if n is None else str(n) for n in each) or MISSING for each in (own, needed)]
        filtering = spread(over_seeds(parts, name, "filtering"), 2, 100)
        rows.append([name, spread(ends, 2), *counts, filtering])
    likelihood, filtering, raw = (over_seeds(parts, "limit", k) for k in ("log_likelihood", "filtering", "raw"))
    rows.append(["log-likelihood, particle limit", spread(likelihood, 2), "", "", spread(filtering, 2, 100)])
    rows.append(["the observation itself", "", "", "", spread(raw, 2, 100)])
    header = ["updates", f"ELBO per step after {epochs} epochs", "epochs to 99 % of its own end", "of the better end"]
    header += ["filtering × 10⁻², at the end"]
    note = (
        "The paper's figure: updates inside epochs converge faster. *Epochs to 99 %*, for each sequence: of the way "
        "from the first ELBO to the end of the same curve (the mean of its last five epochs), and to the better of the "
        "two ends that the same family reaches, with updates inside and with one per epoch. The latter was given "
        f"{content['settings']['long_epochs']} epochs. {ahead(parts, epochs)}\n\n"
    )
    return note + table(header, rows)


def figure(content: dict[str, Any]):
    epochs = content["settings"]["epochs"]
    drawn, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, (color, style) in STYLES.items():
        curves = [values[: epochs + 1] for values in over_seeds(content["parts"], name, "elbo")]
        if curves:
            mean, deviation = np.mean(curves, axis=0), np.std(curves, axis=0)
            k = np.arange(len(mean))
            axes.fill_between(k, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)
            axes.plot(k, mean, style, color=color, label=name)
    axes.set(xlabel="epoch", ylabel="ELBO per step")
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)
    return drawn
