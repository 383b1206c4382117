"""What benchmarks, studies, soak runs and the reproduction of the paper share.

Results that survive an interruption, and a stream learned and judged on fresh data.
"""

import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from rich.console import Console

import backstream
from backstream import metrics, posterior
from backstream.estimators.reference.exact import exact_elbo
from backstream.families import BackwardFamily, Kalman
from backstream.learning import LearnerState, Monitor, OnlineLearner
from backstream.models import LinearGaussian, StateSpaceModel

console = Console()


class Results:
    """A JSON file with one entry for each part of a long run. What is there already is not run again."""

    def __init__(self, path: Path, command: str, settings: dict[str, Any]):
        self.path = path
        header = {"command": command, "version": backstream.__version__, "machine": machine()}
        self.content = header | {"settings": settings, "parts": {}}
        if self.path.exists():
            kept = json.loads(self.path.read_text())
            if kept["settings"] != json.loads(json.dumps(settings)):
                raise SystemExit(f"{self.path} holds results for other settings; move it away to start anew.")
            self.content["parts"] = kept["parts"]

    def run(self, part: str, compute: Callable[[], Any], place: str = "") -> Any:
        """The result of a part, computed and written down if it is not there yet; `place` stands before its name."""
        if part not in self.content["parts"]:
            console.print(f"{place}[bold]{part}[/bold]")
            self.content["parts"][part] = rounded(compute())
            jax.clear_caches()  # hundreds of compiled programs would use up the memory mappings of a process
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.path.with_suffix(".tmp")
            scratch.write_text(as_text(self.content))
            os.replace(scratch, self.path)
        return self.content["parts"][part]


def rounded(value: Any) -> Any:
    """The same with eight significant digits in every number that is not an integer."""
    match value:
        case dict():
            return {name: rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [rounded(one) for one in value]
        case int() | str() | None:
            return value
        case _:
            return float(f"{float(value):.8g}")


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the values, at equal distances, the first among them."""
    return list(values[:: max(1, -(-len(values) // most))])


def as_text(content: dict[str, Any]) -> str:
    """JSON in which a list or an object that holds no other is one line."""
    text = json.dumps(content, indent=1)
    return re.sub(r"[\[{]\n[^\[\]{}]*[\]}]", lambda found: re.sub(r"\n *", " ", found[0]), text) + "\n"


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "processor": platform.machine(),
        "cores_used": int(os.environ.get("NPROC", os.cpu_count() or 1)),
    }


def table(header: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


MISSING = "not run yet"


def for_each_seed(
    replicates: int, names: Iterable[str], run: Callable[[str, int], Any], limit: Callable[[int], Any]
) -> dict[str, Callable[[], Any]]:
    """The parts `name, seed 0`, …, `limit, seed 0`, `name, seed 1`, …: all that belongs to one seed before the next."""
    found: dict[str, Callable[[], Any]] = {}
    for seed in range(replicates):
        found |= {f"{name}, seed {seed}": partial(run, name, seed) for name in names}
        found[f"limit, seed {seed}"] = partial(limit, seed)
    return found


def over_seeds(parts: dict[str, Any], name: str, *keys: str) -> list[float]:
    """A number of the parts `name, seed 0`, `name, seed 1`, …: of those that have been run."""
    found = []
    for part, value in parts.items():
        if part.startswith(f"{name}, seed "):
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            found += [] if value is None else [value]
    return found


def spread(values: list[float], digits: int, factor: float = 1.0) -> str:
    """Mean ± standard deviation of as many values, or that there is none yet."""
    if not values:
        return MISSING
    scaled = factor * np.asarray(values)
    deviation = f" ± {scaled.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{scaled.mean():.{digits}f}{deviation} ({len(values)})"


def in_turns(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Processor milliseconds of each, in turns in one process, after a first call that compiles."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        jax.block_until_ready(function())
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.process_time()
            jax.block_until_ready(function())
            taken[name].append(1e3 * (time.process_time() - began))
    return taken


def time_each(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median processor milliseconds of each."""
    return {name: float(np.median(values)) for name, values in in_turns(functions, repeats).items()}


class Judge:
    """Fresh data of a model, never learned from, with the truth."""

    def __init__(self, p: StateSpaceModel, length: int, inputs: Any = None, *, key: jax.Array):
        self.p, self.inputs = p, inputs
        key_data, self.key_limit = jax.random.split(key)
        self.states, self.ys = p.simulate(length, inputs, key=key_data)

    def limit(self, num_particles: int = 20_000, smoothing: bool = True) -> dict[str, float]:
        """The errors of a particle filter and smoother with the true model, and that of the raw observation."""
        trajectories = 200 if smoothing else 1
        limit = metrics.particle_limit(self.p, self.ys, self.inputs, num_particles, trajectories, key=self.key_limit)
        return ({"smoothing": metrics.delta(limit.smoothed, self.states)} if smoothing else {}) | {
            "filtering": metrics.delta(limit.filtered, self.states),
            "one_step": metrics.kappa_one(limit.one_step, self.states),
            "log_likelihood": float(limit.log_likelihood),
            "raw": metrics.delta(self.ys, self.states),
        }

    def errors(self, q: BackwardFamily) -> dict[str, float]:
        smoothed, filtered = (law(self.p, q, self.ys, self.inputs) for law in (posterior.smooth, posterior.filter))
        return {
            "smoothing": metrics.delta(smoothed.mean, self.states),
            "filtering": metrics.delta(filtered.mean, self.states),
            "coverage_90": metrics.coverage(*smoothed.interval(0.9), self.states),
        }


@eqx.filter_jit
def exact_per_step(p: LinearGaussian, q: BackwardFamily, ys: jax.Array) -> jax.Array:
    """The ELBO per step in closed form."""
    return exact_elbo(p, q, ys) / len(ys)


class LinearJudge:
    """The same for a linear-Gaussian model, where the limit and the ELBO are known in closed form."""

    def __init__(self, p: LinearGaussian, length: int, *, key: jax.Array):
        self.p = p
        self.states, self.ys = p.simulate(length, key=key)

    def limit(self) -> dict[str, float]:
        """The Kalman filter and smoother, and the log-likelihood per step."""
        return self.errors(Kalman.from_model(self.p))

    def errors(self, q: BackwardFamily) -> dict[str, float]:
        return {
            "fresh_elbo": float(exact_per_step(self.p, q, self.ys)),
            "smoothing": metrics.delta(posterior.smooth(self.p, q, self.ys).mean, self.states),
            "filtering": metrics.delta(posterior.filter(self.p, q, self.ys).mean, self.states),
        }


def learn(
    learner: OnlineLearner,
    q: BackwardFamily,
    ys: np.ndarray,
    judge: Callable[[BackwardFamily], dict[str, float]],
    every: int,
    inputs: Any = None,
    *,
    key: jax.Array,
    most_seconds: float = float("inf"),
) -> list[dict[str, Any]]:
    """Learns from a stream and judges the averaged λ every so often.

    Seconds are those of the processor, so that other work on the machine does not count, and of learning alone,
    without compilation; after `most_seconds` of them the run stops where it is.
    """

    def taken(rows):
        return jax.tree.map(lambda leaf: leaf[rows], (ys, inputs))

    monitor = Monitor(window=every)
    state = learner.init(q, taken(0)[1], key=key)
    state, _ = learner.scan(state, *taken(slice(0, 2)))
    watch, seconds, curve = monitor.begin(state), 0.0, []
    for start in range(2, len(ys) - every + 1, every):
        block = taken(slice(start, start + every))
        began = time.process_time()
        state, infos = learner.scan(state, *block)
        seconds += time.process_time() - began
        watch, report = monitor.look(learner, watch, state, infos, *block)
        row = {
            "observations": int(state.t),
            "seconds": round(seconds, 2),
            **{name: float(f"{value:.5g}") for name, value in judge(state.average).items()},
            "elbo": float(f"{report.elbo:.5g}"),
            "unbiased_elbo": float(f"{report.unbiased_elbo:.5g}"),
            "average_elbo": float(f"{report.average_elbo:.5g}"),
            "ess": float(f"{report.ess:.3g}"),
            "refused": int(state.refused),
            "warnings": list(report.warnings),
        }
        curve.append(row)
        console.print("  ".join(f"{k} {v}" for k, v in row.items() if k != "warnings"), style="dim")
        if seconds > most_seconds:
            break
    return curve


def copied(state: LearnerState) -> LearnerState:
    """A learner uses its state up."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state)


def first_within(curve: list[dict[str, Any]], limit: dict[str, float], share: float = 0.05) -> dict[str, Any] | None:
    """The first row from which on smoothing and filtering stay within `share` of those limits that there are."""
    names = [name for name in ("smoothing", "filtering") if name in limit]
    inside = [all(row[name] <= (1 + share) * limit[name] for name in names) for row in curve]
    if not inside or not inside[-1]:
        return None
    last_outside = max((k for k, ok in enumerate(inside) if not ok), default=-1)
    return curve[last_outside + 1]
