"""Verdicts on failures made on purpose and on healthy runs: `python -m benchmarks.verdicts`.

A failure is a model that does not fit its rows, rows that went wrong on their way, or settings that cannot learn. Its
cost is by how much the clean rows are less probable than under the right model, in nats per row, from the first row
that it touches on. All runs have 500 rows at most. Healthy runs are of the zoo's models on rows of their own.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import backstream as bs
from backstream import Guided, GuidedMixture, Settings, StateSpaceModel
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.catalogue import find

RESULTS = Path(__file__).parent / "results" / "verdicts.json"
ROWS = 500
CHANGE = 300
"""The row at which a sensor sticks or a level shifts."""
SEEDS = 100, 101, 102, 103
"""Thresholds were chosen with seeds below 10."""
HEALTHY = (
    "revenue",
    "heating",
    "aircraft",
    "sunspots",
    "load",
    "choices",
    "volatility",
    "wind",
    "thermometer",
    "trades",
    "lynx_and_hare",
    "pendulum",
    "labels",
    "diary",
    "sensors",
    "membrane",
)


class Level(StateSpaceModel):
    """An autoregression, seen through a law of numbers, counts or labels."""

    phi: jax.Array
    sigma: jax.Array
    scale: jax.Array
    offset: jax.Array
    law: str = eqx.field(static=True, default="normal")

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.15).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.phi * x, self.sigma).to_event(1)

    def emission(self, x, u=None):
        seen = self.offset + x
        if self.law == "counts":
            return dist.Poisson(jnp.exp(seen)).to_event(1)
        if self.law == "labels":
            logits = jnp.stack([seen, -seen, jnp.zeros_like(seen)], -1) * self.scale
            return dist.CategoricalLogits(logits).to_event(1)
        return dist.Normal(seen, self.scale).to_event(1)


class Twist(Level):
    """Only the distance of a state from 0.3 is seen: there are two modes, which later rows tell apart."""

    def transition(self, x, u=None):
        return dist.Normal(self.phi * x + self.offset * jnp.sin(3 * x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.abs(x - 0.3), self.scale).to_event(1)


def level(kind: type[Level] = Level, law: str = "normal", **changed: float) -> Level:
    values = {"phi": 0.9, "sigma": 0.5, "scale": 0.5, "offset": 0.0} | changed
    return kind(**{name: jnp.asarray(value) for name, value in values.items()}, law=law)


class Failure(NamedTuple):
    """What goes wrong, at which size."""

    name: str
    right: StateSpaceModel
    wrong: StateSpaceModel | None = None
    """None where the model is right."""
    corrupt: Callable[[np.ndarray], np.ndarray] = lambda ys: ys
    settings: Settings = Settings()
    rows: int = ROWS
    first: int = 0
    """The row from which on it costs."""


def stuck(ys):
    return np.where(np.arange(len(ys))[:, None] >= CHANGE, ys[CHANGE], ys)


def shifted(ys):
    return ys + 3.0 * (np.arange(len(ys))[:, None] >= CHANGE)


def failures() -> tuple[Failure, ...]:
    normal, counts, labels = level(), level(law="counts", phi=0.3, sigma=0.3), level(law="labels", phi=0.3, offset=1.0)
    twist = level(Twist, phi=0.8, sigma=0.2, scale=0.15, offset=1.0)
    learned = Settings(learn_model=True, model_learning_rate=1.0)
    return (
        Failure("noise of the transition a third", normal, level(sigma=0.5 / 3)),
        Failure("noise of the transition three times", normal, level(sigma=1.5)),
        Failure("noise of the emission a third", normal, level(scale=0.5 / 3)),
        Failure("noise of the emission three times", normal, level(scale=1.5)),
        Failure("dynamics forget at once (0.2 for 0.9)", level(sigma=0.3), level(sigma=0.3, phi=0.2)),
        Failure("wrong sign of the dynamics", normal, level(phi=-0.9)),
        Failure("unit mistake: values a hundred times too large", normal, corrupt=lambda ys: 100 * ys),
        Failure("unit mistake: values a tenth", normal, corrupt=lambda ys: ys / 10),
        Failure("sensor stuck from row 300 on", normal, corrupt=stuck, first=CHANGE),
        Failure("level of the sensor shifted by 3 from row 300 on", level(phi=0.5), corrupt=shifted, first=CHANGE),
        Failure("offset of 0.7 in the emission", level(phi=0.3), level(phi=0.3, offset=0.7)),
        Failure("counts: rate half of what it is", counts, level(law="counts", phi=0.3, sigma=0.3, offset=-np.log(2))),
        Failure("labels: wrong sign", labels, level(law="labels", phi=0.3, offset=-1.0)),
        Failure("two modes and one normal law", twist, settings=Settings(components=1)),
        Failure(
            "rate a thousand times too high, no fallback",
            level(law="counts", offset=1.0),
            settings=Settings(learning_rate=10.0, fallback=False),
        ),
        Failure("rate of the parameters a hundred times too high", normal, settings=learned),
        Failure("60 rows, noise of the emission a quarter", normal, level(scale=0.125), rows=60),
    )


# ---- costs -----------------------------------------------------------------------------------------------------------
@eqx.filter_jit
def scores(model: StateSpaceModel, q: Any, read: Any, judged: Any) -> Any:
    """The log score of each of the rows `judged`, given the rows `read` before it."""

    def step(state, rows):
        seen, clean = rows
        return q.update(model, state, seen), q.log_score(q.update(model, state, clean))

    return jax.lax.scan(step, q.init(model), (read, judged))[1]


def cost(failure: Failure, clean: np.ndarray, given: np.ndarray, result: Any) -> float:
    """Nats per row, from the first row that the failure touches on."""
    q = GuidedMixture.from_model(failure.right, components=8)
    right = np.asarray(scores(failure.right, q, clean, clean))
    if failure.settings != Settings():  # what was learned is wrong: the rows and the model are right
        return float(np.mean((right - np.asarray(result.filtered.table["log_score"]))[len(right) // 2 :]))
    model = failure.right if failure.wrong is None else failure.wrong
    found = np.asarray(scores(model, Guided.from_model(model), given, clean))
    return float(np.mean((right - found)[failure.first :]))


# ---- runs ------------------------------------------------------------------------------------------------------------
def told(result: Any) -> dict[str, Any]:
    health = result.health
    figures = {name: None if value is None else round(value, 4) for name, value in health.figures.items()}
    return {"verdict": health.kind, "reasons": [str(reason) for reason in health.reasons], "figures": figures}


def run_failure(failure: Failure, seed: int) -> dict[str, Any]:
    clean = np.asarray(failure.right.simulate(failure.rows, key=jax.random.key(seed))[1])
    given = np.asarray(failure.corrupt(clean), clean.dtype)
    model = failure.right if failure.wrong is None else failure.wrong
    result = bs.learn(model, given, settings=failure.settings, progress=False, warn=lambda sentence: None)
    price = cost(failure, clean, given, result)
    return {"cost": round(price, 4) if np.isfinite(price) else None, **told(result)}


def run_healthy(name: str, seed: int) -> dict[str, Any]:
    case = find(name)
    data = case.simulate(seed, ROWS)
    return told(bs.learn(case.build(), data.ys, inputs=data.us, progress=False, warn=lambda sentence: None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="Of failures, by their first words, or of models. Default: all.")
    parser.add_argument("--seeds", type=lambda given: [int(seed) for seed in given.split(",")], default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=None, help="Where to write. Default: nowhere.")
    asked = parser.parse_args()
    use_one_thread()
    failed: dict[str, Any] = {}
    healthy: dict[str, Any] = {}
    for failure in failures():
        if not asked.names or any(failure.name.startswith(name) for name in asked.names):
            failed[failure.name] = {seed: run_failure(failure, seed) for seed in asked.seeds}
            show(failure.name, failed[failure.name])
    for name in HEALTHY:
        if not asked.names or name in asked.names:
            healthy[name] = {seed: run_healthy(name, seed) for seed in asked.seeds}
            show(name, healthy[name])
    summary = summarized(failed, healthy)
    console.print(table(["", "runs", "told"], [[name, *map(str, pair)] for name, pair in summary.items()]))
    if asked.out is not None:
        kept = {name: value for name, value in _before(asked.out).items() if name == "remedies"}
        found = {"command": "python -m benchmarks.verdicts", "version": bs.__version__, "machine": machine()}
        asked.out.write_text(
            json.dumps(found | {"rows": ROWS, "failures": failed, "healthy": healthy} | kept, indent=1)
        )


def _before(path: Path) -> dict[str, Any]:
    """What is there already."""
    return json.loads(path.read_text()) if path.exists() else {}


def show(name: str, runs: dict[int, Any]) -> None:
    for seed, run in runs.items():
        price = f"{run['cost']} nats, " if "cost" in run else ""
        reasons = "" if run["verdict"] == "good" else " | ".join(run["reasons"])
        print(f"{name}, {seed}: {price}{run['verdict']} {reasons}", flush=True)


def summarized(failures: dict[str, Any], healthy: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """How many runs there were, and how many were told as they should be."""
    bad = [run for runs in failures.values() for run in runs.values()]
    good = [run for runs in healthy.values() for run in runs.values()]
    return {
        "failures, doubtful or failed": (len(bad), sum(run["verdict"] in ("doubtful", "failed") for run in bad)),
        "healthy runs, good or learning": (len(good), sum(run["verdict"] in ("good", "learning") for run in good)),
    }


if __name__ == "__main__":
    main()
