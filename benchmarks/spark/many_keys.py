"""A million keys on Spark: state on disk, and the memory of an executor.

    .venv-spark/bin/python -m benchmarks.spark.many_keys

Two states, linear and Gaussian, float32, an own λ for each key. Each micro-batch has a row of every key. One executor
with one core. The same with a tenth of the keys, in buckets of the same size, says how memory grows.
"""

import itertools
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
from benchmarks.spark.cluster import clean_up, commits, executors_below, memory_megabytes, session

RESULTS = Path(__file__).parents[1] / "results" / "spark_many_keys.json"
KEYS, IN_A_BUCKET, BATCHES, PARTITIONS = (100_000, 1_000_000), 1000, 3, 8
CACHE_MEGABYTES = 128


def write_files(folder: Path, keys: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "in").mkdir(parents=True)
    names = pa.array([f"sensor-{i}" for i in range(keys)])
    for batch in range(BATCHES):
        ys = np.random.default_rng(batch).normal(size=(2, keys))
        table = pa.table({"id": names, "at": np.full(keys, batch), "y0": ys[0], "y1": ys[1]})
        path = folder / "in" / f"{batch:03d}.parquet"
        pq.write_table(table, path, row_group_size=100_000)
        os.utime(path, (1000 + batch, 1000 + batch))


def query(folder: Path, keys: int) -> None:
    """Processes all files and writes Spark's state metrics. Then waits until the parent process ends it."""
    cache = {
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": str(CACHE_MEGABYTES),
    }
    spark = session(PARTITIONS, executors=1, **cache)
    reader = spark.readStream.schema("id string, at bigint, y0 double, y1 double").option("maxFilesPerTrigger", 1)
    model = bs.LinearGaussian.random(2, 2, key=jax.random.key(0))
    options: dict[str, Any] = {"columns": bs.Columns(time="at"), "buckets": keys // IN_A_BUCKET}
    results = bs.spark.stream(model, reader.parquet(str(folder / "in")), "id", **options)
    running = bs.spark.write(results, str(folder / "results"), str(folder / "checkpoint"), availableNow=True)
    running.awaitTermination()
    metrics = running.lastProgress["stateOperators"][0]
    (folder / "progress").write_text(json.dumps(metrics, default=str))
    sys.stdin.read()
    spark.stop()


def measured(keys: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    try:
        write_files(folder, keys)
        command = [sys.executable, "-m", "benchmarks.spark.many_keys", str(folder), str(keys)]
        with (folder / "log").open("ab") as log:
            driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        ends, most = [time.monotonic()], {"executor": 0.0, "worker": 0.0}
        while not (folder / "progress").exists():
            if driver.poll() is not None:
                raise RuntimeError(f"The query has failed: {(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.5)
            for part, pids in executors_below(driver.pid).items():
                most[part] = max(most[part], _together(pids))
            ends += [time.monotonic()] if commits(folder / "checkpoint") >= len(ends) else []
        found = told(folder, keys) | {
            "seconds_of_each_micro_batch": [round(end - start, 1) for start, end in itertools.pairwise(ends)],
            "java_megabytes_at_most": most["executor"],
            "python_megabytes_at_most": most["worker"],
        }
        driver.communicate(b"")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        clean_up()


def _together(pids: list[int]) -> float:
    """Memory of all Python processes of an executor, or of its Java part, now."""
    try:
        return round(sum(memory_megabytes(pids, "VmRSS")), 1)
    except OSError:  # one has just ended
        return 0.0


def told(folder: Path, keys: int) -> dict[str, Any]:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    results = ds.dataset(folder / "results", partitioning="hive").to_table(columns=["id", "t"])
    state = sum(path.stat().st_size for path in (folder / "checkpoint" / "state").rglob("*") if path.is_file())
    progress = json.loads((folder / "progress").read_text())
    return {
        "rows": len(results),
        "keys": pc.count_distinct(results["id"]).as_py(),
        "every_row_once": len(results) == keys * BATCHES and pc.max(results["t"]).as_py() == BATCHES,
        "checkpoint_state_megabytes": round(state / 2**20, 1),
        "rocksdb_memory_megabytes": round(progress["memoryUsedBytes"] / 2**20, 1),
        "rocksdb_files_megabytes": round(int(progress["customMetrics"].get("rocksdbSstFileSize", 0)) / 2**20, 1),
    }


def main() -> None:
    if len(sys.argv) > 1:
        return query(Path(sys.argv[1]), int(sys.argv[2]))
    found: dict[str, Any] = {"settings": {"keys_in_a_bucket": IN_A_BUCKET, "partitions": PARTITIONS}}
    found["settings"] |= {"micro_batches": BATCHES, "rocksdb_cache_megabytes": CACHE_MEGABYTES}
    for keys in KEYS:
        found[str(keys)] = measured(keys)
        print(keys, json.dumps(found[str(keys)], indent=1), flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
