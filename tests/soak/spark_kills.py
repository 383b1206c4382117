"""A fleet on Spark whose executors, Python workers and driver are killed (kill -9) ends as one that was left alone.

    make soak-spark
    python -m tests.soak.spark_kills --only own-kills common-kills

Two executors in processes of their own (`local-cluster`), see `spark_query`. Half of the kills fall while tasks are
running, the other half as soon as a micro-batch is committed. A storm is a kill every 6 s; a fast one, a kill every
2 s, leaves no task the time to end, and exceeds Spark's default limits. Every row must be there exactly once, with the
bits of the undisturbed run. Only processes that descend from a driver of this script are killed.
Each part is written to benchmarks/results/spark_kills.json when it is done; --only runs some again.
"""

import argparse
import json
import os
import re
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

from benchmarks.spark.cluster import clean_up, commits, descendants, executors_below
from tests.soak.spark_query import OBSERVED, model

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "spark_kills.json"
STREAMS, FILES, ROWS = 60, 30, 3
"""Streams, micro-batches, and rows of each stream in one of them."""
KILLS, DRIVERS = 20, 5
STORM_SECONDS, STORM_EVERY, FAST_STORM_EVERY = 120.0, 6.0, 2.0
BEFORE_STORM = 5
"""Micro-batches that are committed before a storm."""
PARTITIONS = 6
"""Those after a change from 2."""
SECONDS = 1800
"""What no query may take."""


# ---- processes -------------------------------------------------------------------------------------------------------
def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Query:
    """A driver with all that it started."""

    def __init__(self, folder: Path, kind: str, *options: str, files: int = FILES):
        self.folder, self.log = folder, folder / "log"
        command = [sys.executable, "-m", "tests.soak.spark_query", str(folder), kind, str(files), *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def commits(self) -> int:
        return commits(self.folder / "checkpoint")

    @property
    def active_tasks(self) -> int:
        try:
            return int((self.folder / "active").read_text())
        except (OSError, ValueError):
            return 0

    @property
    def tasks_lost(self) -> int:
        """By Spark's own count."""
        return len(re.findall(r"Lost task \d", self.log.read_text(errors="replace")))

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill_one(self, random: np.random.Generator) -> str | None:
        """Kills an executor or a Python worker; None where there is none."""
        there = {kind: pids for kind, pids in executors_below(self.process.pid).items() if pids}
        if not there:
            return None
        kind = str(random.choice(sorted(there)))
        kill([int(random.choice(there[kind]))])
        return kind

    def kill_driver(self) -> int:
        """Kills the driver, in Python and in Java. The executors are left to find out; those that have not after half a
        minute are killed too, and counted."""
        below = descendants(self.process.pid)
        left = [pid for group in executors_below(self.process.pid).values() for pid in group]
        kill([self.process.pid, *(pid for pid in below if pid not in left)])
        self.process.wait()
        begun = time.monotonic()
        while any(Path(f"/proc/{pid}").exists() for pid in left) and time.monotonic() - begun < 30:
            time.sleep(0.5)
        stayed = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        kill(stayed)
        return len(stayed)

    def finish(self, seconds: float = SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill([*descendants(self.process.pid), self.process.pid])
            return self.process.wait()


# ---- what is shown ---------------------------------------------------------------------------------------------------
class Soak:
    def __init__(self, folder: Path):
        self.folder, self.random = folder, np.random.default_rng(0)
        simulate = jax.vmap(lambda key: model().simulate(FILES * ROWS, key=key)[1])
        self.ys = np.asarray(simulate(jax.random.split(jax.random.key(0), STREAMS)), float)

    def prepared(self, name: str, first: int = 0, end: int = FILES) -> Path:
        """A folder with the files of some micro-batches, for a query to read."""
        folder = self.folder / name
        (folder / "in").mkdir(parents=True, exist_ok=True)
        for number in range(first, end):
            lines = [
                json.dumps({"id": f"s{i}", "at": t} | dict(zip(OBSERVED, self.ys[i, t].tolist(), strict=True)))
                for t in range(number * ROWS, (number + 1) * ROWS)
                for i in range(STREAMS)
            ]
            file = folder / f"{number:03d}.json"
            file.write_text("\n".join(lines) + "\n")
            os.utime(file, (1000 + number, 1000 + number))
            file.rename(folder / "in" / file.name)
        return folder

    def rows(self, name: str) -> Any:
        import pyarrow.dataset as ds

        table = ds.dataset(self.folder / name / "results", partitioning="hive").to_table().to_pandas()
        return table.sort_values(["id", "at"], ignore_index=True)

    def compared(self, name: str, reference: str) -> dict[str, Any]:
        """Whether every row is there once, and how far the numbers are from those of the undisturbed run."""
        one, other = self.rows(name), self.rows(reference)
        once = len(one) == STREAMS * FILES * ROWS and not one.duplicated(["id", "at"]).any()
        numbers = [column for column in one.columns if column.startswith(("t", "mean", "std", "log_score", "pit"))]
        apart = float(np.abs(one[numbers].to_numpy() - other[numbers].to_numpy()).max()) if once else None
        return {"rows": len(one), "every_row_once": bool(once), "largest_difference": apart}

    def undisturbed(self, kind: str) -> dict[str, Any]:
        begun = time.monotonic()
        query = Query(self.prepared(f"{kind}-alone"), kind)
        code = query.finish()
        return {"exit": code, "seconds": round(time.monotonic() - begun, 1), "micro_batches": query.commits}

    def kills(self, kind: str) -> dict[str, Any]:
        """By turns inside a task and just after a commit, with a new file for each."""
        query, killed, released = Query(self.prepared(f"{kind}-kills", 0, 0), kind), [], 0
        while query.running and len(killed) < KILLS and released < FILES:
            self.prepared(f"{kind}-kills", released, released + 1)
            released += 1
            moment = self._inside(query, released) if len(killed) % 2 == 0 else self._after_commit(query, released)
            fallen = query.kill_one(self.random) if moment else None
            if fallen:
                killed.append(f"{fallen}, {moment}")
        self.prepared(f"{kind}-kills", released, FILES)
        counts = {kind: killed.count(kind) for kind in sorted(set(killed))}
        return {"killed": len(killed), "of_these": counts, "exit": query.finish(), "tasks_lost": query.tasks_lost}

    def _inside(self, query: Query, files: int) -> str | None:
        """Waits until a task has been running for a while."""
        while query.running and not query.active_tasks and query.commits < files:
            time.sleep(0.02)
        time.sleep(self.random.uniform(0, 0.5))
        return "inside a task" if query.active_tasks else None

    def _after_commit(self, query: Query, files: int) -> str | None:
        """Waits until so many files are committed: no task is left then."""
        while query.running and query.commits < files:
            time.sleep(0.005)
        return "after a commit" if query.running else None

    def storm(self, kind: str, every: float, *options: str) -> dict[str, Any]:
        """Where the query fails the storm is over, and it is started again."""
        name = f"{kind}-storm-{every:g}{''.join(options)}"
        query, count, begun = Query(self.prepared(name, 0, BEFORE_STORM), kind, *options), 0, time.monotonic()
        while query.running and query.commits < BEFORE_STORM:
            time.sleep(0.1)
        began, released = time.monotonic(), BEFORE_STORM
        while query.running and time.monotonic() - began < STORM_SECONDS:
            self.prepared(name, released, min(released + 1, FILES))
            released += 1
            time.sleep(every)
            count += query.kill_one(self.random) is not None
        self.prepared(name, released, FILES)
        found: dict[str, Any] = {"kills": count, "storm_seconds": round(time.monotonic() - began, 1)}
        error = None if query.finish() == 0 else cause(self.folder / name / "error")
        found |= {"tasks_lost": query.tasks_lost, "failed_with": error, "micro_batches_before_restart": query.commits}
        if error is not None:
            query = Query(self.folder / name, kind, *options)
        return (
            found | {"exit": query.finish(), "seconds": round(time.monotonic() - begun, 1)} | self.against(name, kind)
        )

    def drivers(self, kind: str) -> dict[str, Any]:
        """Kills the driver once it has gone a micro-batch further; then lets it finish."""
        folder, after, stayed = self.prepared(f"{kind}-drivers"), [], 0
        for _ in range(DRIVERS):
            query = Query(folder, kind)
            reached = query.commits
            while query.running and query.commits <= reached:
                time.sleep(0.1)
            time.sleep(self.random.uniform(0, 2))
            stayed += query.kill_driver()
            after.append(query.commits)
        last = Query(folder, kind)
        return {"killed_after_micro_batches": after, "processes_that_stayed": stayed, "exit": last.finish()}

    def partitions(self, kind: str) -> dict[str, Any]:
        """Half of the files with 2 partitions, the others with more."""
        folder, half = self.prepared(f"{kind}-partitions", 0, FILES // 2), FILES // 2
        first = Query(folder, kind, files=half).finish()
        self.prepared(f"{kind}-partitions", half, FILES)
        second = Query(folder, kind, "--partitions", str(PARTITIONS), "--repartition").finish()
        states = len([path for path in (folder / "checkpoint" / "state" / "0").iterdir() if path.name.isdigit()])
        return {"from": 2, "to": PARTITIONS, "partitions_of_the_state": states, "exits": [first, second]}

    def against(self, name: str, kind: str) -> dict[str, Any]:
        return self.compared(name, f"{kind}-alone")


def cause(file: Path) -> str:
    """What Spark says of why a query failed, without the stack of calls around it."""
    text = file.read_text() if file.exists() else "none written"
    said = re.search(r"Job aborted due to stage failure: .{0,160}", text)
    return said.group() if said else text.partition("\n")[0][:300]


def parts(soak: Soak) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("own", "common"):
        found[f"{kind}-kills"] = lambda kind=kind: soak.kills(kind) | soak.against(f"{kind}-kills", kind)
        for name, every in (("storm", STORM_EVERY), ("fast-storm", FAST_STORM_EVERY)):
            found[f"{kind}-{name}"] = lambda kind=kind, every=every: soak.storm(kind, every)
            found[f"{kind}-{name}-default"] = lambda kind=kind, every=every: soak.storm(kind, every, "--default-limits")
        found[f"{kind}-drivers"] = lambda kind=kind: soak.drivers(kind) | soak.against(f"{kind}-drivers", kind)
        found[f"{kind}-partitions"] = lambda kind=kind: soak.partitions(kind) | soak.against(f"{kind}-partitions", kind)
    return found


def main() -> int:
    jax.config.update("jax_enable_x64", True)
    folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
    soak = Soak(folder)
    every = parts(soak)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(every), default=list(every))
    asked = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found["settings"] = {"streams": STREAMS, "rows": ROWS, "executors": 2}
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "programs"))
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    try:
        for kind in sorted({name.partition("-")[0] for name in asked.only}):
            found[f"{kind}-alone"] = soak.undisturbed(kind)
            print(f"{kind}-alone", json.dumps(found[f"{kind}-alone"]), flush=True)
            for name in [name for name in asked.only if name.startswith(kind)]:
                found[name] = {"micro_batches": FILES} | every[name]()
                print(name, json.dumps(found[name]), flush=True)
                RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        clean_up()
    shown = [found[name] for name in asked.only]
    return 0 if all(part["every_row_once"] and part["largest_difference"] == 0 for part in shown) else 1


if __name__ == "__main__":
    sys.exit(main())
