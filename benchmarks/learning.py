"""How well a learner learns: its error on fresh data against observations read and seconds of learning.

    backstream bench learning

The window and the recursion, both as they come, on the models of `bench gradients`, five seeds each, which draw model,
stream, fresh sequence, family and samples. For the chaotic networks it is `Innovation` with `shared` and `tangent`: one
network for all coordinates, and the model's own dynamics, linearized where the filter is. A run ends after 5 000
observations, or after 150 processor seconds of learning. Errors are above the limit on the same sequence: that of the
Kalman smoother, or of a particle smoother with 20 000 particles and the true model. From d = 20 on these are too few;
the limit of filtering is there that of a filter which knows more: for each coordinate, a particle filter that is told
the path of all others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from backstream import metrics
from backstream.learning import Settings, default_learner
from backstream.models import ChaoticRNN, Growth, LinearGaussian
from backstream.plots import BLUE, GRAY, GREEN, ORANGE
from benchmarks.harness import MISSING, Judge, LinearJudge, first_within, learn, table
from reproduction.version_0_1.innovation import Innovation

from .gradients import cases

TITLE = "How well a learner learns"
REPLICATES = 5
SETTINGS = {
    "observations": 5000,
    "fresh": 1000,
    "every": 250,
    "width": 32,
    "dims": [5, 10, 20, 50, 100],
    "most_seconds": 150,
    "limit_particles": 20_000,
    "told_from": 20,
    "told_particles": 1000,
    "few_for": ["chaotic RNN, d = 10"],
}
QUICK = {
    "observations": 1000,
    "fresh": 100,
    "dims": [2, 4],
    "width": 8,
    "limit_particles": 1000,
    "told_from": 4,
    "few_for": [],
}
FEW = "recursion, N = 30"
METHODS: dict[str, dict[str, Any]] = {
    "window": {"method": "window"},
    "recursion": {"method": "recursion"},
    FEW: {"method": "recursion", "particles": 30},
}
KEPT = ("observations", "seconds", "smoothing", "filtering", "refused")
"""What is kept of a row of a learning curve."""
COLORS = {"window": BLUE, "recursion": ORANGE, FEW: GREEN}


def stream(make: Callable, settings: dict[str, Any], seed: int):
    """The model, the family it starts from, the stream with its inputs, the judge, and the learner's key."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(7), seed), 4)
    p, q = make(settings, keys[0])
    count, fresh = settings["observations"] + 2, settings["fresh"]
    clock = jnp.arange(float(max(count, fresh))) if isinstance(p, Growth) else None
    inputs = None if clock is None else clock[:count]
    ys = p.simulate(count, inputs, key=keys[1])[1]
    if isinstance(p, LinearGaussian):
        return p, q, ys, inputs, LinearJudge(p, fresh, key=keys[2]), keys[3]
    return p, q, ys, inputs, Judge(p, fresh, None if clock is None else clock[:fresh], key=keys[2]), keys[3]


def curve(make: Callable, method: str, settings: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    p, q, ys, inputs, judge, key = stream(make, settings, seed)
    rate = 3e-3 if isinstance(q, Innovation) and q.shared else None  # which held dynamics bear with the recursion too
    learner = default_learner(p, Settings(**METHODS[method], learning_rate=rate))
    rows = learn(
        learner, q, ys, judge.errors, settings["every"], inputs, key=key, most_seconds=settings["most_seconds"]
    )
    return [{name: row[name] for name in KEPT if name in row} for row in rows]


def limit(make: Callable, settings: dict[str, Any], seed: int) -> dict[str, float]:
    p, *_, judge, key = stream(make, settings, seed)
    if isinstance(judge, LinearJudge):
        return judge.limit()
    if isinstance(p, ChaoticRNN) and len(p.W) >= settings["told_from"]:
        best = told(p, judge, settings["told_particles"], key=jax.random.fold_in(key, 1))
        return {"filtering": best, "raw": metrics.delta(judge.ys, judge.states)}
    return judge.limit(settings["limit_particles"])


def told(p: ChaoticRNN, judge: Judge, num_particles: int, *, key: jax.Array) -> float:
    """The filtering error where each coordinate has a particle filter of its own that is told all others.

    That is more than the observations say, so no filter of theirs can do better on average. One coordinate is weighed
    by what is seen of it, and by how the others moved: they depend on it through a column of W.
    """
    pull, variance = p.step / p.tau * p.gamma, p.transition_scale**2
    others = p.W - jnp.diag(jnp.diag(p.W))

    def moved(x):  # by itself
        return x - p.step / p.tau * x + pull * jnp.diag(p.W) * jnp.tanh(x)

    def seen(x, y):
        return p.emission(x).base_dist.log_prob(y)

    def advance(carry, scanned):
        x, log_w = carry
        before, now, y, key = scanned
        key_choice, key_noise = jax.random.split(key)
        expected = p.transition(before).mean
        shift = pull * (jnp.tanh(x) - jnp.tanh(before))
        log_w += (shift * ((now - expected) @ others) - 0.5 * shift**2 * (others**2).sum(0)) / variance
        chosen = jax.vmap(resampled, (0, 1), 1)(jax.random.split(key_choice, x.shape[1]), log_w)
        x = moved(jnp.take_along_axis(x, chosen, 0)) + expected - moved(before)
        x += p.transition_scale * jax.random.normal(key_noise, x.shape, x.dtype)
        log_w = seen(x, y)
        return (x, log_w), (jax.nn.softmax(log_w, axis=0) * x).sum(0)

    def resampled(key, log_w):
        points = (jnp.arange(num_particles) + jax.random.uniform(key)) / num_particles
        chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_w)), points)
        return jnp.minimum(chosen, num_particles - 1)

    key_start, key_steps = jax.random.split(key)
    x = p.prior().sample(key_start, (num_particles,))
    start = x, seen(x, judge.ys[0])
    keys = jax.random.split(key_steps, len(judge.ys) - 1)
    scanned = (judge.states[:-1], judge.states[1:], judge.ys[1:], keys)
    means = jax.jit(lambda: jax.lax.scan(advance, start, scanned)[1])()
    return metrics.delta(means, judge.states[1:])


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    found: dict[str, Callable[[], Any]] = {}
    for case, make in cases(settings).items():
        for seed in range(replicates):
            for method in METHODS:
                if method != FEW or case in settings["few_for"]:
                    found[f"{case}: {method}, seed {seed}"] = lambda make=make, method=method, seed=seed: curve(
                        make, method, settings, seed
                    )
            found[f"{case}: limit, seed {seed}"] = lambda make=make, seed=seed: limit(make, settings, seed)
    return found


def runs(content: dict[str, Any], case: str, method: str) -> list[tuple[list[dict[str, Any]], dict[str, float]]]:
    """The curves of all seeds that have been run, each with its limit."""
    found = []
    for name, rows in content["parts"].items():
        seed = name.removeprefix(f"{case}: {method}, seed ")
        best = content["parts"].get(f"{case}: limit, seed {seed}")
        if seed != name and best is not None:
            found.append((rows, best))
    return found


def median_and_worst(values: list[float], form: str) -> str:
    return f"{form.format(np.median(values))} ({form.format(max(values))})"


def markdown(content: dict[str, Any]) -> str:
    settings, rows = content["settings"], []
    for case in cases(settings):
        for method in METHODS:
            found = runs(content, case, method)
            if not found:
                continue
            errors = [
                median_and_worst([100 * (rows[-1][name] / best[name] - 1) for rows, best in found], "{:+.1f} %")
                if name in found[0][1]
                else "–"
                for name in ("smoothing", "filtering")
            ]
            errors.append(median_and_worst([rows[-1]["filtering"] for rows, _ in found], "{:.4f}"))
            reached = [first_within(rows, best) for rows, best in found]
            inside = [row for row in reached if row is not None]
            when = ["–", "–"]
            if inside:
                when = [f"{np.median([row['observations'] for row in inside]):,.0f}"]
                when += [f"{np.median([row['seconds'] for row in inside]):.1f}"]
            cost = 1e3 * np.median([rows[-1]["seconds"] / rows[-1]["observations"] for rows, _ in found])
            read = min(rows[-1]["observations"] for rows, _ in found)
            refused = max(rows[-1]["refused"] for rows, _ in found)
            within = f"{len(inside)} of {len(found)}"
            rows.append([f"{case}: {method}", f"{read:,}", f"{cost:.2f}", *errors, within, *when, str(refused)])
    header = ["", "read", "ms each", "smoothing", "filtering", "its RMSE", "within 5 %", "after", "seconds", "refused"]
    text = (
        "Errors above the limit at the end: median over the seeds, and in brackets the worst. *Within 5 %*: how many "
        "seeds come within 5 % of the limits and stay there, and after how many observations and seconds of learning, "
        "in the median of these.\n\n"
    )
    text += table(header, rows)
    run = {name.split(":")[0] for name in content["parts"]}
    left = [case for case in cases(settings) if case not in run]
    return text + (f"\n{MISSING.capitalize()}: {', '.join(left)}.\n" if left else "")


def figure(content: dict[str, Any]):
    """Filtering error over its limit, against seconds of learning: every seed a line."""
    found = [case for case in cases(content["settings"]) if any(runs(content, case, method) for method in METHODS)]
    columns = max(1, (len(found) + 1) // 2)
    drawn, axes = plt.subplots(2, columns, figsize=(3 * columns, 5), layout="constrained", squeeze=False)
    for case, panel in zip(found, axes.flat, strict=False):
        drawn_errors = []
        for method, color in COLORS.items():
            for rows, best in runs(content, case, method):
                x, y = [row["seconds"] for row in rows], [row["filtering"] / best["filtering"] for row in rows]
                panel.plot(x, y, color=color, linewidth=1, alpha=0.7)
                drawn_errors += y
        panel.axhline(1.05, color=GRAY, linestyle=":", linewidth=1)
        panel.set(xscale="log", ylim=(0.99 * min(1.0, *drawn_errors), min(1.02 * max(drawn_errors), 4.0)))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_title(case, fontsize="small")
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    if found:
        lines = [Line2D([], [], color=color, label=method) for method, color in COLORS.items()]
        axes[0, 0].legend(handles=lines, fontsize="x-small", frameon=False)
        drawn.supxlabel("processor seconds of learning", fontsize="small")
        drawn.supylabel("filtering error ÷ its limit", fontsize="small")
    return drawn
