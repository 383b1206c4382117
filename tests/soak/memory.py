"""Memory: of a stream that is saved thousands of times, and of a fleet of a million streams.

    python -m tests.soak.memory

Each part is measured in a process of its own, in a folder in memory where there is one. The model has one state; the
settings are the defaults, but for those below.
"""

import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from backstream.data.columns import Columns
from backstream.data.sources import open_source
from backstream.engine.driver import learn
from backstream.learning import FleetSettings
from backstream.models import StochasticVolatility
from backstream.runs.config import Config
from backstream.runs.store import CHECKPOINTS, RunWriter
from backstream.settings import Saving
from benchmarks.harness import Results, console

from .faulty_world import FOLDER

RESULTS = Path(__file__).parent / "results" / "memory.json"
SETTINGS = {
    "checkpoints": 5000,
    "warm_checkpoints": 1000,
    "streams": [100_000, 1_000_000],
    "tick_rows": 4096,
    "rows_between_checkpoints": 250_000,
}


def resident() -> int:
    """Bytes of memory that this process has, garbage apart."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def checkpoints(warm: int, more: int) -> dict[str, Any]:
    """A stream of one row for each checkpoint: the memory after the first `warm`, and after `more`."""
    ys = np.random.default_rng(0).normal(size=(warm + more, 1))
    config = Config(columns=Columns(("y0",)), saving=Saving(1, keep_results="1000"))
    sizes = list[int]()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, closing(RunWriter(Path(folder) / "run", config)) as writer:
        for piece in learn(
            StochasticVolatility(np.zeros(1), np.full(1, 0.9), np.full(1, 0.3)),
            open_source(ys, config.columns),
            config,
            writer,
        ):
            if piece.position >= warm and (piece.position - warm) % (more // 10) == 0:
                sizes.append(resident())
    grown = [round((size - sizes[0]) / 1e6, 3) for size in sizes]
    return {
        "warm": warm,
        "checkpoints": more,
        "mb_before": round(sizes[0] / 1e6, 2),
        "mb_grown": grown[-1],
        "mb_grown_by_tenths": grown,
    }


def fleet(streams: int) -> dict[str, Any]:
    """One row of each stream, saved and restored."""
    names = pa.array([f"sensor-{i:07d}" for i in range(streams)])
    table = pa.table({"key": names, "y": np.random.default_rng(0).normal(size=streams)})
    every, tick_rows = SETTINGS["rows_between_checkpoints"], SETTINGS["tick_rows"]
    config = Config(columns=Columns(("y",), key="key"), saving=Saving(every, keep=1))
    config, model = (
        replace(config, fleet=FleetSettings(tick_rows=tick_rows)),
        StochasticVolatility(np.zeros(1), np.full(1, 0.9), np.full(1, 0.3)),
    )
    began, cpu = resident(), time.process_time()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        for _ in range(2):  # the second time it is restored
            with closing(RunWriter(Path(folder) / "run", config)) as writer:
                for _ in learn(model, open_source(table, config.columns), config, writer):
                    pass
        newest = max((Path(folder) / "run" / CHECKPOINTS).iterdir())
        state, about = ((newest / name).stat().st_size for name in ("state.bin", "about.json"))
    return {
        "streams": streams,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "gb_before": round(began / 1e9, 2),
        "checkpoint_mb": round(state / 1e6, 1),
        "about_kb": round(about / 1e3, 1),
        "processor_seconds": round(time.process_time() - cpu),
    }


def apart(call: str) -> dict[str, Any]:
    code = f"import json; from tests.soak import memory; print(json.dumps(memory.{call}))"
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    results = Results(RESULTS, "python -m tests.soak.memory", SETTINGS)
    warm, more = SETTINGS["warm_checkpoints"], SETTINGS["checkpoints"]
    console.print(results.run("checkpoints", lambda: apart(f"checkpoints({warm}, {more})")))
    for count in SETTINGS["streams"]:
        console.print(results.run(f"{count} streams", lambda count=count: apart(f"fleet({count})")))


if __name__ == "__main__":
    main()
