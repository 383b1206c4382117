"""What the checks of a run cost: `python -m benchmarks.check_costs`.

A run of 10 000 rows, from the first row to the verdict, in processor time; compiling and planning are not counted. The
checks that are calls of their own are timed as they are called. Those that are part of a row's program are left out in
every other run, in one process: their share is the least time with them less the least time without them.
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
from backstream.learning import presets
from backstream.learning.monitor import Monitor
from backstream.learning.online import OnlineLearner
from backstream.models import ChaoticRNN
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.catalogue import find

RESULTS = Path(__file__).parent / "results" / "check_costs.json"
ROWS, SEED = 10_000, 100
CALLED = {"particle filters": "compare", "bound": "_elbos", "filter at the starting parameters": "_gained"}
"""Methods of the monitor."""
UNLEARNED, SCORES = "unlearned filter", "predictive scores"
MODELS = "volatility", "pendulum", "trades", "chaotic network, d = 10"


def without(part: str) -> Any:
    """A context in which a part of a row's program is left out."""
    init, made = OnlineLearner.init, presets.default_learner

    def bare(*given, **named):
        return init(*given, **named)._replace(unlearned=None)

    def unscored(*given, **named):
        return replace(made(*given, **named), num_draws=0)

    if part == UNLEARNED:
        return mock.patch.object(OnlineLearner, "init", bare)
    return mock.patch.object(presets, "default_learner", unscored) if part == SCORES else contextlib.nullcontext()


@contextlib.contextmanager
def timed(owner: Any, name: str) -> Iterator[list[float]]:
    """Collects the seconds that are spent in a function."""
    spent, function = [], getattr(owner, name)

    def call(*given, **named):
        began = time.process_time()
        made = jax.block_until_ready(function(*given, **named))
        spent.append(time.process_time() - began)
        return made

    with mock.patch.object(owner, name, call):
        yield spent


def seconds(model: Any, ys: np.ndarray, left_out: str = "", learns: bool = False) -> dict[str, float]:
    """Processor time of a run, and of the checks in it that are calls."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(without(left_out))
        planning = stack.enter_context(timed(single_reader, "prepare"))
        called = {check: stack.enter_context(timed(Monitor, method)) for check, method in CALLED.items()}
        began = time.process_time()
        bs.learn(model, ys, learn="all" if learns else (), progress=False, warn=lambda sentence: None)
        whole = time.process_time() - began - sum(planning)
    return {"whole": whole} | {check: sum(spent) for check, spent in called.items()}


def rows_of(name: str) -> tuple[Any, np.ndarray]:
    if name in MODELS[:-1]:
        case = find(name)
        return case.build(), np.asarray(case.simulate(SEED, ROWS).ys)
    model = ChaoticRNN.random(10, key=jax.random.key(SEED))
    return model, np.asarray(model.simulate(ROWS, key=jax.random.key(SEED))[1])


def shares(name: str, repeats: int) -> dict[str, float]:
    model, ys = rows_of(name)
    kinds: dict[str, dict[str, Any]] = {"": {}, UNLEARNED: {"left_out": UNLEARNED}, SCORES: {"left_out": SCORES}}
    if name != MODELS[-1]:  # a network of 10 states has 110 parameters: learning them takes all the time
        kinds["learned"] = {"learns": True}
    took: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 1):  # in turn, as the machine has other work; the first ones compile
        for kind, how in kinds.items():
            spent = seconds(model, ys, **how)
            took[kind] += [spent] if repeat else []
    least = {kind: {part: min(one[part] for one in runs) for part in runs[0]} for kind, runs in took.items()}
    whole, starting = least[""]["whole"], "filter at the starting parameters"
    found = {check: least[""][check] / whole for check in CALLED if check != starting}
    found[UNLEARNED] = 1 - least[UNLEARNED]["whole"] / whole
    found["all checks"] = sum(found.values())
    found[SCORES] = 1 - least[SCORES]["whole"] / whole
    if "learned" in least:
        found[starting] = least["learned"][starting] / least["learned"]["whole"]
    return {"microseconds a row": round(1e6 * whole / ROWS, 1)} | {k: round(v, 4) for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="Of models. Default: all.")
    parser.add_argument("--repeats", type=int, default=12)
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
