"""A file of observations that grows, is rotated and damaged, and processes that read it and fail."""

import contextlib
import json
import os
import tempfile
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from backstream.data import lines as lines_module
from backstream.data.columns import Columns
from backstream.data.sources import open_source
from backstream.engine import driver
from backstream.errors import InputError, RunError
from backstream.runs import atomic_files, formats, results
from backstream.runs.checkpoints import About, Checkpoints, DamagedCheckpointError
from backstream.runs.config import Config
from backstream.runs.store import RunWriter
from backstream.settings import Saving

from .faulty_disk import FaultyDisk, Killed
from .stub_reader import ModelError, StubReader

EVERY = 7
COUNTS: Counter[str] = Counter()
"""Steps, lives and faults, over all examples."""
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
DAMAGED = ("{half a row", '{"at": "t", "key": "a", "y": "oops"}', '{"at": "t", "key": "b", "y": 1e999}')
"""Rows that cannot be read."""
SAID = r"is not JSON|which is not a number|which is infinite"


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1e-3


class AcknowledgingWriter(RunWriter):
    """Remembers what it has said to be safe."""

    acknowledged = 0

    def commit(self, position: int, tree: Any, record: dict[str, Any]) -> None:
        super().commit(position, tree, record)
        self.acknowledged = position


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("odd row"), st.just(0)),
        st.tuples(st.just("damaged row"), st.sampled_from(DAMAGED)),
        st.tuples(st.just("other streams"), st.integers(1, 9)),
        st.tuples(st.just("rotate"), st.booleans()),
        st.tuples(st.just("checkpoint by time"), st.just(0)),
        st.tuples(st.just("second process"), st.just(0)),
    ),
    max_size=5,
)
FAULTS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["kill", "kill after", "tear", "power", "full"]), st.integers(1, 60)),
    st.tuples(st.just("raise"), st.integers(0, 12)),
)


class World(RuleBasedStateMachine):
    """The file of observations, and processes that read it."""

    @initialize(keyed=st.booleans(), keep_results=st.sampled_from(["", "", "20"]))
    def begin(self, keyed: bool, keep_results: str) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER))
        self.run, self.log = self.folder / "run", self.folder / "log.jsonl"
        columns = Columns(("y",), time="at", key="key" if keyed else None)
        saving = Saving(EVERY, keep=2, checkpoint_seconds=10.0, keep_results=keep_results)
        self.config, self.keyed, self.clock = Config(columns=columns, saving=saving), keyed, Clock()
        self.written: list[str] = []
        """All rows, in all files."""
        self.begins = [0]
        """The rows with which files begin."""
        self.acknowledged, self.streams = 0, 4
        self.format, self.upgraded = formats.FORMAT_VERSION, False
        self.append(3)

    def append(self, count: int, time: str | None = None) -> None:
        for _ in range(count):
            number = len(self.written)
            at, key = f"t{number}" if time is None else time, "abcdefghi"[number * 7 % self.streams]
            self.add_line(json.dumps({"at": at, "key": key, "y": number / 3}))

    def add_line(self, line: str) -> None:
        self.written.append(line + "\n")
        with open(self.log, "a") as file:
            file.write(self.written[-1])

    def rotate(self, torn: bool) -> None:
        """The old file may end without a newline."""
        self.append(1)
        if torn:
            os.truncate(self.log, self.log.stat().st_size - 1)
        self.log.rename(self.file(len(self.begins) - 1))
        self.begins.append(len(self.written))
        self.append(1)
        COUNTS["rotation"] += 1

    def file(self, number: int) -> Path:
        """One that was rotated away."""
        return self.folder / f"log.{number + 1}.jsonl"

    def mend(self) -> None:
        """The operator puts a row right at which a single stream has ended."""
        row = next(i for i, line in enumerate(self.written) if line.strip() in DAMAGED and i >= self.reached())
        right = json.dumps({"at": f"t{row}", "key": "a", "y": row / 3}) + "\n"
        number = bisect_right(self.begins, row) - 1
        path = self.folder / "log.jsonl" if number == len(self.begins) - 1 else self.file(number)
        path.write_text(path.read_text().replace(self.written[row].strip(), right.strip(), 1))
        self.written[row] = right

    # ---- a process ---------------------------------------------------------------------------------------------------
    def unread_file(self) -> int:
        """The one with the first row that is not saved."""
        return bisect_right(self.begins, self.reached()) - 1

    def work_on(self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None) -> bool:
        """A life. Files that were rotated away before all of their rows were saved are read first, as the error says
        that somebody gets who forgets it."""
        for _ in range(len(self.written)):
            old = self.unread_file()
            if old == len(self.begins) - 1:
                return self.live(actions, fault)
            if self.reached() > self.begins[old]:
                with pytest.raises(InputError, match=r"--new-rows"):
                    self.live([], None, follow=False, holds="all")
            COUNTS["old file read first"] += 1
            current, self.log = self.log, self.file(old)
            self.live([], None, follow=False)
            self.log = current
        raise AssertionError("an old file is never finished")

    def live(
        self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None, follow: bool = True, holds: Any = None
    ) -> bool:
        """One life of the process that learns: it reads all rows that are there, and those that come by the actions.
        Whether it ended well."""
        COUNTS["life"] += 1
        waiting, position = list(actions), 0
        breaks_at = self.acknowledged + fault[1] if fault and fault[0] == "raise" else None
        disk = FaultyDisk(*fault, COUNTS) if fault and fault[0] != "raise" else FaultyDisk()
        reader = StubReader(self.keyed, EVERY, breaks_at)

        def stopped() -> bool:
            """Looked at whenever the reader of the file has nothing to do. It has time to look between two actions:
            nobody can know of a file that is rotated away before it is opened."""
            nonlocal patience
            if position < len(self.written) and self.clock.now < patience:
                return False
            if not waiting:
                return True
            self.act(*waiting.pop(0))
            patience = self.clock.now + 0.05
            return False

        with (
            mock.patch.object(atomic_files, "os", disk),
            mock.patch.object(lines_module, "time", self.clock),
            mock.patch.object(driver, "time", self.clock),
            mock.patch.object(results, "MERGED", 3),
        ):
            patience = self.clock.now + 0.05
            try:
                writer = AcknowledgingWriter(self.run, replace(self.config, format_version=formats.FORMAT_VERSION))
            except (Killed, RunError):
                return False
            try:
                options = {"follow": follow, "dtype": "float64", "stopped": stopped if follow else lambda: False}
                source = open_source(self.log, self.config.columns, **options)
                holds = holds or self.holds()
                loop = driver.Loop(reader, source, self.config, writer, holds, stopped if follow else lambda: False)
                with contextlib.closing(loop.run()) as pieces:
                    for piece in pieces:
                        position, patience = piece.position, self.clock.now + 0.05
            except Killed:
                return False
            except ModelError:
                COUNTS["model raises"] += 1
                return False
            except RunError as error:
                return self.explain(error)
            finally:
                writer.close()
                self.acknowledged = max(self.acknowledged, writer.acknowledged)
        return True

    def explain(self, error: RunError) -> bool:
        """Whether a life that ended with an error has read all rows."""
        if "could not be used" in str(error):
            return True
        if "No space left" in str(error):
            return False
        if not self.keyed and any(words in str(error) for words in SAID.split("|")):
            COUNTS["damaged row ends a single stream"] += 1
            self.mend()
            return False
        raise error

    def act(self, what: str, how: Any) -> None:
        COUNTS[what] += 1
        if what == "append":
            self.append(how)
        elif what == "odd row":
            self.append(1, time="\ud800")
        elif what == "damaged row":
            self.add_line(how)
        elif what == "other streams":
            self.streams = how
            self.append(2)
        elif what == "rotate":
            self.rotate(how)
        elif what == "checkpoint by time":
            self.clock.now += 11
        else:
            with pytest.raises(InputError, match="is being written by another process"):
                RunWriter(self.run, self.config)

    # ---- what is there -----------------------------------------------------------------------------------------------
    def positions(self) -> list[int]:
        return Checkpoints(self.run / "checkpoints").positions()

    def usable(self) -> list[About]:
        """The checkpoints that a run could go on from, newest first."""
        checkpoints, found = Checkpoints(self.run / "checkpoints"), list[About]()
        for position in reversed(checkpoints.positions()):
            with contextlib.suppress(DamagedCheckpointError, RunError):
                about = checkpoints.about(position)
                results.check_begun(self.run / "filtered", about.record["results"])
                found.append(about)
        return found

    def newest(self) -> About | None:
        """It may be later than what was acknowledged."""
        return next(iter(self.usable()), None)

    def reached(self) -> int:
        found = self.newest()
        return 0 if found is None else found.position

    def holds(self) -> str:
        """What a user has to say of the file: "new" where it follows one that was read to its end, unless the run was
        there when it was rotated."""
        found = self.newest()
        if found is None or found.position not in self.begins[1:]:
            return "all"
        return "all" if found.record["source"]["begins"] == found.position else "new"

    def files(self) -> dict[str, bytes]:
        kept = [self.run / "metrics.jsonl", self.run / "rejected.jsonl", *sorted((self.run / "filtered").iterdir())]
        return {file.name: file.read_bytes() for file in kept if file.exists()}
