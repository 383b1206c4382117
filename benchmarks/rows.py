"""What a row costs: `python -m benchmarks.rows`.

The paper's chaotic networks. Microseconds of the processor, one thread. What is compared takes turns in one process,
and the least of the rounds counts, because other work on the machine can only add to it. Four parts:

- the filter alone beside a plain extended Kalman filter, which reads the same model with its noise taken as normal;
- the other ways to multiply a prediction with an emission, each on a model of its own;
- a row with λ learned, default settings, beside the default of version 0.1: `Innovation` with a window of 16 rows and
  four trajectories, without the predictive draws that it did not have;
- the seconds of the processor that planning and compiling take.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax

from backstream import Settings, StateSpaceModel
from backstream.estimators import FixedLag
from backstream.families import Guided
from backstream.learning import OnlineLearner, build
from backstream.models import ChaoticRNN
from benchmarks.harness import console, in_turns, machine, rounded, table
from benchmarks.pages import filled
from benchmarks.timing.programs import KEY, Program
from benchmarks.wide_emissions import Network
from benchmarks.zoo.__main__ import use_one_thread
from reproduction.version_0_1.innovation import Innovation

RESULTS = Path(__file__).parent / "results" / "rows.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
STATES = (1, 2, 4, 10, 20, 50, 100)
LEARNED = (2, 5, 10, 20)
ROUNDS = 15
MOST = {1: 8.0, 2: 8.0}
"""Times the extended Kalman filter that a row may take, where that is not 3.5."""


def extended_kalman(p: ChaoticRNN, ys: jax.Array) -> jax.Array:
    """As in textbooks: dense covariances, slopes by differentiation, one solve a row."""
    d = len(p.W)
    Q, R = p.transition_scale**2 * jnp.eye(d), p.emission_scale**2 * jnp.eye(d)

    def move(x):
        return p.transition(x).mean

    def see(x):
        return p.emission(x).base_dist.loc

    def step(before, y):
        mean, cov = before
        F = jax.jacfwd(move)(mean)
        mean, cov = move(mean), F @ cov @ F.T + Q
        H = jax.jacfwd(see)(mean)
        S = H @ cov @ H.T + R
        gain = jnp.linalg.solve(S, H @ cov).T
        mean, cov = mean + gain @ (y - see(mean)), cov - gain @ S @ gain.T
        after = mean, (cov + cov.T) / 2
        return after, after

    return jax.lax.scan(step, (jnp.zeros(d), Q), ys)[1]


def guided(p: StateSpaceModel, q: Guided, ys: jax.Array) -> Any:
    def step(state, y):
        state = q.update(p, state, y)
        return state, (*q.moments(state), q.log_score(state))

    return jax.lax.scan(step, q.init(p), ys)[1]


def least(runs: dict[str, Callable[[], Any]], rows: int, rounds: int) -> dict[str, float]:
    """Microseconds a row."""
    return {name: 1e3 * min(values) / rows for name, values in in_turns(runs, rounds).items()}


def alone(states: int, rounds: int) -> dict[str, Any]:
    p, rows = ChaoticRNN.random(states, key=KEY), 2000 if states <= 20 else 200
    ys = p.simulate(rows, key=KEY)[1]
    began = time.process_time()
    q = Guided.from_model(p)
    jax.jit(lambda ys: guided(p, q, ys)).lower(ys)
    planned = time.process_time() - began
    ours = Program(lambda ys: guided(p, q, ys), ys)
    found = least({"ekf": Program(lambda ys: extended_kalman(p, ys), ys), "ours": ours}, rows, rounds)
    return found | {"prepare_s": planned + ours.seconds, "update": type(q.plan.update).__name__}


class Volatilities(StateSpaceModel):
    """Log volatilities of three series: each column reads one state, and its law is not normal around it."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.95 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.zeros(3), jnp.exp(0.5 * x)).to_event(1)


class Level(StateSpaceModel):
    """Three levels seen with normal noise: linear and Gaussian."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.95 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)


OTHERS: dict[str, Callable[[], StateSpaceModel]] = {
    "closed form, 3 states": Level,
    "one grid in 3 directions": Volatilities,
    "wide, normal, 10 states to 5 columns": lambda: Network.random(10, 5, "normal", 0),
    "wide, counts, 10 states to 5 columns": lambda: Network.random(10, 5, "poisson", 0),
    "wide, joint Student-t, 4 states to 5 columns": lambda: Network.random(4, 5, "joint student", 0),
}


def other(name: str, rounds: int) -> dict[str, Any]:
    p, rows = OTHERS[name](), 500
    ys = jnp.asarray(p.simulate(rows, key=KEY)[1], float)
    q = Guided.from_model(p)
    program = Program(lambda ys: guided(p, q, ys), ys)
    return {"ours": least({"ours": program}, rows, rounds)["ours"], "update": type(q.plan.update).__name__}


def learned(states: int, rounds: int) -> dict[str, Any]:
    """A row through the learner, its block of 256 rows in one compiled call."""
    p, rows = ChaoticRNN.random(states, key=KEY), 1024
    ys = np.asarray(p.simulate(rows, key=KEY)[1])
    watched, q, key = build(p, Settings())
    old = OnlineLearner(p, FixedLag(16, 4), optax.adam(3e-3), num_draws=0)
    off = build(p, Settings(learn=False))[0].learner
    learners = {"ours": (watched.learner, q), "not learned": (off, q)}
    learners["version 0.1"] = old, Innovation.from_model(p, 64, key=KEY)
    states_of = {name: learner.init(family, key=key) for name, (learner, family) in learners.items()}

    def run(name):
        def scan():
            states_of[name], infos = learners[name][0].scan(states_of[name], ys)
            return infos.mean

        return scan

    return least({name: run(name) for name in learners}, rows, rounds)


def markdown(found: dict[str, Any]) -> str:
    def line(name, part):
        ratio, most = part["ours"] / part["ekf"], MOST.get(int(name), 3.5)
        prepare = f"{part['prepare_s']:.1f}"
        return [name, f"{part['ekf']:.1f}", f"{part['ours']:.1f}", f"{ratio:.2f}", f"≤ {most:g}", prepare]

    head = ["states", "extended Kalman filter, µs", "filter, µs", "ratio", "wanted", "plan and compile, s"]
    text = table(head, [line(*pair) for pair in found["filter"].items()])
    if "others" in found:
        rows = [[name, part["update"], f"{part['ours']:.1f}"] for name, part in found["others"].items()]
        text += "\n" + table(["other updates", "update", "µs"], rows)
    if "learned" in found:
        names = "version 0.1", "ours", "not learned"
        rows = [
            [states, *(f"{part[name]:.0f}" for name in names), f"{part['ours'] / part['version 0.1']:.2f}"]
            for states, part in found["learned"].items()
        ]
        text += "\n" + table(["states", "version 0.1, µs", "λ learned, µs", "not learned, µs", "ratio"], rows)
    return text


PARTS: dict[str, tuple[Any, Callable[[Any, int], dict[str, Any]]]] = {
    "filter": (STATES, alone),
    "others": (OTHERS, other),
    "learned": (LEARNED, learned),
}
SECTIONS = {"rows": lambda: "\n" + markdown(json.loads(RESULTS.read_text()))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=PARTS, help="one part; the results of the others stay")
    parser.add_argument("--render", action="store_true", help="only write the tables from the results")
    arguments = parser.parse_args()
    if not arguments.render:
        if os.environ.get("NPROC") != "1":  # XLA counts its threads once, when the first of the imports above starts it
            use_one_thread()
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.rows", *sys.argv[1:]])
        found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found |= {"command": "python -m benchmarks.rows", "machine": machine()}
        for part, (names, run) in PARTS.items():
            for name in names if arguments.only in (None, part) else ():
                found.setdefault(part, {})[str(name)] = rounded(run(name, arguments.rounds))
                console.print(f"{part}, {name}: {json.dumps(found[part][str(name)])}", style="dim")
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(), SECTIONS))


if __name__ == "__main__":
    main()
