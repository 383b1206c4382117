"""A small cluster on one machine, and what its processes use."""

import os
import shutil
from pathlib import Path
from typing import Any

import backstream as bs

MEMORY = 700
"""The MB that the Java part of an executor may use."""
TICKS = os.sysconf("SC_CLK_TCK")


def session(partitions: int, executors: int = 2, **more: str) -> Any:
    """Executors in processes of their own (`local-cluster`), with the documented settings."""
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]

    small = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.executor.memory": f"{MEMORY}m",
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,{MEMORY}]").appName("backstream")
    for name, value in {**bs.spark.SETTINGS, **small, **more}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def clean_up() -> None:
    """`local-cluster` leaves its logs in the installed package. Folders in which processes of another cluster still run
    stay."""
    import pyspark  # pyright: ignore[reportMissingImports]

    used = [os.path.realpath(link) for link in Path("/proc").glob("[0-9]*/cwd")]
    for folder in (Path(pyspark.__file__).resolve().parent / "work").glob("*"):
        if not any(Path(place).is_relative_to(folder) for place in used):
            shutil.rmtree(folder, ignore_errors=True)


def commits(checkpoint: Path) -> int:
    """How many micro-batches are committed."""
    return len(list((checkpoint / "commits").glob("[0-9]*")))


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


def executors_below(root: int) -> dict[str, list[int]]:
    """Executors, and the Python processes that they started."""
    below = descendants(root)
    executors = [pid for pid, said in below.items() if "CoarseGrainedExecutorBackend" in said]
    workers = [pid for executor in executors for pid, said in descendants(executor).items() if "pyspark.daemon" in said]
    return {"executor": executors, "worker": workers}


def processor_seconds(pids: list[int]) -> float:
    """Of processes, with those of their children that have ended."""
    spent = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += sum(int(field) for field in fields[11:15])
    return spent / TICKS


def memory_megabytes(pids: list[int], field: str = "VmHWM") -> list[float]:
    """Of each process: what it has taken at most, or now (`VmRSS`)."""
    found = []
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found += [round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith(f"{field}:")]
    return found
