"""What the checks of a run cost: `python -m benchmarks.check_costs`.

A run of 10 000 rows, from the first row to the verdict, is repeated with all checks and with some of them left out, in
turn, in one process. Compiling and planning are not counted. A share is the least time with all checks less the least
time without some, over the former.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

import backstream as bs
from backstream.engine import single_reader
from backstream.learning import monitor, presets
from backstream.learning.monitor import Monitor
from backstream.learning.online import OnlineLearner
from backstream.models import ChaoticRNN
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.catalogue import find

RESULTS = Path(__file__).parent / "results" / "check_costs.json"
ROWS, SEED = 10_000, 100
CHECKS = "particle filters", "unlearned filter", "bound"
"""The absolute check: each of them, and all together."""
SCORES = "predictive scores"
STARTING = "filter at the starting parameters"
MODELS = "volatility", "pendulum", "trades", "chaotic network, d = 10"


def without(check: str) -> Any:
    """A context in which one of the checks is left out."""
    init, made = OnlineLearner.init, presets.default_learner

    def bare(*given, **named):
        return init(*given, **named)._replace(unlearned=None)

    def unscored(*given, **named):
        return replace(made(*given, **named), num_draws=0)

    def log_score(self, learner, watch, state, ys, inputs, infos, key):
        values = np.full(2, np.mean(infos.log_score))
        return values, values, 0.0

    return {
        "particle filters": lambda: mock.patch.object(Monitor, "compare", lambda *_: None),
        "unlearned filter": lambda: mock.patch.object(OnlineLearner, "init", bare),
        "bound": lambda: mock.patch.object(Monitor, "_elbos", log_score),
        SCORES: lambda: mock.patch.object(presets, "default_learner", unscored),
        STARTING: lambda: mock.patch.object(monitor, "theta_gains", lambda *_: np.zeros(0)),
    }[check]()


@contextlib.contextmanager
def planning_apart() -> Iterator[list[float]]:
    """Collects the seconds that are spent on planning, which compiles."""
    spent, prepare = [], single_reader.prepare

    def timed(*given):
        began = time.process_time()
        made = prepare(*given)
        spent.append(time.process_time() - began)
        return made

    with mock.patch.object(single_reader, "prepare", timed):
        yield spent


def seconds(model: Any, ys: np.ndarray, left_out: tuple[str, ...], learns: bool) -> float:
    """Processor time of a run."""
    with contextlib.ExitStack() as stack:
        for check in left_out:
            stack.enter_context(without(check))
        spent = stack.enter_context(planning_apart())
        began = time.process_time()
        bs.learn(model, ys, learn="all" if learns else (), progress=False, warn=lambda sentence: None)
        return time.process_time() - began - sum(spent)


def rows_of(name: str) -> tuple[Any, np.ndarray]:
    if name in MODELS[:-1]:
        case = find(name)
        return case.build(), np.asarray(case.simulate(SEED, ROWS).ys)
    model = ChaoticRNN.random(10, key=jax.random.key(SEED))
    return model, np.asarray(model.simulate(ROWS, key=jax.random.key(SEED))[1])


def shares(name: str, repeats: int) -> dict[str, float]:
    model, ys = rows_of(name)
    kinds = {check: ((check,), False) for check in (*CHECKS, SCORES)}
    kinds |= {"all checks": (CHECKS, False), "with": ((), False)}
    if name != MODELS[-1]:  # a network of 10 states has 110 parameters: learning them takes all the time
        kinds |= {STARTING: ((STARTING,), True), "with, learned": ((), True)}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 1):  # in turn, as the machine has other work; the first ones compile
        for kind, (left_out, learns) in kinds.items():
            spent = seconds(model, ys, left_out, learns)
            took[kind] += [spent] if repeat else []
    least = {kind: min(values) for kind, values in took.items()}
    found = {kind: 1 - least[kind] / least["with"] for kind in (*CHECKS, "all checks", SCORES)}
    if STARTING in least:
        found[STARTING] = 1 - least[STARTING] / least["with, learned"]
    return {"microseconds a row": round(1e6 * least["with"] / ROWS, 1)} | {k: round(v, 3) for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="Of models. Default: all.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=None, help="Where to write. Default: nowhere.")
    asked = parser.parse_args()
    use_one_thread()
    found = {}
    for name in asked.names or MODELS:
        found[name] = shares(name, asked.repeats)
        print(name, found[name], flush=True)
    names = list(next(iter(found.values())))
    console.print(table(["", *names], [[name, *map(str, one.values())] for name, one in found.items()]))
    if asked.out is not None:
        about = {"command": "python -m benchmarks.check_costs", "version": bs.__version__, "machine": machine()}
        asked.out.write_text(json.dumps(about | {"rows": ROWS, "repeats": asked.repeats, "models": found}, indent=1))


if __name__ == "__main__":
    main()
