"""What a step costs, as ratios within one run, and how that grows.

    backstream bench

One core. What is compared takes turns in one process; times are processor milliseconds, median and quartiles over the
rounds. The limit is W @ G with one read and one write of G, [N, P]: what a step with all weights was thought to cost at
least. Compile times are processor seconds, memory is what XLA allots to a program, its arguments included.
"""

from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from backstream.plots import BLACK, BLUE, GREEN, ORANGE
from benchmarks.harness import MISSING, table
from benchmarks.timing.measurements import (
    memory,
    offline_chaotic,
    offline_linear,
    profiles,
    python,
    sampled,
    scaling,
    step,
)
from benchmarks.timing.programs import LIMIT
from benchmarks.timing.rivals import filtering, smoothing
from reproduction import table2

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


def per_step(settings: dict[str, Any]) -> dict[str, Any]:
    """A gradient step of the non-amortized scheme (Table 2): score against regression."""
    chosen = table2.SETTINGS if settings["dim"] == SETTINGS["dim"] else table2.SETTINGS | table2.QUICK
    return {"times": {name: {"ms": ms} for name, ms in table2.times(chosen).items()}}


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    made = {
        "profile": partial(profiles, settings),
        **{f"step, {family}": partial(step, settings, family) for family in settings["families"]},
        "sampled": partial(sampled, settings),
        "offline, linear-Gaussian": partial(offline_linear, settings),
        "offline, chaotic RNN": partial(offline_chaotic, settings),
        "non-amortized": partial(per_step, settings),
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
    ratio("non-amortized", "regression", "score", "non-amortized step: regression ÷ score", "≥ 5")
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
