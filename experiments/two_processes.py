"""Two processes on loopback against one, on independent streams: how many more observations a second.

    python -m experiments.two_processes

Each stream has its own λ. Seconds are those of the clock, which mean little unless each process has a core to itself,
and those of the processor, which other work on the machine does not change.
"""

import json
import os
import subprocess
import sys
import time

import jax
import numpy as np

from .fleet import case, names
from .harness import Results, console

SETTINGS = {"dim": 2, "width": 8, "streams": 2048, "warm_ticks": 17, "ticks": 10, "port": 29_617}


def work(count: int, index: int) -> dict:
    from backstream.io.hosts import build_mesh, join
    from backstream.learning import Panel, Settings, default_learner

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if count > 1:
        join(f"127.0.0.1:{SETTINGS['port']}", count, index, 600)
    p, q, keys = case()
    learner = default_learner(p, Settings(width=SETTINGS["width"]))
    panel = Panel(learner, q, key=keys[2], common=False, mesh=build_mesh())
    streams = SETTINGS["streams"]
    every, ys = np.arange(streams), np.zeros((streams, SETTINGS["dim"]))
    state = panel.begin(panel.open(streams), every, names(streams))
    for _ in range(SETTINGS["warm_ticks"]):
        state, _ = panel.read(state, every, np.zeros(streams), ys)
    wall, processor = time.monotonic(), time.process_time()
    for _ in range(SETTINGS["ticks"]):
        state, _ = panel.read(state, every, np.zeros(streams), ys)
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    rows = streams * SETTINGS["ticks"]
    return {"rows": rows, "seconds": round(wall, 3), "processor_seconds": round(processor, 3)}


def together(count: int) -> list[dict]:
    command = [sys.executable, "-m", "experiments.two_processes", str(count)]
    options = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "NPROC": "1"}}
    children = [subprocess.Popen([*command, str(i)], **options) for i in range(count)]
    return [json.loads(child.communicate(timeout=1200)[0].splitlines()[-1]) for child in children]


def main() -> None:
    results = Results("two_processes", SETTINGS)
    one = results.run("one process", lambda: {"processes": together(1), "load": os.getloadavg()[0]})
    two = results.run("two processes", lambda: {"processes": together(2), "load": os.getloadavg()[0]})
    for name in ("seconds", "processor_seconds"):
        slowest = max(process[name] for process in two["processes"])
        console.print(f"{name}: {one['processes'][0][name] / slowest:.2f} times the throughput of one process")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(work(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
