"""What is timed of this library: a step, an offline gradient, a long stream, and each along one size."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from backstream.estimators import (
    BackwardSampling,
    BackwardTrajectories,
    Exact,
    FixedLag,
    Forward,
    MomentCorrected,
    RecursiveScore,
    Renewal,
    ReverseScore,
    Scan,
    SelfNormalized,
    Truncated,
)
from backstream.estimators.base import flatten
from backstream.families import Kalman
from backstream.learning import OnlineLearner
from backstream.models import LinearGaussian

from .programs import KEY, LIMIT, chaotic, compared, gradient, limit, streamed
from .step_profile import profile


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
            weights = BackwardSampling(value) if name == "M" else SelfNormalized()
            sensitivity = Truncated(2) if name in ("d", "M") else Forward()
            program, each = streamed(RecursiveScore(sizes["N"], weights, sensitivity), p, q, steps), steps
        size = flatten(q)[0].size if name == "P" else value
        found[str(size)] = compared({"": program}, settings["rounds"] // 2, each)[""]
        jax.clear_caches()
    return {"times": found}


def profiles(settings: dict[str, Any]) -> dict[str, Any]:
    """Where a step spends its time."""
    p, q = chaotic(settings["dim"], settings["width"])
    wide = flatten(q)[0].size // 3  # the columns of a network's layer count as well
    return {str(N): profile(streamed, p, q, N, settings["steps"], wide) for N in settings["profiled"]}
