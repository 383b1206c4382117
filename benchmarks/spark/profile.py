"""Where the processor time of a row goes on Spark: one executor, the query of `throughput`, part by part.

    .venv-spark/bin/python -m benchmarks.spark.profile [exact | learned]

The functions that a worker calls for the rows of a bucket are timed, each without those that it calls. The rest of a
Python process is pyspark's own: sockets, Arrow and pandas. Of the Java part, the tasks are by Spark's event log, the
compiler and the garbage collector by the names of their threads.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spark import throughput
from benchmarks.spark.cluster import TICKS, clean_up, commits, executors_below, processor_seconds
from benchmarks.spark.timed_worker import PARTS, WHERE, TimedProcessor, packed

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "spark_profile.json"


def query(folder: Path, name: str, run: Path) -> None:
    """The query of `throughput` with a processor whose parts are timed."""
    from backstream.engine.spark import frames, processor

    frames.packed, processor.BucketProcessor = packed, TimedProcessor
    log = {"enabled": "true", "dir": f"file://{run}", "rolling.enabled": "false", "compress": "false"}
    throughput.query(folder, name, 1, run, **{f"spark.eventLog.{key}": value for key, value in log.items()})


# ---- what is measured ------------------------------------------------------------------------------------------------
THREADS = {"compiler": ("C1 ", "C2 "), "garbage": ("GC ", "G1 ", "VM ")}
"""Java's threads by how their names begin."""


def thread_seconds(thread: Path, names: tuple[str, ...]) -> float:
    """The processor time of a thread, if it has such a name."""
    try:
        name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(")")
    except FileNotFoundError:  # it has just ended
        return 0.0
    return sum(int(field) for field in rest.split()[11:13]) / TICKS if name.startswith(names) else 0.0


def snapshot(driver: int, run: Path) -> dict[str, Any]:
    below, parts = executors_below(driver), dict.fromkeys(PARTS, 0.0)
    for file in (run / "clocks").iterdir():
        for part, seconds in json.loads(file.read_text()).items():
            parts[part] += seconds
    threads = [thread for pid in below["executor"] for thread in Path(f"/proc/{pid}/task").iterdir()]
    return {
        "at": 1000 * time.time(),
        "java": processor_seconds(below["executor"]),
        **{what: sum(thread_seconds(thread, names) for thread in threads) for what, names in THREADS.items()},
        "python": processor_seconds(below["worker"]),
        "parts": parts,
    }


def measured(folder: Path, name: str) -> dict[str, Any]:
    run = folder / "run"
    (run / "clocks").mkdir(parents=True)
    paths = [str(ROOT), str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {WHERE: str(run / "clocks"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "benchmarks.spark.profile", "query", str(folder), name, str(run)]
    with (folder / "log").open("ab") as log:
        driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
    taken = []
    for wanted in (throughput.WARM[name], throughput.WARM[name] + throughput.BATCHES[name]):
        while commits(run / "checkpoint") < wanted:
            if driver.poll() is not None:
                raise RuntimeError(f"The query has failed: {(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.02)
        taken.append(snapshot(driver.pid, run))
    driver.communicate(b"")
    return by_part(*taken, java_tasks(run, taken[0]["at"], taken[1]["at"]), throughput.BATCHES[name])


def java_tasks(run: Path, start: float, end: float) -> dict[str, float]:
    """Processor seconds of the tasks that ended in a time, before the shuffle and after it."""
    events = [json.loads(line) for file in run.glob("app-*") for line in file.read_text().splitlines()]
    first = {
        event["Stage Info"]["Stage ID"]
        for event in events
        if event["Event"] == "SparkListenerStageSubmitted" and not event["Stage Info"]["Parent IDs"]
    }
    spent = {"before the shuffle": 0.0, "after the shuffle": 0.0}
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd" and start < event["Task Info"]["Finish Time"] <= end:
            where = "before the shuffle" if event["Stage ID"] in first else "after the shuffle"
            spent[where] += event["Task Metrics"]["Executor CPU Time"] / 1e9
    return spent


def by_part(before: dict, after: dict, tasks: dict[str, float], batches: int) -> dict[str, Any]:
    """Microseconds for a row."""
    count = throughput.KEYS * throughput.ROWS * batches
    java, python, compiler, garbage = (after[one] - before[one] for one in ("java", "python", *THREADS))
    parts = {part: after["parts"][part] - before["parts"][part] for part in PARTS}
    every = {
        "Java: read files, shuffle": tasks["before the shuffle"],
        "Java: state, Python, write results": tasks["after the shuffle"],
        "Java: compile": compiler,
        "Java: collect garbage": garbage,
        "Java: network and the rest": java - compiler - garbage - sum(tasks.values()),
        **{f"Python: {part}": seconds for part, seconds in parts.items()},
        "Python: pyspark's own": python - sum(parts.values()),
    }
    return {part: round(1e6 * seconds / count, 2) for part, seconds in every.items()}


def main() -> None:
    if sys.argv[1:2] == ["query"]:
        return query(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in sys.argv[1:] or throughput.MODELS:
        folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
        os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
        try:
            ys = throughput.simulated(name)
            np.save(folder / "ys.npy", ys)
            throughput.write_files(folder, ys)
            found[name] = measured(folder, name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            clean_up()
        print(name, json.dumps(found[name], indent=1), flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
