"""What the experiments share: results that survive an interruption, and a stream learned and judged on fresh data."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from rich.console import Console

import backstream
from backstream import metrics, posterior
from backstream.estimators import Exact
from backstream.families import BackwardFamily, Kalman
from backstream.learning import Monitor, OnlineLearner
from backstream.models import LinearGaussian, StateSpaceModel

RESULTS = Path(__file__).parent / "results"
console = Console()


class Results:
    """A JSON file with one entry for each part of an experiment. What is there already is not run again."""

    def __init__(self, name: str, settings: dict[str, Any], folder: Path = RESULTS):
        self.path = folder / f"{name}.json"
        header = {"command": f"python -m experiments.{name}", "version": backstream.__version__, "machine": machine()}
        self.content = header | {"settings": settings, "parts": {}}
        if self.path.exists():
            kept = json.loads(self.path.read_text())
            if kept["settings"] != json.loads(json.dumps(settings)):
                raise SystemExit(f"{self.path} holds results for other settings; move it away to start anew.")
            self.content["parts"] = kept["parts"]

    def run(self, part: str, compute: Callable[[], Any]) -> Any:
        """The result of a part, computed and written down if it is not there yet."""
        if part not in self.content["parts"]:
            console.print(f"[bold]{part}[/bold]")
            self.content["parts"][part] = compute()
            jax.clear_caches()  # hundreds of compiled programs would use up the memory mappings of a process
            self.path.parent.mkdir(exist_ok=True)
            scratch = self.path.with_suffix(".tmp")
            scratch.write_text(json.dumps(self.content, indent=1, default=float) + "\n")
            os.replace(scratch, self.path)
        return self.content["parts"][part]


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "processor": platform.machine(),
        "cores_used": int(os.environ.get("NPROC", os.cpu_count() or 1)),
    }


class Judge:
    """Fresh data of a model, never learned from, with the truth."""

    def __init__(self, p: StateSpaceModel, length: int, *, key: jax.Array):
        self.p = p
        key_data, self.key_limit = jax.random.split(key)
        self.states, self.ys = p.simulate(length, key=key_data)

    def limit(self, num_particles: int = 20_000) -> dict[str, float]:
        """The errors of a particle filter and smoother with the true model, and that of the raw observation."""
        limit = metrics.particle_limit(self.p, self.ys, num_particles=num_particles, key=self.key_limit)
        return {
            "smoothing": metrics.rmse(limit.smoothed, self.states),
            "filtering": metrics.rmse(limit.filtered, self.states),
            "raw": metrics.rmse(self.ys, self.states),
        }

    def errors(self, q: BackwardFamily) -> dict[str, float]:
        smoothed, filtered = posterior.smooth(q, self.ys), posterior.filter(q, self.ys)
        return {
            "smoothing": metrics.rmse(smoothed.mean, self.states),
            "filtering": metrics.rmse(filtered.mean, self.states),
            "coverage_90": metrics.coverage(*smoothed.interval(0.9), self.states),
        }


class LinearJudge:
    """The same for a linear-Gaussian model, where the limit and the ELBO are known in closed form."""

    def __init__(self, p: LinearGaussian, length: int, *, key: jax.Array):
        self.p = p
        self.states, self.ys = p.simulate(length, key=key)

    def limit(self) -> dict[str, float]:
        """The Kalman filter and smoother, and the log-likelihood per step."""
        return self.errors(Kalman.from_model(self.p))

    def errors(self, q: BackwardFamily) -> dict[str, float]:
        elbo = Exact()(self.p, q, self.ys, key=jax.random.key(0)).elbo  # draws nothing
        return {
            "fresh_elbo": float(elbo) / len(self.ys),
            "smoothing": metrics.rmse(posterior.smooth(q, self.ys).mean, self.states),
            "filtering": metrics.rmse(posterior.filter(q, self.ys).mean, self.states),
        }


def learn(
    learner: OnlineLearner,
    q: BackwardFamily,
    ys: np.ndarray,
    judge: Callable[[BackwardFamily], dict[str, float]],
    every: int,
    *,
    key: jax.Array,
    most_seconds: float = float("inf"),
) -> list[dict[str, Any]]:
    """Learns from a stream and judges the averaged λ every so often.

    Seconds are those of the processor, so that other work on the machine does not count, and of learning alone,
    without compilation; after `most_seconds` of them the run stops where it is.
    """
    monitor = Monitor(window=every)
    state, _ = learner.init(q, ys[0], key=key)
    state, _ = learner.scan(state, ys[1:2])
    watch, seconds, curve = monitor.begin(state), 0.0, []
    for start in range(2, len(ys) - every + 1, every):
        block = ys[start : start + every]
        began = time.process_time()
        state, infos = learner.scan(state, block)
        seconds += time.process_time() - began
        watch, report = monitor.look(learner, watch, state, infos, block)
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


def first_within(curve: list[dict[str, Any]], limit: dict[str, float], share: float = 0.05) -> dict[str, Any] | None:
    """The first row from which on smoothing and filtering stay within `share` of the limit, or None."""
    inside = [all(row[name] <= (1 + share) * limit[name] for name in ("smoothing", "filtering")) for row in curve]
    if not inside or not inside[-1]:
        return None
    last_outside = max((k for k, ok in enumerate(inside) if not ok), default=-1)
    return curve[last_outside + 1]
