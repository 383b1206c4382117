"""What is timed in a worker of `profile`. Workers import it, so that it is in a file of its own."""

import functools
import json
import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from backstream.engine.spark import tables
from backstream.engine.spark.processor import BucketProcessor
from backstream.engine.spark.worker import prepare_jax

SPARK = "backstream.engine.spark"
PARTS = {
    "pack rows into blocks": [(f"{SPARK}.tables", "_packed")],
    "unpack and sort rows": [(f"{SPARK}.processor", "unpacked"), (f"{SPARK}.processor", "in_order")],
    "state from and to bytes": [(f"{SPARK}.bucket.Bucket", name) for name in ("open", "close", "state", "_taken")],
    "check and arrange rows": [
        (f"{SPARK}.processor", "rows_of"),
        (f"{SPARK}.bucket.Bucket", "_reasons"),
        (f"{SPARK}.bucket.Bucket", "_placed"),
        (f"{SPARK}.bucket", "pack_ticks"),
        (f"{SPARK}.bucket", "_spread"),
        (f"{SPARK}.bucket.Bucket", "advance"),
    ],
    "the panel": [("backstream.learning.Panel", "read"), ("backstream.learning.Panel", "begin")],
    "collect garbage": [("gc", "collect")],
    "results as a table": [(f"{SPARK}.processor", "results_of"), (f"{SPARK}.processor", "as_pandas")],
}
"""Functions by what they do."""
WHERE = "BACKSTREAM_PROFILE"
"""The environment variable that names the folder where workers write."""


class Clock:
    """Processor seconds of this process by part; the part that runs now is the last of `running`."""

    def __init__(self, folder: Path):
        self.spent, self.running, self.since = dict.fromkeys(PARTS, 0.0), [], time.process_time()
        self.file = folder / f"{os.getpid()}.json"

    def turn(self) -> None:
        """Books the time since the last turn."""
        now = time.process_time()
        if self.running:
            self.spent[self.running[-1]] += now - self.since
        self.since = now

    def timed(self, part: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self.turn()
            self.running.append(part)
            try:
                return function(*given, **named)
            finally:
                self.turn()
                self.running.pop()
                if not self.running:
                    self.file.write_text(json.dumps(self.spent))

        return call


@functools.cache
def clock() -> Clock:
    """Replaces the functions by timed ones, once in a process."""
    found = Clock(Path(os.environ[WHERE]))
    for part, functions in PARTS.items():
        for place, name in functions:
            owner = _found(place)
            setattr(owner, name, found.timed(part, getattr(owner, name)))
    return found


def _found(place: str) -> Any:
    """A module, or a class in one."""
    try:
        return import_module(place)
    except ModuleNotFoundError:
        module, _, name = place.rpartition(".")
        return getattr(import_module(module), name)


def packed(batches: Any) -> Any:
    """As `tables.packed`."""
    prepare_jax("float32")
    clock()
    return tables.packed(batches)


class TimedProcessor(BucketProcessor):
    """Replaces what it calls by timed functions before the first rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.job.bucket()  # prepares JAX
        clock()
        return super().handleInputRows(key, rows, timerValues)
