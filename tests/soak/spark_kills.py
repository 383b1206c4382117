"""A fleet on Spark whose executors, Python workers and driver are killed (kill -9) ends as one that was left alone.

    make soak-spark
    python -m tests.soak.spark_kills --kills 20 --drivers 5 --storm 120

Two executors in processes of their own (`local-cluster`). Kills fall at random moments: while a task runs, and between
micro-batches. Every row must be there exactly once, with the numbers of the undisturbed run. A storm is a kill every
6 s. Only processes that descend from the driver of this script are killed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import backstream as bs

RESULTS = Path(__file__).parent / "results" / "spark_kills.json"
STREAMS, FILES, ROWS = 40, 12, 3
"""Streams, micro-batches, and rows of each stream in one of them."""
MODEL = {"dim": 2, "seed": 0}
STORM_EVERY = 6.0
SECONDS = 1500
"""What no driver may take."""


# ---- the driver, in a process of its own -----------------------------------------------------------------------------
def drive(folder: Path, run: Path, kind: str, partitions: int) -> None:
    """Reads all files, a micro-batch for each; goes on from a checkpoint that is there."""
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    builder = SparkSession.builder.master("local-cluster[2,1,700]").appName("backstream soak")
    small = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.executor.memory": "600m",
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**bs.spark.SETTINGS, **small}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    reader = spark.readStream.schema("id string, at int, y0 double, y1 double").option("maxFilesPerTrigger", 1)
    frame, model = reader.json(str(folder / "in")), bs.LinearGaussian.random(2, 2, key=jax.random.key(MODEL["seed"]))
    options: dict[str, Any] = {"columns": bs.Columns(time="at"), "buckets": 8}
    if kind == "common":
        query = bs.spark.learn(model, frame, "id", out=str(run), **options, availableNow=True)
    else:
        results = bs.spark.stream(model, frame, "id", **options)
        query = bs.spark.write(results, str(run / "results"), str(run / "checkpoint"), availableNow=True)
    query.awaitTermination()
    spark.stop()


# ---- processes -------------------------------------------------------------------------------------------------------
def descendants(root: int) -> dict[int, str]:
    """The processes below one, with their command lines."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue
    found, waiting = {}, [root]
    while waiting:
        here = waiting.pop()
        for child, parent in parents.items():
            if parent == here:
                found[child] = commands.get(child, "")
                waiting.append(child)
    return found


def victims(root: int) -> dict[str, list[int]]:
    below = descendants(root)
    return {
        "executor": [pid for pid, said in below.items() if "CoarseGrainedExecutorBackend" in said],
        "worker": [pid for pid, said in below.items() if "pyspark.daemon" in said],
    }


def kill_one(root: int, random: np.random.Generator) -> str | None:
    """Kills an executor or a Python worker, whichever falls; None where there is none yet."""
    there = {kind: pids for kind, pids in victims(root).items() if pids}
    if not there:
        return None
    kind = str(random.choice(sorted(there)))
    os.kill(int(random.choice(there[kind])), signal.SIGKILL)
    return kind


def end(driver: subprocess.Popen) -> None:
    """Ends a driver and all that it started."""
    below = descendants(driver.pid)
    for pid in [driver.pid, *below]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    driver.wait()


# ---- what is shown ---------------------------------------------------------------------------------------------------
class Soak:
    def __init__(self, folder: Path):
        self.folder, self.random = folder, np.random.default_rng(0)
        (folder / "in").mkdir()
        model = bs.LinearGaussian.random(2, 2, key=jax.random.key(MODEL["seed"]))
        ys = [np.asarray(model.simulate(FILES * ROWS, key=jax.random.key(i))[1], float) for i in range(STREAMS)]
        for number in range(FILES):
            lines = [
                json.dumps({"id": f"s{i}", "at": t, "y0": float(ys[i][t, 0]), "y1": float(ys[i][t, 1])})
                for t in range(number * ROWS, (number + 1) * ROWS)
                for i in range(STREAMS)
            ]
            file = folder / "in" / f"{number:03d}.json"
            file.write_text("\n".join(lines) + "\n")
            os.utime(file, (1000 + number, 1000 + number))

    def start(self, name: str, kind: str, partitions: int = 2) -> subprocess.Popen:
        arguments = ["drive", str(self.folder), str(self.folder / name), kind, str(partitions)]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs")}
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", "tests.soak.spark_kills", *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def batches(self, name: str) -> int:
        return len(list((self.folder / name / "results").glob("batch=*/_SUCCESS")))

    def rows(self, name: str) -> Any:
        import pyarrow.dataset as ds

        table = ds.dataset(self.folder / name / "results", partitioning="hive").to_table().to_pandas()
        return table.sort_values(["id", "at"], ignore_index=True)

    def compared(self, name: str, reference: str) -> dict[str, Any]:
        """Whether every row is there once, and how far the numbers are from those of the undisturbed run."""
        one, other = self.rows(name), self.rows(reference)
        once = len(one) == STREAMS * FILES * ROWS and not one.duplicated(["id", "at"]).any()
        numbers = [column for column in one.columns if column.startswith(("mean", "std", "log_score"))]
        apart = float(np.abs(one[numbers].to_numpy() - other[numbers].to_numpy()).max()) if once else None
        return {"rows": len(one), "every_row_once": bool(once), "largest_difference": apart}

    def undisturbed(self, name: str, kind: str) -> dict[str, Any]:
        driver, begun = self.start(name, kind), time.monotonic()
        code = driver.wait(SECONDS)
        return {"exit": code, "seconds": round(time.monotonic() - begun, 1), "micro_batches": self.batches(name)}

    def killed(self, name: str, kind: str, kills: int, every: float | None = None) -> dict[str, Any]:
        """Kills executors and workers, at random moments or at regular ones, until so many have fallen or the query has
        ended; the query then goes on to its end. Where it fails it is started again."""
        count, restarts, driver, begun = {"executor": 0, "worker": 0}, 0, self.start(name, kind), time.monotonic()
        while time.monotonic() - begun < SECONDS:
            time.sleep(every or self.random.uniform(2, 12))
            if driver.poll() is not None:
                if driver.returncode == 0:
                    break
                restarts, driver = restarts + 1, self.start(name, kind)
            elif sum(count.values()) < kills:
                fallen = kill_one(driver.pid, self.random)
                if fallen:
                    count[fallen] += 1
        if driver.poll() is None:
            end(driver)
        return {"killed": count, "restarts": restarts, "exit": driver.returncode}

    def drivers_killed(self, name: str, kind: str, kills: int) -> dict[str, Any]:
        """Kills the driver with all that it started once it has gone a micro-batch further; then lets it finish."""
        after = []
        for _ in range(kills):
            driver, reached, begun = self.start(name, kind), self.batches(name), time.monotonic()
            while driver.poll() is None and self.batches(name) <= reached and time.monotonic() - begun < SECONDS:
                time.sleep(0.5)
            time.sleep(self.random.uniform(0, 2))
            end(driver)
            after.append(self.batches(name))
        return {"killed_after_micro_batches": after, "exit": self.start(name, kind).wait(SECONDS)}


def main() -> int:
    if sys.argv[1:2] == ["drive"]:
        folder, run, kind, partitions = sys.argv[2:]
        drive(Path(folder), Path(run), kind, int(partitions))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--drivers", type=int, default=5)
    parser.add_argument("--storm", type=float, default=120.0, help="seconds")
    parser.add_argument("--kinds", nargs="+", default=["own", "common"])
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
    found: dict[str, Any] = {"settings": vars(asked) | {"streams": STREAMS, "micro_batches": FILES, "rows": ROWS}}
    try:
        soak = Soak(folder)
        for kind in asked.kinds:
            part = found[kind] = {"undisturbed": soak.undisturbed(f"{kind}-alone", kind)}
            for name, count, every in (
                ("kills", asked.kills, None),
                ("storm", int(asked.storm / STORM_EVERY), STORM_EVERY),
            ):
                if count:
                    part[name] = soak.killed(f"{kind}-{name}", kind, count, every)
                    part[name] |= soak.compared(f"{kind}-{name}", f"{kind}-alone")
            if asked.drivers:
                part["drivers"] = soak.drivers_killed(f"{kind}-drivers", kind, asked.drivers)
                part["drivers"] |= soak.compared(f"{kind}-drivers", f"{kind}-alone")
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps(part, indent=1), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        clean_up()
    shown = [part for kind in asked.kinds for part in found.get(kind, {}).values() if "every_row_once" in part]
    return 0 if all(part["every_row_once"] and part["largest_difference"] == 0 for part in shown) else 1


def clean_up() -> None:
    """`local-cluster` leaves its logs in the installed package."""
    import pyspark  # pyright: ignore[reportMissingImports]

    shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
