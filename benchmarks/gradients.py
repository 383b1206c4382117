"""How far each gradient can be trusted: for given λ, its bias, its noise and its price.

    backstream bench gradients

The gradient of the ELBO of one sequence, at three stages of learning with the default learner: at the start, in the
middle, late. The chaotic networks have `Innovation` with `shared` and `tangent`. Errors are in units of the length of
the reference gradient: the exact one for linear-Gaussian models, elsewhere the mean over many backward trajectories,
whose own error is shown. "At equal time" is the root mean squared error of as many runs, averaged, as fit into the time
that plain weights take for one. Each estimator is run 16 times, with d = 100 four times.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from backstream.estimators import (
    BackwardSampling,
    BackwardTrajectories,
    Exact,
    MomentCorrected,
    RecursivePathwise,
    RecursiveScore,
    SameSample,
    Scan,
    Truncated,
)
from backstream.estimators.base import flatten
from backstream.families import Kalman
from backstream.learning import Settings, default_learner
from backstream.models import ChaoticRNN, Growth, LinearGaussian, StochasticVolatility
from backstream.plots import BLACK, BLUE, GRAY, GREEN, ORANGE
from benchmarks.harness import MISSING, table, time_each
from reproduction.version_0_1.innovation import Innovation

TITLE = "How far a gradient can be trusted"
REPLICATES = 16
SETTINGS = {
    "length": 40,
    "particles": 100,
    "width": 32,
    "dims": [5, 10, 20, 50, 100],
    "stages": {"start": 0, "middle": 2000, "late": 10_000},
    "stages_from_50": {"start": 0, "middle": 500, "late": 2000},
    "trajectories": 500,
    "batches": 8,
    "timings": 5,
    "fewer_runs": {"chaotic RNN, d = 100": 4},
}
QUICK = {
    "length": 10,
    "particles": 20,
    "width": 8,
    "dims": [2],
    "stages": {"start": 0, "late": 200},
    "trajectories": 50,
    "batches": 4,
    "timings": 2,
}
PLAIN = "plain weights"
COLORS = {
    PLAIN: BLACK,
    "corrected weights": BLUE,
    "two backward draws": GRAY,
    "paper's settings": ORANGE,
    "pathwise": GREEN,
}


def estimators(settings: dict[str, Any]) -> dict[str, Any]:
    N = settings["particles"]
    return {
        PLAIN: Scan(RecursiveScore(N)),
        "corrected weights": Scan(RecursiveScore(N, MomentCorrected())),
        "two backward draws": Scan(RecursiveScore(N, BackwardSampling(2))),
        "paper's settings": Scan(RecursiveScore(N, BackwardSampling(2), Truncated(2), SameSample())),
        "pathwise": Scan(RecursivePathwise(N)),
        "4 trajectories, offline": BackwardTrajectories(4),
    }


def linear(settings: dict[str, Any], key: jax.Array):
    p = LinearGaussian.random(10, 10, low=0.6, high=0.9, key=key)
    return p, Kalman.random(p, key=key)


def slow(settings: dict[str, Any], key: jax.Array):
    def model(A, scale):
        return LinearGaussian(
            jnp.zeros(1), jnp.ones(1), jnp.full(1, A), jnp.ones((1, 1)), jnp.full(1, scale), jnp.ones(1)
        )

    scale = (1 - 0.999**2) ** 0.5
    return model(0.999, scale), Kalman.from_model(model(0.9, 4 * scale))


def chaotic(dim: int):
    def make(settings: dict[str, Any], key: jax.Array):
        p = ChaoticRNN.random(dim, key=key)
        return p, Innovation.from_model(p, settings["width"], shared=True, tangent=True, key=key)

    return make


def volatility(settings: dict[str, Any], key: jax.Array):
    p = StochasticVolatility(mu=jnp.zeros(1), phi=jnp.full(1, 0.95), sigma=jnp.full(1, 0.3))
    return p, Innovation.from_model(p, settings["width"], key=key)


def growth(settings: dict[str, Any], key: jax.Array):
    p = Growth()
    return p, Innovation.from_model(p, settings["width"], jnp.zeros(()), key=key)


def cases(settings: dict[str, Any]) -> dict[str, Callable]:
    made = {"linear-Gaussian, d = 10": linear, "slow linear-Gaussian, A = 0.999": slow}
    made |= {f"chaotic RNN, d = {d}": chaotic(d) for d in settings["dims"]}
    return made | {"stochastic volatility": volatility, "growth": growth}


def measure(make: Callable, settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    """Of each stage and estimator: bias, standard deviation, cosine of the mean with the reference, milliseconds."""
    keys = jax.random.split(jax.random.key(6), 5)
    p, q = make(settings, keys[0])
    stages = settings["stages" if q.state_dim < 50 else "stages_from_50"]
    count = max(stages.values()) + settings["length"]
    inputs = jnp.arange(float(count)) if isinstance(p, Growth) else None
    ys = p.simulate(count, inputs, key=keys[1])[1]
    found, families = {}, learned(p, q, ys, inputs, stages, keys[2])
    last = jax.tree.map(lambda leaf: leaf[-settings["length"] :], (ys, inputs))

    def gradient(estimator):
        return eqx.filter_jit(lambda q, key: flatten(estimator(p, q, *last, key=key).gradient)[0])

    exact = isinstance(q, Kalman)
    reference = gradient(Exact() if exact else BackwardTrajectories(settings["trajectories"]))
    compiled = {name: gradient(estimator) for name, estimator in estimators(settings).items()}
    for stage, q in families.items():
        batches = np.array(
            [reference(q, key) for key in jax.random.split(keys[3], 1 if exact else settings["batches"])]
        )
        truth = batches.mean(0)
        size = np.linalg.norm(truth)
        milliseconds = time_each(
            {name: lambda run=run, q=q: run(q, keys[4]) for name, run in compiled.items()}, settings["timings"]
        )
        error = 0.0 if exact else np.sqrt(batches.var(0, ddof=1).sum() / len(batches)) / size
        found[stage] = {"length": float(size), "reference_error": float(error)}
        for name, run in compiled.items():
            runs = np.array([run(q, key) for key in jax.random.split(keys[4], replicates)])
            mean, variance = runs.mean(0), runs.var(0, ddof=1).sum()
            # What is left of the squared distance when the noise of both means is taken out.
            bias = ((mean - truth) ** 2).sum() - variance / replicates - (error * size) ** 2
            found[stage][name] = {
                "bias": float(np.sqrt(max(bias, 0.0)) / size),
                "noise": float(np.sqrt(variance / replicates + (error * size) ** 2) / size),
                "deviation": float(np.sqrt(variance) / size),
                "cosine": float(mean @ truth / np.linalg.norm(mean) / size),
                "milliseconds": milliseconds[name] / settings["length"],
            }
    return found


def learned(p, q, ys, inputs, stages: dict[str, int], key: jax.Array) -> dict[str, Any]:
    """q after each number of observations."""
    learner = default_learner(p, Settings(method="window"))
    first, rest = (jax.tree.map(lambda leaf, part=part: leaf[part], (ys, inputs)) for part in (0, slice(1, None)))
    state, _ = learner.step(learner.init(q, first[1], key=key), *first)
    families, read = {}, 0
    for stage, count in stages.items():
        if count > read:
            block = jax.tree.map(lambda leaf, read=read, count=count: leaf[read:count], rest)
            state, _ = learner.scan(state, *block)
            q, read = jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state.average), count
        families[stage] = q
    return families


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    runs = settings["fewer_runs"]
    return {
        name: lambda name=name, make=make: measure(make, settings, min(replicates, runs.get(name, replicates)))
        for name, make in cases(settings).items()
    }


def at_equal_time(row: dict[str, float], plain: dict[str, float]) -> float:
    return float(np.hypot(row["bias"], row["deviation"] * np.sqrt(row["milliseconds"] / plain["milliseconds"])))


def noise(row: dict[str, float], found: dict[str, Any], case: str, settings: dict[str, Any]) -> float:
    """How far the mean over the runs is from the reference by chance, relative to its length."""
    runs = min(REPLICATES, settings["fewer_runs"].get(case, REPLICATES))  # as all were that did not record it
    return row.get("noise", float(np.hypot(row["deviation"] / np.sqrt(runs), found["reference_error"])))


def markdown(content: dict[str, Any]) -> str:
    text = f"{content['settings']['length']} observations, N = {content['settings']['particles']}.\n"
    for case, stages in in_order(content).items():
        rows = []
        for stage, found in stages.items():
            for name, row in found.items():
                if name in ("length", "reference_error"):
                    continue
                bias = f"{row['bias']:.3f} ± {noise(row, found, case, content['settings']):.3f}"
                numbers = [bias, *(f"{row[key]:.3f}" for key in ("deviation", "cosine"))]
                rows.append([f"{stage}: {name}", *numbers, f"{at_equal_time(row, found[PLAIN]):.3f}"])
                rows[-1].append(f"{row['milliseconds']:.2f}")
        reference = ", ".join(
            f"{stage} {found['length']:.3g} (± {found['reference_error']:.3f} of it)" for stage, found in stages.items()
        )
        header = ["", "bias", "standard deviation", "cosine", "error at equal time", "ms per observation"]
        text += f"\n**{case}**. Length of the gradient: {reference}.\n\n" + table(header, rows)
    left = [case for case in cases(content["settings"]) if case not in content["parts"]]
    return text + (f"\n{MISSING.capitalize()}: {', '.join(left)}.\n" if left else "")


def in_order(content: dict[str, Any]) -> dict[str, Any]:
    """What has been measured, in the order of the cases and not in that of the runs."""
    return {case: content["parts"][case] for case in cases(content["settings"]) if case in content["parts"]}


def figure(content: dict[str, Any]):
    """Bias against standard deviation, one panel for each case; the later the stage, the larger the mark."""
    found = in_order(content)
    columns = max(1, (len(found) + 1) // 2)
    drawn, axes = plt.subplots(2, columns, figsize=(3 * columns, 6), layout="constrained", squeeze=False)
    for (case, stages), panel in zip(found.items(), axes.flat, strict=False):
        for name, color in COLORS.items():
            rows = [stage[name] for stage in stages.values()]
            x, y = ([max(row[key], 1e-4) for row in rows] for key in ("deviation", "bias"))
            panel.plot(x, y, "-", color=color, linewidth=0.6)
            panel.scatter(x, y, s=[14 * (k + 1) for k in range(len(rows))], color=color, label=name)
        panel.set(xscale="log", yscale="log")
        panel.set_title(case, fontsize="small")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_minor_formatter(NullFormatter())
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    drawn.supxlabel("standard deviation", fontsize="small")
    drawn.supylabel("bias", fontsize="small")
    if found:
        axes[0, 0].legend(fontsize="x-small", frameon=False)
    return drawn
