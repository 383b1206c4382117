"""The driver, the writer and the readers of files under every fault that we can make, in any order.

A stub learns, so that thousands of lives of a process take seconds; everything between the file of observations and
the run directory is the real thing. What was acknowledged must be there exactly once, and in the end every byte of the
results must be that of a run over the same rows which met no fault.

    python tests/engine/test_state_machine.py      # 10 000 steps, with a random seed that is printed
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import tempfile
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from backstream.data import lines as lines_module
from backstream.data.columns import Columns
from backstream.data.sources import open_source
from backstream.engine import driver
from backstream.engine.fleet_reader import Ticker
from backstream.engine.reader import Reader
from backstream.engine.results import Filtered, Progress
from backstream.errors import InputError, RunError
from backstream.learning import Report
from backstream.runs import atomic_files, results
from backstream.runs.checkpoints import Checkpoints, DamagedCheckpointError
from backstream.runs.config import Config, Saving
from backstream.runs.logs import Rejected
from backstream.runs.store import RunWriter, read_filtered, read_rejected
from faulty_disk import FaultyDisk, Killed

EVERY = 7
COUNTS: Counter[str] = Counter()
"""Steps, lives and faults, over all examples."""
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class ModelError(Exception):
    """What the stub raises in the place of a user's model."""


class StubReader(Reader):
    """Its state is a digest of all rows and of how they were grouped: one row lost, doubled or put elsewhere shows in
    every later result."""

    most_rows = 5

    def __init__(self, keyed: bool, breaks_at: int | None = None):
        self._keyed, self._breaks_at = keyed, breaks_at
        self._state, self._ticker, self._ticks = b"", Ticker(3, EVERY), list[int]()
        if keyed:
            self.most_rows = 1 << 30

    def blank(self, record: dict[str, Any]) -> Any:
        return {"state": np.zeros(16, np.uint8)}

    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        self._state = np.asarray(tree["state"]).tobytes()

    def arrive(self, batch: Any) -> None:
        if self._keyed:
            self._ticks += [self._ticker.place(batch.first + i, key) for i, key in enumerate(batch.keys)]

    def ready(self, waiting: int, ended: bool) -> int:
        if ended:
            self._ticker.close()
        return waiting if ended or not self._keyed else int(np.searchsorted(self._ticks, self._ticker.open))

    def read(self, batch: Any) -> Progress:
        ticks, self._ticks = self._ticks[: len(batch)], self._ticks[len(batch) :]
        means, reports = [], []
        before = self._state
        self._state = b"used up"
        for i in range(len(batch)):
            row = batch.first + i
            if row == self._breaks_at:
                COUNTS["model raises"] += 1
                raise ModelError
            group = "" if not ticks or (i and ticks[i] == ticks[i - 1]) else "tick"
            label = (batch.times or [None] * len(batch))[i]
            content = f"{batch.ys[i].tolist()} {label} {group}".encode()
            before = hashlib.blake2b(before + content, digest_size=16).digest()
            means.append(int.from_bytes(before[:6], "big") / 2**48)
            if row % 5 == 4:
                reports.append(Report(row + 1, means[-1], 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, ()))
        self._state = before
        mean = np.asarray(means)[:, None]
        labels = {"times": batch.times, "keys": batch.keys}
        scores = {"log_score": mean[:, 0], "pit": mean, "residual": mean}
        refused = np.zeros(len(batch), bool)
        rows = Filtered(first=batch.first, mean=mean, std=mean, refused=refused, **scores, **labels)
        problems = sorted(batch.problems.items())
        rejected = [Rejected(batch.first + i, None, problem.reason, problem.content) for i, problem in problems]
        return Progress(batch.first + len(batch), rows, reports, rejected)

    def verdict(self):
        return None

    def tree(self) -> Any:
        return {"state": np.frombuffer(self._state, np.uint8)}

    def record(self) -> dict[str, Any]:
        return {}


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
        st.tuples(st.just("rotate"), st.booleans()),
        st.tuples(st.just("wait"), st.just(0)),
        st.tuples(st.just("second process"), st.just(0)),
    ),
    max_size=5,
)
FAULTS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["kill", "kill after", "tear", "full"]), st.integers(1, 60)),
    st.tuples(st.just("raise"), st.integers(0, 12)),
)


class Machine(RuleBasedStateMachine):
    @initialize(keyed=st.booleans(), keep_results=st.sampled_from([0, 0, 20]))
    def begin(self, keyed: bool, keep_results: int) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER))
        self.run, self.log = self.folder / "run", self.folder / "log.jsonl"
        columns = Columns(("y",), time="at", key="key" if keyed else None)
        saving = Saving(EVERY, keep=2, checkpoint_seconds=10.0, keep_results=keep_results)
        self.config, self.keyed, self.clock = Config(columns=columns, saving=saving), keyed, Clock()
        self.written: list[str] = []
        """All rows, in all files."""
        self.begins = [0]
        """The rows with which files begin."""
        self.acknowledged = 0
        self.append(3)

    # ---- the world ---------------------------------------------------------------------------------------------------
    def append(self, count: int, time: str | None = None) -> None:
        for _ in range(count):
            number = len(self.written)
            row = {"at": f"t{number}" if time is None else time, "key": "abcd"[number * 7 % 4], "y": number / 3}
            self.written.append(json.dumps(row) + "\n")
            with open(self.log, "a") as file:
                file.write(self.written[-1])

    def rotate(self, torn: bool) -> None:
        """The old file may end without a newline."""
        self.append(1)
        if torn:
            os.truncate(self.log, self.log.stat().st_size - 1)
        self.log.rename(self.folder / f"log.{len(self.begins)}.jsonl")
        self.begins.append(len(self.written))
        self.append(1)
        COUNTS["rotation"] += 1

    # ---- a process ---------------------------------------------------------------------------------------------------
    def unread_file(self) -> int:
        """The one with the first row that is not saved."""
        return bisect_right(self.begins, self.reached()) - 1

    def work_on(self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None) -> bool:
        """A life. Files that were rotated away before all of their rows were saved are read first, as the error says
        that somebody gets who forgets it."""
        while (old := self.unread_file()) < len(self.begins) - 1:
            if self.reached() > self.begins[old]:
                with pytest.raises(InputError, match=r"--new-rows"):
                    self.live([], None, follow=False, holds="all")
            COUNTS["old file read first"] += 1
            current, self.log = self.log, self.folder / f"log.{old + 1}.jsonl"
            assert self.live([], None, follow=False)
            self.log = current
        return self.live(actions, fault)

    def live(
        self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None, follow: bool = True, holds: Any = None
    ) -> bool:
        """One life of the process that learns: it reads all rows that are there, and those that come by the actions.
        Whether it ended well."""
        COUNTS["life"] += 1
        waiting, position = list(actions), 0
        breaks_at = self.acknowledged + fault[1] if fault and fault[0] == "raise" else None
        disk = FaultyDisk(*fault, COUNTS) if fault and fault[0] != "raise" else FaultyDisk()
        reader = StubReader(self.keyed, breaks_at)

        def stopped() -> bool:
            """Looked at whenever the reader of the file has nothing to do."""
            if position < len(self.written) and self.clock.now < patience:
                return False
            if not waiting:
                return True
            self.act(*waiting.pop(0))
            return False

        with (
            mock.patch.object(atomic_files, "os", disk),
            mock.patch.object(lines_module, "time", self.clock),
            mock.patch.object(driver, "time", self.clock),
            mock.patch.object(results, "MERGED", 3),
        ):
            patience = self.clock.now + 0.05
            try:
                writer = AcknowledgingWriter(self.run, self.config)
            except (Killed, RunError):
                return False
            try:
                options = {"follow": follow, "dtype": "float64", "stopped": stopped if follow else lambda: False}
                source = open_source(self.log, self.config.columns, **options)
                holds = holds or ("new" if self.reached() in self.begins[1:] else "all")
                loop = driver.Loop(reader, source, self.config, writer, holds, stopped if follow else lambda: False)
                with contextlib.closing(loop.run()) as pieces:
                    for piece in pieces:
                        position, patience = piece.position, self.clock.now + 0.05
            except (Killed, ModelError):
                return False
            except RunError as error:
                assert "No space left" in str(error) or "could not be used" in str(error), error
                return "could not be used" in str(error)
            finally:
                writer.close()
                self.acknowledged = max(self.acknowledged, writer.acknowledged)
        return True

    def act(self, what: str, how: Any) -> None:
        COUNTS[what] += 1
        if what == "append":
            self.append(how)
        elif what == "odd row":
            self.append(1, time="\ud800")
        elif what == "rotate":
            self.rotate(how)
        elif what == "wait":
            self.clock.now += 11
        else:
            with pytest.raises(InputError, match="is being written by another process"):
                RunWriter(self.run, self.config)

    # ---- rules -------------------------------------------------------------------------------------------------------
    @rule(actions=ACTIONS, fault=FAULTS)
    def work(self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None) -> None:
        COUNTS["step"] += 1
        self.work_on(actions, fault)
        self.check_acknowledged()

    @rule(count=st.integers(1, 20))
    def grow(self, count: int) -> None:
        COUNTS["step"] += 1
        self.append(count)

    @precondition(lambda self: len(self.positions()) > 1)
    @rule(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), data=st.data())
    def corrupt(self, where: float, bit: int, data: Any) -> None:
        """A byte of the newest checkpoint: the one before it is used, and no row is lost, since all are still there."""
        COUNTS["step"] += 1
        if len(self.begins) > 1:  # the rows in between may be in a file that is gone
            return
        COUNTS["corrupted byte"] += 1
        newest = Checkpoints(self.run / "checkpoints").path(self.positions()[-1])
        files = sorted(path for path in newest.iterdir() if path.stat().st_size)
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        content[int(where * len(content))] ^= 1 << bit
        file.write_bytes(content)
        self.acknowledged = self.positions()[-2]

    @precondition(lambda self: self.reached() > self.begins[-1])
    @rule(how=st.sampled_from(["insert", "change", "cut"]), where=st.floats(0, 1, exclude_max=True))
    def swap(self, how: str, where: float) -> None:
        """Another source under the same name is refused, and the run stays as it is."""
        COUNTS["step"] += 1
        COUNTS["swapped source"] += 1
        right, before = self.log.read_bytes(), self.positions()
        rows = right.splitlines(keepends=True)
        place = int(where * (self.reached() - self.begins[-1]))
        if how == "insert":
            rows.insert(place, b'{"at": "t", "key": "a", "y": -1}\n')
        elif how == "change":
            rows[place] = rows[place].replace(b'"y": ', b'"y": 1')
        else:
            rows = rows[:place]
        self.log.write_bytes(b"".join(rows))
        with pytest.raises(InputError, match=r"is not the source that the run has read|has already read|is empty"):
            self.live([], None, follow=False)
        self.log.write_bytes(right)
        assert self.positions() == before

    @precondition(lambda self: self.reached() > self.begins[-1])
    @rule(grown=st.booleans())
    def truncate(self, grown: bool) -> None:
        """While it is followed: an error that says so; nothing beyond it is read. The file is brought back."""
        COUNTS["step"] += 1
        right = self.log.read_bytes()

        def emptied() -> None:
            COUNTS["truncation"] += 1
            self.log.write_bytes(right[: len(right) // 2] if not grown else b"\n" * 3 + right.replace(b"t", b"x"))

        with (
            mock.patch.object(self, "act", lambda what, _: emptied() if what == "truncate" else None),
            pytest.raises(AssertionError, match=r"has become shorter|was emptied and written again"),
        ):
            self.live([("truncate", 0), *[("nothing", 0)] * 5], None)  # it has to look at the file again
        self.log.write_bytes(right)
        self.check_acknowledged()

    @precondition(lambda self: self.reached() > self.begins[-1])
    @rule(torn=st.booleans())
    def rotate_while_stopped(self, torn: bool) -> None:
        """With rows in the old file that were not read."""
        COUNTS["step"] += 1
        self.rotate(torn)

    # ---- what must hold ----------------------------------------------------------------------------------------------
    def positions(self) -> list[int]:
        return Checkpoints(self.run / "checkpoints").positions()

    def files(self) -> dict[str, bytes]:
        kept = [self.run / "metrics.jsonl", self.run / "rejected.jsonl", *sorted((self.run / "filtered").iterdir())]
        return {file.name: file.read_bytes() for file in kept if file.exists()}

    def reached(self) -> int:
        """The row of the newest checkpoint that can be read: it may be later than what was acknowledged."""
        checkpoints = Checkpoints(self.run / "checkpoints")
        usable = []
        for position in checkpoints.positions():
            with contextlib.suppress(DamagedCheckpointError):
                usable.append(checkpoints.about(position).position)
        return max(usable, default=0)

    def check_acknowledged(self) -> None:
        assert self.reached() >= self.acknowledged

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            assert self.work_on([], None)
            assert self.live([], None, follow=False)
            self.compare()
        finally:
            shutil.rmtree(self.folder)

    def compare(self) -> None:
        """With a run over the same files that met no fault."""
        whole = Machine.__new__(Machine)
        whole.__dict__.update(self.__dict__)
        whole.run, whole.acknowledged = self.folder / "whole", 0
        for begin, end in pairwise([*self.begins, len(self.written)]):
            whole.log = self.folder / f"whole{begin}.jsonl"
            whole.log.write_text("".join(self.written[begin:end]))
            assert whole.live([], None, follow=False)
        assert self.files().keys() == whole.files().keys(), (self.files().keys(), whole.files().keys())
        for name, content in whole.files().items():
            assert name == "rejected.jsonl" or self.files()[name] == content, (name, self.files()[name], content)
        one, other = ([row._replace(reason="") for row in read_rejected(path)] for path in (self.run, whole.run))
        assert one == other
        rows = read_filtered(self.run)["row"].to_pylist()
        assert rows == list(range(rows[0], len(self.written)))
        assert rows[0] == 0 or self.config.saving.keep_results
        states = [Checkpoints(path / "checkpoints").about(len(self.written)).digest for path in (self.run, whole.run)]
        assert states[0] == states[1]


def explore(examples: int, steps: int, **options: Any) -> None:
    checks, phases = list(HealthCheck), [Phase.generate]
    chosen = settings(stateful_step_count=steps, deadline=None, suppress_health_check=checks, phases=phases, **options)
    chosen = settings(chosen, max_examples=examples, database=None)
    run_state_machine_as_test(Machine, settings=chosen)


def test_nothing_is_lost_and_nothing_doubled():
    """A few hundred steps, always the same ones."""
    COUNTS.clear()
    explore(12, 10, derandomize=True)
    assert COUNTS["life"] > 50 and COUNTS["rotation"] and COUNTS["model raises"]
    assert any(name.startswith(("kill", "tear")) for name in COUNTS)


def main(least_steps: int = 10_000) -> None:
    number = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(2**32))
    print(f"SOAK_SEED={number}", flush=True)
    while COUNTS["step"] < least_steps:
        seeded(number + COUNTS["step"])(Machine)
        explore(20, 50)
    for name, count in sorted(COUNTS.items()):
        print(f"{count:8,}  {name}")


if __name__ == "__main__":
    main()
