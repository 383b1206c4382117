"""The query that is disturbed: the driver of a small cluster, in a process of its own.

    python -m tests.soak.spark_query RUN own 30 --partitions 2

It reads RUN/in, a micro-batch for each file, goes on from a checkpoint that is there, and ends after so many files.
While it runs, RUN/active has the number of tasks that are running. Where it fails, RUN/error says how.
"""

import argparse
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import backstream as bs
from benchmarks.spark.cluster import commits, session

OBSERVED = ("y0", "y1")
SCHEMA = "id string, at int, y0 double, y1 double"
BUCKETS = 2
QUICK_START = {
    f"spark.{part}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for part in ("driver", "executor")
}
"""Processes that live for seconds need no optimizing compiler."""
LIMITS = ("spark.stage.maxConsecutiveAttempts", "spark.task.maxFailures", "spark.deploy.maxExecutorRetries")
"""The documented settings that let a query survive a storm."""


def model() -> bs.StochasticVolatility:
    """Its posterior is not exact: λ moves with each row."""
    return bs.StochasticVolatility(*(np.full(2, value) for value in (0.0, 0.95, 0.3)))


def report_activity(spark: Any, path: Path) -> None:
    """Writes how many tasks are running, some fifty times a second, until the process ends."""
    tracker = spark.sparkContext.statusTracker()
    incoming = path.with_suffix(".incoming")
    while True:
        jobs = [job for job in map(tracker.getJobInfo, tracker.getActiveJobsIds()) if job is not None]
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        incoming.write_text(str(sum(stage.numActiveTasks for stage in stages if stage is not None)))
        os.replace(incoming, path)
        time.sleep(0.02)


def run(folder: Path, kind: str, files: int, spark: Any) -> None:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    options: dict[str, Any] = {"columns": bs.Columns(time="at", observed=OBSERVED), "buckets": BUCKETS}
    frame = reader.json(str(folder / "in"))
    if kind == "common":
        query = bs.spark.learn(model(), frame, "id", out=str(folder), **options)
    else:
        results = bs.spark.stream(model(), frame, "id", **options)
        query = bs.spark.write(results, str(folder / "results"), str(folder / "checkpoint"))
    while query.isActive and commits(folder / "checkpoint") < files:
        time.sleep(0.1)
    if not query.isActive:
        query.awaitTermination()  # raises what ended it
    query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=["own", "common"])
    parser.add_argument("files", type=int)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--repartition", action="store_true", help="change the checkpoint to so many partitions first")
    parser.add_argument("--default-limits", action="store_true", help="without the documented settings")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if asked.default_limits:
        for name in LIMITS:
            del bs.spark.SETTINGS[name]
    spark = session(asked.partitions, **QUICK_START)
    threading.Thread(target=report_activity, args=(spark, asked.folder / "active"), daemon=True).start()
    try:
        if asked.repartition:
            spark._streamingCheckpointManager.repartition(str(asked.folder / "checkpoint"), asked.partitions)
        run(asked.folder, asked.kind, asked.files, spark)
    except Exception as error:
        (asked.folder / "error").write_text(f"{type(error).__name__}: {error}")
        raise
    spark.stop()


if __name__ == "__main__":
    main()
