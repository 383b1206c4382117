"""Many streams at once: how much faster than one at a time, in how much memory, and what a common λ learns from them.

    python -m benchmarks.fleet

Chaotic RNNs with two states, the default window (16 observations, 4 trajectories), 8 hidden units, one core. Times are
those of the processor, so that other work on the machine does not count; for two processes they are those of the clock,
the median of some blocks.
"""

import os

os.environ.setdefault("NPROC", "1")

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax

from backstream.estimators import FixedLag, RecursiveScore, Renewal
from backstream.learning import OnlineLearner, Panel, Settings, default_learner
from backstream.models import ChaoticRNN
from benchmarks.harness import Judge, Results, console
from reproduction.version_0_1.innovation import Innovation

RESULTS = Path(__file__).parent / "results" / "fleet.json"
SETTINGS = {
    "dim": 2,
    "width": 8,
    "streams": 10_000,
    "most_streams": 100_000,
    "lanes": 256,
    "warm_ticks": 20,
    "ticks": 5,
    "singles": 300,
    "short_streams": 1000,
    "short_length": 100,
    "tick_rows": 64,
    "fresh": 4000,
    "seeds": [0, 1],
    "working_streams": 2048,
    "windows": [[8, 4], [16, 4], [32, 4], [16, 8]],
    "particles": [50, 100, 200],
}


def case(seed: int = 0):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(11), seed), 5)
    p = ChaoticRNN.random(SETTINGS["dim"], key=keys[0])
    return p, Innovation.from_model(p, SETTINGS["width"], key=keys[1]), keys


def names(count: int) -> np.ndarray:
    return np.stack([np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)], 1)


def opened(count: int, common: bool = True, mesh=None):
    p, q, keys = case()
    learner = default_learner(p, Settings(method="window", width=SETTINGS["width"]))
    panel = Panel(learner, q, key=keys[2], common=common, lanes=SETTINGS["lanes"], mesh=mesh)
    return panel, panel.begin(panel.open(count), np.arange(count), names(count))


def simulated(p, count: int, length: int, key) -> np.ndarray:
    """[length, count, dy]."""
    ys = jax.jit(jax.vmap(lambda key: p.simulate(length, key=key)[1]))(jax.random.split(key, count))
    return np.asarray(ys).swapaxes(0, 1)


def throughput() -> dict:
    """Observations per processor second: all streams together, one call for each observation of each, and one stream's
    observations in blocks, which only a stream that is there already can have."""
    count, warm, ticks = SETTINGS["streams"], SETTINGS["warm_ticks"], SETTINGS["ticks"]
    panel, state = opened(count)
    ys = simulated(panel.learner.model, count, warm + ticks, case()[2][3])
    every = np.arange(count)
    for t in range(warm):
        state, _ = panel.read(state, every, np.zeros(count), ys[t])
    began = time.process_time()
    for t in range(warm, warm + ticks):
        state, _ = panel.read(state, every, np.zeros(count), ys[t])
    together = count * ticks / (time.process_time() - began)

    learner, states = panel.learner, []
    for stream in range(3):
        alone, _ = learner.step(learner.init(panel.q, key=jax.random.key(stream)), ys[0, stream])
        states.append(learner.scan(alone, ys[1:warm, stream])[0])
    began = time.process_time()
    for i in range(SETTINGS["singles"]):
        states[i % 3], _ = learner.step(states[i % 3], ys[i % len(ys), i % 3])
    one_by_one = SETTINGS["singles"] / (time.process_time() - began)
    rows = np.tile(ys[:, 0], (60, 1))[:1024]
    alone, _ = learner.scan(states[0], rows[:256])
    began = time.process_time()
    learner.scan(alone, rows)
    in_blocks = len(rows) / (time.process_time() - began)
    return {
        "together": round(together),
        "one_at_a_time": round(one_by_one, 1),
        "one_stream_in_blocks": round(in_blocks),
        "ratio": round(together / one_by_one, 1),
        "ratio_to_blocks": round(together / in_blocks, 2),
    }


def held(count: int, common: bool) -> dict:
    """Bytes of the state for each stream, and what the cost model says: L dy observations and two states a of the
    family, t, the key and two counts, with the window's own count; where λ is not common, it, its mean and Adam's two
    moments, with Adam's two counts, and beside λ and its mean what is not learned."""
    panel, state = opened(count, common)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state.slots) if hasattr(leaf, "nbytes"))
    d, lag = SETTINGS["dim"], Settings().lag
    a, numbers = d + d * (d + 1) // 2, [leaf for leaf in jax.tree.leaves(panel.q) if hasattr(leaf, "size")]
    P, unlearned = (
        sum(leaf.size for leaf in numbers if eqx.is_inexact_array(leaf) == learned) for learned in (True, False)
    )
    predicted = 4 * (lag * d + 2 * a) + 24 + (0 if common else 16 * P + 8 * unlearned + 8)
    return {"streams": count, "bytes_per_stream": total / count, "predicted": predicted}


def peak(count: int) -> dict:
    """Of all memory, in a process of its own, after two ticks with a row of every stream."""
    panel, state = opened(count)
    for _ in range(2):
        state, _ = panel.read(state, np.arange(count), np.zeros(count), np.zeros((count, SETTINGS["dim"])))
    return {"streams": count, "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)}


def apart(count: int) -> dict:
    code = f"import json; from benchmarks.fleet import peak; print(json.dumps(peak({count})))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def one_long(seed: int) -> dict:
    p, q, keys = case(seed)
    learner = default_learner(p, Settings(method="window", width=SETTINGS["width"]))
    ys = np.asarray(p.simulate(SETTINGS["short_streams"] * SETTINGS["short_length"], key=keys[3])[1])
    state, _ = learner.step(learner.init(q, key=keys[2]), ys[0])
    return judged(p, keys, learner.scan(state, ys[1:])[0].average)


def many_short(seed: int) -> dict:
    """Each tick has a row of as many streams as it may; the streams take turns."""
    p, q, keys = case(seed)
    count, length, tick_rows = SETTINGS["short_streams"], SETTINGS["short_length"], SETTINGS["tick_rows"]
    learner = default_learner(p, Settings(method="window", width=SETTINGS["width"]))
    panel = Panel(learner, q, key=keys[2], common=True, lanes=tick_rows)
    state = panel.begin(panel.open(count), np.arange(count), names(count))
    ys = simulated(p, count, length, keys[4]).reshape(count * length, -1)
    slots, row = np.tile(np.arange(count), length), np.arange(count * length)
    # a tick never holds two rows of a stream: it ends with the streams' turn too
    ticks = row // count * -(-count // tick_rows) + row % count // tick_rows
    state, _ = panel.read(state, slots, ticks, ys)
    return judged(p, keys, state.common.average) | {"steps": int(state.common.t)}


def work(estimator, streams: int) -> float:
    """Processor microseconds for one observation of many streams with a common λ."""
    p, q, keys = case()
    panel = Panel(OnlineLearner(p, estimator, optax.adam(1e-3)), q, key=keys[2], common=True, lanes=SETTINGS["lanes"])
    state = panel.begin(panel.open(streams), np.arange(streams), names(streams))
    ys, taken = np.zeros((streams, SETTINGS["dim"])), []
    for _ in range(SETTINGS["warm_ticks"] + SETTINGS["ticks"]):
        began = time.process_time()
        state, _ = panel.read(state, np.arange(streams), np.zeros(streams), ys)
        taken.append(time.process_time() - began)
    return round(1e6 * np.median(taken[SETTINGS["warm_ticks"] :]) / streams, 2)


def judged(p, keys, q) -> dict:
    found = Judge(p, SETTINGS["fresh"], key=jax.random.fold_in(keys[0], 1)).errors(q)
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def main() -> None:
    results = Results(RESULTS, "python -m benchmarks.fleet", SETTINGS)
    console.print(results.run("throughput", throughput))
    for count in (1000, SETTINGS["streams"], SETTINGS["most_streams"]):
        console.print(results.run(f"memory, {count} streams", lambda count=count: held(count, True)))
    console.print(results.run("memory, 1000 streams, own", lambda: held(1000, False)))
    most = SETTINGS["most_streams"]
    console.print(results.run(f"peak, {most} streams", lambda: apart(most)))
    for lag, trajectories in SETTINGS["windows"]:
        name = f"work, window of {lag}, {trajectories} trajectories"
        window = FixedLag(lag, trajectories)
        console.print(name, results.run(name, lambda window=window: work(window, SETTINGS["working_streams"])))
    for particles in SETTINGS["particles"]:
        score = RecursiveScore(particles, objective=Renewal(0.9))
        streams = SETTINGS["working_streams"] // 8
        name = f"work, recursion with {particles} particles"
        console.print(name, results.run(name, lambda score=score, streams=streams: work(score, streams)))
    for seed in SETTINGS["seeds"]:
        p, q, keys = case(seed)
        judge = Judge(p, SETTINGS["fresh"], key=jax.random.fold_in(keys[0], 1))
        results.run(f"limit, seed {seed}", lambda judge=judge: judge.limit(5000))
        results.run(f"before, seed {seed}", lambda p=p, keys=keys, q=q: judged(p, keys, q))
        console.print(results.run(f"one long stream, seed {seed}", lambda seed=seed: one_long(seed)))
        console.print(results.run(f"short streams, seed {seed}", lambda seed=seed: many_short(seed)))


if __name__ == "__main__":
    main()
