"""Rows per processor second of a fleet on Spark, with one executor and with two, against `Panel` in one process.

    .venv-spark/bin/python -m benchmarks.spark.throughput

10 000 keys, each with an own λ; micro-batches of 100 000 rows in Parquet files; float32; processor time, so that other
work on the machine counts little. `learned` is stochastic volatility with two states, whose λ moves; `exact` is linear
and Gaussian with two states, where a row costs least and Spark's share is largest. The time of executors is that of
their Java part and of their Python processes; `profile` divides it further.
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

import jax
import numpy as np

import backstream as bs
from backstream.engine.spark.recipe import learned_alone
from backstream.engine.spark.worker import ONE_THREAD
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words
from benchmarks.spark.cluster import clean_up, commits, executors_below, processor_seconds, session

RESULTS = Path(__file__).parents[1] / "results" / "spark_throughput.json"
KEYS, ROWS, FILES = 10_000, 10, 2
"""Streams, rows of each in a micro-batch, and files of a micro-batch."""
WARM, BATCHES = {"exact": 8, "learned": 3}, {"exact": 12, "learned": 4}
"""Micro-batches before and while the clock runs."""
BUCKETS = 16
MODELS = {
    "learned": lambda: bs.StochasticVolatility(*(np.full(2, value) for value in (0.0, 0.95, 0.3))),
    "exact": lambda: bs.LinearGaussian.random(2, 2, key=jax.random.key(0)),
}


def simulated(name: str) -> np.ndarray:
    """[batch, row, key, column]"""
    batches = WARM[name] + BATCHES[name]
    simulate = jax.jit(jax.vmap(lambda key: MODELS[name]().simulate(batches * ROWS, key=key)[1]))
    ys = np.asarray(simulate(jax.random.split(jax.random.key(1), KEYS)), np.float32)
    return ys.reshape(KEYS, batches, ROWS, 2).transpose(1, 2, 0, 3)


def sensor(i: int) -> str:
    return f"sensor-{i}"


def write_files(folder: Path, ys: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "in").mkdir()
    names = np.array([sensor(i) for i in range(KEYS)])
    for batch, part in enumerate(ys):
        at = np.repeat(np.arange(batch * ROWS, (batch + 1) * ROWS), KEYS)
        flat = part.reshape(-1, 2).astype(float)
        table = pa.table({"id": np.tile(names, ROWS), "at": at, "y0": flat[:, 0], "y1": flat[:, 1]})
        size = -(-len(table) // FILES)
        for file in range(FILES):
            path = folder / "in" / f"{batch:03d}-{file}.parquet"
            pq.write_table(table.slice(file * size, size), path)
            os.utime(path, (1000 + batch, 1000 + batch))


# ---- in processes of their own ---------------------------------------------------------------------------------------
def panel(folder: Path, name: str) -> None:
    """Processor seconds of the micro-batches that count, in one process."""
    ys = np.load(folder / "ys.npy")
    recipe = learned_alone(MODELS[name](), bs.Settings(), None, "float32")
    one = Panel(recipe.learner, recipe.q, key=recipe.key, common=False, lanes=256)
    state = one.begin(one.open(KEYS), np.arange(KEYS), [words(sensor(i)) for i in range(KEYS)])
    slots, ticks = np.tile(np.arange(KEYS), ROWS), np.repeat(np.arange(ROWS), KEYS)
    for batch, part in enumerate(ys):
        if batch == WARM[name]:
            begun = time.process_time()
        state, _ = one.read(state, slots, ticks, part.reshape(-1, 2))
    print(json.dumps({"seconds": time.process_time() - begun}))  # pyright: ignore[reportPossiblyUnboundVariable]


def query(folder: Path, name: str, executors: int, run: Path, **more: str) -> None:
    """Processes all files. Then waits until the parent process, which measures the executors, ends it."""
    spark = session(partitions=2, executors=executors, **more)
    reader = spark.readStream.schema("id string, at bigint, y0 double, y1 double")
    frame = reader.option("maxFilesPerTrigger", FILES).parquet(str(folder / "in"))
    results = bs.spark.stream(MODELS[name](), frame, "id", columns=bs.Columns(time="at"), buckets=BUCKETS)
    bs.spark.write(results, str(run / "results"), str(run / "checkpoint"), availableNow=True).awaitTermination()
    sys.stdin.read()
    spark.stop()


# ---- what is measured ------------------------------------------------------------------------------------------------
def measured(folder: Path, name: str, executors: int) -> dict[str, Any]:
    run = folder / f"{name}-{executors}"
    command = [sys.executable, "-m", "benchmarks.spark.throughput", "query", str(folder), name, str(executors)]
    with (folder / "log").open("ab") as log:
        driver = subprocess.Popen([*command, str(run)], stdin=subprocess.PIPE, stdout=log, stderr=log)
    spent = []
    for wanted in (WARM[name], WARM[name] + BATCHES[name]):
        while commits(run / "checkpoint") < wanted:
            if driver.poll() is not None:
                raise RuntimeError(f"The query has failed: {(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.02)
        below = executors_below(driver.pid)
        spent.append([processor_seconds(below[part]) for part in ("executor", "worker")] + [time.monotonic()])
    driver.communicate(b"")
    java, python, clock = (end - start for start, end in zip(*spent, strict=True))
    rows, count = len(_rows(run)), KEYS * ROWS * BATCHES[name]
    if rows != KEYS * ROWS * (WARM[name] + BATCHES[name]):
        raise RuntimeError(f"{rows} rows came out.")
    return {
        "rows_per_processor_second": round(count / (java + python)),
        "java_microseconds_per_row": round(1e6 * java / count, 2),
        "python_microseconds_per_row": round(1e6 * python / count, 2),
        "rows_per_second_of_the_clock": round(count / clock),
    }


def _rows(run: Path) -> Any:
    import pyarrow.dataset as ds

    return ds.dataset(run / "results", partitioning="hive").to_table(columns=["t"])


def compared(folder: Path, name: str) -> dict[str, Any]:
    """One executor, two, and a panel in one process, by turns."""
    ys = simulated(name)
    np.save(folder / "ys.npy", ys)
    write_files(folder, ys)
    one, two = (measured(folder, name, executors) for executors in (1, 2))
    command = [sys.executable, "-m", "benchmarks.spark.throughput", "panel", str(folder), name]
    environment = os.environ | {"NPROC": "1", "XLA_FLAGS": ONE_THREAD}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    alone = KEYS * ROWS * BATCHES[name] / json.loads(ended.stdout.splitlines()[-1])["seconds"]
    return {
        "panel": {"rows_per_processor_second": round(alone), "microseconds_per_row": round(1e6 / alone, 2)},
        "one executor": one,
        "two executors": two,
        "one_over_panel": round(one["rows_per_processor_second"] / alone, 3),
        "two_over_panel": round(two["rows_per_processor_second"] / alone, 3),
        "two_over_one": round(two["rows_per_processor_second"] / one["rows_per_processor_second"], 3),
    }


def main() -> None:
    if sys.argv[1:2] == ["panel"]:
        return panel(Path(sys.argv[2]), sys.argv[3])
    if sys.argv[1:2] == ["query"]:
        return query(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    settings = {"keys": KEYS, "buckets": BUCKETS, "rows_of_a_key": ROWS, "micro_batches": BATCHES}
    found["settings"] = settings | {"jax": jax.__version__}
    for name in sys.argv[1:] or MODELS:
        folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
        os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
        try:
            found[name] = compared(folder, name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            clean_up()
        print(name, json.dumps(found[name], indent=1), flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
