"""What a step costs, as ratios within one run, and how that grows.

    backstream bench

One core. What is compared takes turns in one process; times are processor milliseconds, median and quartiles over the
rounds. The limit is W @ G with one read and one write of G, [N, P]: what a step with all weights was thought to cost at
least. Compile times are processor seconds, memory is what XLA allots to a program, its arguments included.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cuthbert
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from cuthbert.gaussian import kalman
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import systematic
from matplotlib.ticker import NullFormatter

from backstream import metrics, posterior
from backstream._jax.compiling import compiler_options
from backstream.estimators import (
    AdditiveSmoother,
    BackwardSampling,
    BackwardTrajectories,
    Exact,
    FixedLag,
    Forward,
    MomentCorrected,
    Quadratic,
    RecursiveScore,
    Renewal,
    ReverseScore,
    Scan,
    SelfNormalised,
    Truncated,
    moments,
)
from backstream.estimators.base import flatten
from backstream.families import Conjugate, Kalman
from backstream.learning import OnlineLearner
from backstream.models import ChaoticRNN, LinearGaussian
from backstream.models.density import log_emission, log_transitions
from backstream.plots import BLACK, BLUE, GREEN, ORANGE

from . import table2
from .harness import MISSING, in_turns, table
from .step_profile import profile
from .version_0_1.innovation import Innovation

TITLE = "Speed"
REPLICATES = 1
SETTINGS = {
    "dim": 10,
    "particles": 100,
    "many": 1000,
    "width": 100,
    "steps": 50,
    "rounds": 9,
    "length": 500,
    "offline_rounds": 9,
    "python_steps": 100,
    "stream": 1_000_000,
    "profiled": [2, 100, 1000],
    "families": ["Innovation", "Conjugate"],
    "smoothing": {"length": 100, "ours": 100, "paris": [100, 300, 1000], "replicates": 8},
    "scaling": {
        "N": [2, 20, 200, 2000],
        "d": [2, 10, 30, 100],
        "P": [10, 100, 1000],
        "T": [100, 500, 2500],
        "M": [2, 8, 32],
    },
}
QUICK = {
    "dim": 3,
    "particles": 20,
    "many": 50,
    "width": 8,
    "steps": 10,
    "rounds": 3,
    "length": 30,
    "offline_rounds": 3,
    "python_steps": 20,
    "stream": 10_000,
    "smoothing": {"length": 20, "ours": 30, "paris": [30, 100], "replicates": 2},
    "profiled": [2],
    "families": ["Innovation"],
    "scaling": {"N": [2, 20]},
}
LIMIT = "W @ G and one read and write of G"
KEY = jax.random.key(0)


class Program:
    """Compiled once, with what that took and the memory that it needs."""

    def __init__(self, function: Callable, *arguments: Any):
        lowered = jax.jit(function).lower(*arguments)
        began = time.process_time()
        self.compiled = lowered.compile(compiler_options=compiler_options())
        self.seconds = time.process_time() - began
        sizes = self.compiled.memory_analysis()
        self.megabytes = (sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes) / 1e6
        self.arguments = arguments

    def __call__(self) -> Any:
        return self.compiled(*self.arguments)


def compared(runs: dict[str, Callable[[], Any]], rounds: int, each: float = 1.0) -> dict[str, dict[str, float]]:
    """Processor milliseconds of each, divided by `each`: the median of as many rounds, and quartiles."""
    found = {}
    for name, values in in_turns(runs, rounds).items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]) / each
        found[name] = {"ms": float(middle), "low": float(low), "high": float(high)}
        if isinstance(run := runs[name], Program):
            found[name] |= {"compile_s": round(run.seconds, 2), "megabytes": round(run.megabytes, 2)}
    return found


def chaotic(dim: int, width: int, family: str = "Innovation"):
    p = ChaoticRNN.random(dim, key=KEY)
    if family == "Conjugate":
        return p, Conjugate.create(dim, dim, width, key=KEY)
    return p, Innovation.from_model(p, width, key=KEY)


def streamed(estimator, p, q, steps: int) -> Program:
    """As many observations, in one scan, with λ an argument of the program."""
    lam, rebuild = flatten(q)
    ys = p.simulate(steps + 1, key=KEY)[1]

    def run(lam, ys):
        q = rebuild(lam)
        carry, _ = estimator.init(p, q, ys[0], key=KEY)

        def step(carry, scanned):
            t, y = scanned
            carry, estimate = estimator.step(p, q, carry, y, key=jax.random.fold_in(KEY, t))
            return carry, flatten(estimate.increment.gradient)[0].sum()

        return jax.lax.scan(step, carry, (jnp.arange(1, len(ys)), ys[1:]))[1]

    return Program(run, lam, ys)


def limit(N: int, P: int, steps: int) -> Program:
    W = jax.nn.softmax(jax.random.normal(KEY, (N, N)))
    G = jax.random.normal(KEY, (N, P))
    return Program(lambda W, G: jax.lax.fori_loop(0, steps, lambda _, G: W @ G + 1e-3 * G, G), W, G)


def step(settings: dict[str, Any], family: str) -> dict[str, Any]:
    """One streamed observation, as a multiple of the limit."""
    N, steps = settings["particles"], settings["steps"]
    p, q = chaotic(settings["dim"], settings["width"], family)
    estimators = {
        "all weights, Forward()": RecursiveScore(N, objective=Renewal(0.8)),
        "all weights, Truncated(2)": RecursiveScore(N, sensitivity=Truncated(2), objective=Renewal(0.8)),
    }
    if family == "Innovation" and len(settings["families"]) > 1:
        estimators |= {
            "moment-corrected, Forward()": RecursiveScore(N, MomentCorrected(), objective=Renewal(0.8)),
            "a window, FixedLag(16, 4)": FixedLag(16, 4),
        }
    size = flatten(q)[0].size
    runs = {LIMIT: limit(N, size, steps)} | {name: streamed(e, p, q, steps) for name, e in estimators.items()}
    return {"P": size, "times": compared(runs, settings["rounds"], steps)}


def sampled(settings: dict[str, Any]) -> dict[str, Any]:
    """Many particles: two backward draws against all weights."""
    N, steps = settings["many"], max(2, settings["steps"] // 5)
    p, q = chaotic(settings["dim"], settings["width"])
    runs = {
        LIMIT: limit(N, flatten(q)[0].size, steps),
        "all weights": streamed(RecursiveScore(N), p, q, steps),
        "BackwardSampling(2)": streamed(RecursiveScore(N, BackwardSampling(2)), p, q, steps),
    }
    return {"P": flatten(q)[0].size, "times": compared(runs, max(2, settings["rounds"] // 3), steps)}


def gradient(estimator, p, q, ys) -> Program:
    lam, rebuild = flatten(q)
    return Program(lambda lam, ys: flatten(estimator(p, rebuild(lam), ys, key=KEY).gradient)[0], lam, ys)


def offline_linear(settings: dict[str, Any]) -> dict[str, Any]:
    """The gradient of the ELBO of a whole linear-Gaussian sequence, N = 2."""
    p = LinearGaussian.random(settings["dim"], settings["dim"], key=KEY)
    ys, q = p.simulate(settings["length"], key=KEY)[1], Kalman.random(p, key=KEY)
    estimators = {
        "exact": Exact(),
        "trajectories": BackwardTrajectories(2),
        "score": ReverseScore(RecursiveScore(2)),
        "score, as a recursion": Scan(RecursiveScore(2)),
    }
    runs = {name: gradient(e, p, q, ys) for name, e in estimators.items()}
    return {"times": compared(runs, settings["offline_rounds"])}


def offline_chaotic(settings: dict[str, Any]) -> dict[str, Any]:
    """The same for a chaotic network, d = 5, N = 10, eight hidden units."""
    p, q = chaotic(min(5, settings["dim"]), 8)
    ys = p.simulate(settings["length"], key=KEY)[1]
    estimators = {"trajectories": BackwardTrajectories(10), "score": ReverseScore(RecursiveScore(10))}
    runs = {name: gradient(e, p, q, ys) for name, e in estimators.items()}
    return {"times": compared(runs, settings["offline_rounds"])}


def per_step(settings: dict[str, Any]) -> dict[str, Any]:
    """A gradient step of the non-amortised scheme (Table 2): score against regression."""
    chosen = table2.SETTINGS if settings["dim"] == SETTINGS["dim"] else table2.SETTINGS | table2.QUICK
    return {"times": {name: {"ms": ms} for name, ms in table2.times(chosen).items()}}


def python(settings: dict[str, Any]) -> dict[str, Any]:
    """A learner's `step`, called once for each observation, against its `scan`."""
    p, q = chaotic(settings["dim"], settings["width"])
    count = settings["python_steps"]
    ys = np.asarray(p.simulate(count + 1, key=KEY)[1])
    learner = OnlineLearner(p, RecursiveScore(settings["particles"]), optax.adam(1e-3), block=count)
    state = [learner.step(learner.init(q, key=KEY), ys[0])[0]]  # used up by each call, and replaced

    def scan():
        state[0], infos = learner.scan(state[0], ys[1:])
        return infos.elbo

    def one_by_one():
        for y in ys[1:]:
            state[0], info = learner.step(state[0], y)
        return info.elbo

    runs = {"scan": scan, "step": one_by_one}
    return {"times": compared(runs, max(2, settings["rounds"] // 2), count)}


def paris(p: LinearGaussian, ys, N: int, M: int = 2) -> Program:
    """PaRIS (Olsson and Westerborn, 2017) for Σ x_s, on a bootstrap filter with multinomial resampling.

    Ours: the one of particles 0.3 does not run with NumPy 2. Backward indices come from all N² weights, by inversion.
    """

    def inverted(log_w, uniforms):
        cumulative = jnp.cumsum(jax.nn.softmax(log_w, axis=-1), axis=-1)
        index = jax.vmap(partial(jnp.searchsorted, side="right"))(cumulative, uniforms * cumulative[:, -1:])
        return jnp.minimum(index, N - 1)

    def run(ys, key):
        weigh = jax.vmap(lambda x, y: log_emission(p, x, y), (0, None))

        def step(carry, scanned):
            x, log_w, tau = carry
            t, y = scanned
            keys = jax.random.split(jax.random.fold_in(key, t), 3)
            ancestors = inverted(log_w[None], jax.random.uniform(keys[0], (1, N)))[0]
            move = jax.vmap(lambda x, key: p.transition(x).sample(key))
            moved = move(x[ancestors], jax.random.split(keys[1], N))
            backward = inverted(log_w + log_transitions(p, x, moved), jax.random.uniform(keys[2], (N, M)))
            tau = sum(tau[backward[:, k]] for k in range(M)) / M + moved
            return (moved, weigh(moved, y), tau), None

        x = p.prior().sample(jax.random.fold_in(key, 0), (N,))
        start = (x, weigh(x, ys[0]), x)
        (_, log_w, tau), _ = jax.lax.scan(step, start, (jnp.arange(1, len(ys)), ys[1:]))
        return jax.nn.softmax(log_w) @ tau

    return Program(run, ys, KEY)


def additive(p, q, ys, N: int, weights) -> Program:
    smoother = AdditiveSmoother(moments(), N, weights)

    def run(ys, key):
        carry, _ = smoother.init(p, q, ys[0], key=jax.random.fold_in(key, 0))

        def step(carry, scanned):
            t, y = scanned
            carry, total = smoother.step(p, q, carry, y, key=jax.random.fold_in(key, t))
            return carry, total["x"]

        return jax.lax.scan(step, carry, (jnp.arange(1, len(ys)), ys[1:]))[1][-1]

    return Program(run, ys, KEY)


def smoothing(settings: dict[str, Any]) -> dict[str, Any]:
    """E[Σ x_s | y], online, at its exact q: the error per observation, root mean square, and the time."""
    chosen, d = settings["smoothing"], settings["dim"]
    p = LinearGaussian.random(d, d, low=0.6, high=0.9, key=KEY)
    ys = p.simulate(chosen["length"], key=KEY)[1]
    q = Kalman.from_model(p)
    exact = np.asarray(posterior.smooth(p, q, ys).mean).sum(0)
    N = chosen["ours"]
    runs = {
        f"ours, plain weights, N = {N}": additive(p, q, ys, N, SelfNormalised()),
        f"ours, corrected weights, N = {N}": additive(p, q, ys, N, MomentCorrected(Quadratic(cross=True))),
    }
    runs |= {f"PaRIS, N = {n}": paris(p, ys, n) for n in chosen["paris"]}
    times = compared(runs, 3, len(ys))
    for name, program in runs.items():
        keys = jax.random.split(KEY, chosen["replicates"])
        errors = np.array([program.compiled(ys, key) for key in keys]) - exact
        times[name]["error"] = float(np.sqrt((errors**2).mean())) / len(ys)
    return {"times": times}


def filtering(settings: dict[str, Any]) -> dict[str, Any]:
    """Filtering alone, against cuthbert's Kalman and bootstrap particle filters, N = 1000."""
    d, N = settings["dim"], 1000
    p = LinearGaussian.random(d, d, low=0.6, high=0.9, key=KEY)
    ys = p.simulate(settings["length"], key=KEY)[1]
    q = Kalman.from_model(p)
    mean0, Q0, A, B, Q, R = p.dense()
    zero, roots = jnp.zeros(d), [jnp.linalg.cholesky(M) for M in (Q0, Q, R)]

    def kalman_filter(ys):
        def dynamics(inputs):
            first = inputs[0] == 0
            return jnp.where(first, jnp.eye(d), A), zero, jnp.where(first, 0.0, roots[1])

        engine = kalman.build_filter(mean0, roots[0], dynamics, lambda inputs: (B, zero, roots[2], inputs[1]))
        return cuthbert.filter(engine, (jnp.arange(len(ys)), ys), engine.init_prepare()).mean

    def bootstrap(ys):
        engine = particle_filter.build_filter(
            init_sample=lambda key: p.prior().sample(key),
            propagate_sample=lambda key, x, inputs: p.transition(x).sample(key),
            log_potential=lambda before, x, inputs: log_emission(p, x, inputs),
            n_filter_particles=N,
            resampling_fn=systematic.resampling,
        )
        return cuthbert.filter(engine, ys, engine.init_prepare(key=KEY), key=KEY).particles

    runs = {
        "cuthbert, Kalman": Program(kalman_filter, ys),
        "ours, Kalman family": Program(lambda ys: posterior.filter(p, q, ys).mean, ys),
        "cuthbert, particles": Program(bootstrap, ys),
        "ours, particles": lambda: metrics.particle_limit(p, ys, None, N, 1, key=KEY).filtered,
    }
    return {"times": compared(runs, settings["offline_rounds"], len(ys))}


def resident() -> float:
    """The memory of the process, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(settings: dict[str, Any]) -> dict[str, Any]:
    """A long stream through a learner, recursion and all: what the process holds after each tenth of it."""
    p = LinearGaussian.random(2, 2, low=0.6, high=0.9, key=KEY)
    learner = OnlineLearner(p, RecursiveScore(8, objective=Renewal(0.8)), optax.adam(1e-3), block=1000)
    tenth = settings["stream"] // 10
    ys = np.asarray(p.simulate(tenth + 1, key=KEY)[1])
    state, _ = learner.step(learner.init(Kalman.random(p, key=KEY), key=KEY), ys[0])
    found = {}
    for k in range(1, 11):  # the same observations over and over
        began = time.process_time()
        for start in range(1, tenth + 1, 1000):
            state, _ = learner.scan(state, ys[start : start + 1000])
        seconds = time.process_time() - began
        found[f"{k * tenth:,} observations"] = {"ms": 1e3 * seconds / tenth, "megabytes": round(resident(), 1)}
    return {"times": found}


def scaling(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Time, compile time and memory along one size, the others held."""
    steps, found = max(4, settings["steps"] // 5), {}
    for value in settings["scaling"][name]:
        if name == "T":
            p = LinearGaussian.random(settings["dim"], settings["dim"], key=KEY)
            ys, q = p.simulate(value, key=KEY)[1], Kalman.random(p, key=KEY)
            program, each = gradient(ReverseScore(RecursiveScore(2)), p, q, ys), 1
        else:
            sizes = {"N": settings["particles"], "d": settings["dim"], "P": settings["width"], "M": 2} | {name: value}
            if name == "d":
                sizes |= {"N": min(20, sizes["N"]), "P": min(20, sizes["P"])}
            if name == "M":
                sizes["N"] = settings["many"]
            p, q = chaotic(sizes["d"], sizes["P"])
            weights = BackwardSampling(value) if name == "M" else SelfNormalised()
            sensitivity = Truncated(2) if name in ("d", "M") else Forward()
            program, each = streamed(RecursiveScore(sizes["N"], weights, sensitivity), p, q, steps), steps
        size = flatten(q)[0].size if name == "P" else value
        found[str(size)] = compared({"": program}, settings["rounds"] // 2, each)[""]
        jax.clear_caches()
    return {"times": found}


def exponent(times: dict[str, dict[str, float]], key: str = "ms") -> float:
    """The slope between the last two sizes, in logarithms: what the growth tends to."""
    (x0, y0), (x1, y1) = ((float(size), row[key]) for size, row in list(times.items())[-2:])
    return float(np.log(y1 / y0) / np.log(x1 / x0))


SIZES = {
    "N": "particles; all weights, Forward()",
    "d": "states; N = 20, 20 units, Truncated(2)",
    "P": "numbers in λ; all weights, Forward()",
    "T": "observations; an offline gradient, linear-Gaussian, N = 2",
    "M": "backward draws; many particles, Truncated(2)",
}


def profiles(settings: dict[str, Any]) -> dict[str, Any]:
    """Where a step spends its time."""
    p, q = chaotic(settings["dim"], settings["width"])
    wide = flatten(q)[0].size // 3  # the columns of a network's layer count as well
    return {str(N): profile(streamed, p, q, N, settings["steps"], wide) for N in settings["profiled"]}


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    made = {
        "profile": partial(profiles, settings),
        **{f"step, {family}": partial(step, settings, family) for family in settings["families"]},
        "sampled": partial(sampled, settings),
        "offline, linear-Gaussian": partial(offline_linear, settings),
        "offline, chaotic RNN": partial(offline_chaotic, settings),
        "non-amortised": partial(per_step, settings),
        "step from Python": partial(python, settings),
        "additive smoothing": partial(smoothing, settings),
        "filtering": partial(filtering, settings),
        "memory": partial(memory, settings),
    }
    return made | {f"against {name}": partial(scaling, settings, name) for name in settings["scaling"]}


def at_equal_time(times: dict[str, dict[str, float]], ours: str) -> float:
    """PaRIS' error at the time that ours takes, on the line through its times and errors in logarithms, over ours."""
    rows = [row for name, row in times.items() if name.startswith("PaRIS")]
    slope, level = np.polyfit(*(np.log([row[key] for row in rows]) for key in ("ms", "error")), 1)
    return float(np.exp(level + slope * np.log(times[ours]["ms"])) / times[ours]["error"])


def figures(found: dict[str, Any]) -> list[list[str]]:
    """The ratios that are asked for, with the bound on each, as far as they have been run."""
    rows = []

    def ratio(part: str, over: str, under: str, what: str, bound: str) -> None:
        if part in found:
            times = found[part]["times"]
            rows.append([what, f"{times[over]['ms'] / times[under]['ms']:.2f}", bound])

    for family in ("Innovation", "Conjugate"):
        for name, most in (("Forward()", "2.5"), ("Truncated(2)", "2.0")):
            ratio(
                f"step, {family}", f"all weights, {name}", LIMIT, f"a step ÷ the limit, {family}, {name}", f"≤ {most}"
            )
    ratio("sampled", "BackwardSampling(2)", "all weights", "two backward draws ÷ all weights", "≤ 0.2")
    ratio("offline, linear-Gaussian", "score", "exact", "linear-Gaussian gradient: score ÷ exact", "≤ 1.5")
    ratio("offline, linear-Gaussian", "score", "trajectories", "the same: score ÷ trajectories", "≤ 1.5")
    ratio("offline, chaotic RNN", "score", "trajectories", "chaotic RNN gradient: score ÷ trajectories", "≤ 3")
    ratio("non-amortised", "regression", "score", "non-amortised step: regression ÷ score", "≥ 5")
    ratio("step from Python", "step", "scan", "`step` from Python ÷ in `scan`", "≤ 1.3")
    if "additive smoothing" in found:
        times = found["additive smoothing"]["times"]
        for name in times:
            if name.startswith("ours"):
                gain = f"{at_equal_time(times, name):.1f}"
                rows.append([f"additive smoothing at equal time: PaRIS' error ÷ {name}", gain, "≥ 10"])
    if "memory" in found:
        rows.append(["growth of memory, from a tenth of a long stream to its end, MB", f"{growth(found):.1f}", "0"])
    return rows


def growth(found: dict[str, Any]) -> float:
    held = [row["megabytes"] for row in found["memory"]["times"].values()]
    return held[-1] - held[0]


def markdown(content: dict[str, Any]) -> str:
    found = content["parts"]
    if not found:
        return f"{MISSING.capitalize()}.\n"
    text = table(["ratio", "measured", "wanted"], figures(found))
    if "profile" in found:
        text += "\n**profile**: microseconds of a step, in brackets those of results as wide as λ\n\n"
        text += profiled(found["profile"])
    for part, result in found.items():
        if part == "profile":
            continue
        first = next(iter(result["times"].values()))
        rows = []
        for name, row in result["times"].items():
            spread = f"{row['low']:.3g}–{row['high']:.3g}" if "low" in row else ""
            more = [f"{row[key]:.3g}" if key in row else "" for key in ("compile_s", "megabytes")]
            error = [f"{row['error']:.2g}"] if "error" in first else []
            rows.append([name, f"{row['ms']:.3g}", spread, f"{row['ms'] / first['ms']:.2f}", *more, *error])
        header = ["", "ms", "quartiles", "÷ first", "compile, s", "MB", *(["error"] if "error" in first else [])]
        size = part.removeprefix("against ")
        text += f"\n**{part}**" + (f": {SIZES[size]}" if size in SIZES else "") + "\n\n" + table(header, rows)
        if size in SIZES and len(rows) > 1:
            grows, memory = exponent(result["times"]), exponent(result["times"], "megabytes")
            text += f"\nBetween the last two, time grows like {size}^{grows:.2f}, memory like {size}^{memory:.2f}.\n"
    return text


def profiled(found: dict[str, Any]) -> str:
    rows = [
        [part, *(f"{of[part]['us']:,.0f} ({of[part]['wide_us']:,.0f})" for of in found.values())]
        for part in next(iter(found.values()))
    ]
    for name, key, form in (("all", "us", "{:,.0f}"), ("operations", "operations", "{:.0f}")):
        rows.append([name, *(form.format(sum(row[key] for row in of.values())) for of in found.values())])
    return table(["", *(f"N = {N}" for N in found)], rows)


def figure(content: dict[str, Any]):
    """Time against each size, in logarithms."""
    found = {
        name: content["parts"][f"against {name}"]["times"] for name in SIZES if f"against {name}" in content["parts"]
    }
    drawn, axes = plt.subplots(1, max(1, len(found)), figsize=(2.6 * max(1, len(found)), 2.8), layout="constrained")
    for (name, times), panel in zip(found.items(), np.atleast_1d(axes), strict=False):
        x = [float(size) for size in times]
        panel.fill_between(x, *([row[key] for row in times.values()] for key in ("low", "high")), color=BLUE, alpha=0.2)
        panel.plot(x, [row["ms"] for row in times.values()], "o-", color=BLUE, label="run, ms")
        panel.plot(x, [row["compile_s"] for row in times.values()], "s--", color=ORANGE, label="compile, s")
        panel.plot(x, [row["megabytes"] for row in times.values()], "^:", color=GREEN, label="memory, MB")
        panel.set(xscale="log", yscale="log", xlabel=name)
        panel.set_xticks(x, [f"{size:g}" for size in x])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.tick_params(which="both", labelsize="x-small")
        panel.set_title(f"{name}^{exponent(times):.2f}", fontsize="small", color=BLACK)
    if found:
        np.atleast_1d(axes)[0].legend(fontsize="x-small", frameon=False)
    return drawn
