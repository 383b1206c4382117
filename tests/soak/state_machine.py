"""The driver, the writer and the readers of files under every fault that we can make, in any order.

    python -m tests.soak.state_machine      # 10 000 steps; SOAK_SEED=... repeats a run

A stub learns, so that thousands of lives of a process take minutes; everything between the file of observations and
the run directory is the real thing. What was acknowledged must be there exactly once, and in the end every byte of the
results must be that of a run over the same rows which met no fault.
"""

import os
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from backstream.errors import InputError, RunError
from backstream.runs import formats
from backstream.runs.checkpoints import Checkpoints
from backstream.runs.results import part_file, part_files, read_parquet
from backstream.runs.store import read_filtered, read_rejected
from benchmarks.harness import Results

from .faulty_world import ACTIONS, COUNTS, EVERY, FAULTS, World

RESULTS = Path(__file__).parent / "results" / "state_machine.json"
LEAST_STEPS = 10_000


class Machine(World):
    """What happens, in any order, and what must hold."""

    @rule(actions=ACTIONS, fault=FAULTS)
    def work(self, actions: list[tuple[str, Any]], fault: tuple[str, int] | None) -> None:
        COUNTS["step"] += 1
        self.work_on(actions, fault)
        self.check_acknowledged()

    @rule(count=st.integers(1, 20))
    def grow(self, count: int) -> None:
        COUNTS["step"] += 1
        self.append(count)

    @precondition(lambda self: len(self.begins) == 1 and len(self.usable()) > 1)  # all rows are still there
    @rule(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), data=st.data())
    def corrupt(self, where: float, bit: int, data: Any) -> None:
        """A byte of the newest checkpoint: the one before it is used, and no row is lost."""
        COUNTS["step"] += 1
        COUNTS["corrupted byte of a checkpoint"] += 1
        newest, before, *_ = self.usable()
        folder = Checkpoints(self.run / "checkpoints").path(newest.position)
        flip(data.draw(st.sampled_from(sorted(folder.iterdir()))), where, bit)
        self.acknowledged = min(self.acknowledged, before.position)

    @precondition(lambda self: len(self.begins) == 1)
    @rule(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def corrupt_results(self, where: float, bit: int) -> None:
        """A byte of the part that is not full: the checkpoint before that part is used. Of a full part: it is named
        when it is read, and the stream goes on."""
        COUNTS["step"] += 1
        newest, parts = self.reached(), part_files(self.run / "filtered")
        begun = newest - newest % EVERY
        before = [about.position for about in self.usable() if about.position <= begun]
        if newest % EVERY and before:
            COUNTS["corrupted byte of results"] += 1
            flip(part_file(self.run / "filtered", begun), where, bit)
            self.acknowledged = min(self.acknowledged, before[0])
        elif newest and int(parts[0].stem) < begun:
            COUNTS["corrupted byte of old results"] += 1
            right = parts[0].read_bytes()
            flip(parts[0], where, bit)
            wrong = parts[0].read_bytes()
            self.live([("append", 3)], None)
            if parts[0].exists() and parts[0].read_bytes() == wrong:  # not removed, nor merged where it does not matter
                parts[0].write_bytes(right)
            self.check_acknowledged()

    @precondition(lambda self: self.reached() > self.begins[-1])
    @rule(how=st.sampled_from(["insert", "change", "cut"]), where=st.floats(0, 1, exclude_max=True))
    def swap(self, how: str, where: float) -> None:
        """Another source under the same name is refused by the first row that differs, and the run stays as it is."""
        COUNTS["step"] += 1
        COUNTS["swapped source"] += 1
        right, before = self.log.read_bytes(), self.reached()
        rows = right.splitlines(keepends=True)
        place = int(where * (self.reached() - self.begins[-1]))
        said = f"row {place + 1} differs"
        if how == "insert":
            rows.insert(place, b'{"at": "t", "key": "a", "y": -1}\n')
        elif how == "change":
            rows[place] = b'{"at": "t", "key": "a", "y": -2}\n'
        else:
            rows, said = rows[:place], "has already read|is empty"
        self.log.write_bytes(b"".join(rows))
        with pytest.raises(InputError, match=said):
            self.live([], None, follow=False)
        self.log.write_bytes(right)
        assert self.reached() == before

    @precondition(lambda self: self.reached() > self.begins[-1])
    @rule(grown=st.booleans())
    def truncate(self, grown: bool) -> None:
        """While it is followed: an error that says so; nothing beyond it is read. The file is brought back."""
        COUNTS["step"] += 1
        while not self.work_on([], None):  # a damaged row would be found first
            pass
        right = self.log.read_bytes()

        def emptied() -> None:
            COUNTS["truncation"] += 1
            self.log.write_bytes(right[: len(right) // 2] if not grown else b"\n" * 3 + right.replace(b"t", b"x"))

        with (
            mock.patch.object(self, "act", lambda what, _: emptied() if what == "truncate" else None),
            pytest.raises(RunError, match=r"has become shorter|was emptied and written again"),
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

    @precondition(lambda self: self.format + 3 > formats.FORMAT_VERSION)
    @rule()
    def upgrade(self) -> None:
        """The next life is that of a version with another format, which migrates what it finds."""
        COUNTS["step"] += 1
        COUNTS["upgraded format"] += 1
        number, self.upgraded = formats.FORMAT_VERSION, True
        formats.CONFIG_MIGRATIONS[number] = lambda tables: tables
        formats.RECORD_MIGRATIONS[number] = lambda record: {**record, "format": number + 1}
        formats.FORMAT_VERSION += 1

    # ---- what must hold ----------------------------------------------------------------------------------------------
    def check_acknowledged(self) -> None:
        assert self.reached() >= self.acknowledged

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            while not self.work_on([], None):  # each time a damaged row is mended
                assert not self.keyed
            assert self.live([], None, follow=False)
            self.compare()
        finally:
            shutil.rmtree(self.folder)
            formats.FORMAT_VERSION = self.format
            formats.CONFIG_MIGRATIONS.clear()
            formats.RECORD_MIGRATIONS.clear()

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
            if name.endswith(".parquet") and self.upgraded:  # the format is written into each part
                assert read_parquet(self.run / "filtered" / name) == read_parquet(whole.run / "filtered" / name)
            else:
                assert name == "rejected.jsonl" or self.files()[name] == content, (name, self.files()[name], content)
        one, other = ([row._replace(reason="") for row in read_rejected(path)] for path in (self.run, whole.run))
        assert one == other
        rows = read_filtered(self.run)["row"].to_pylist()
        assert rows == list(range(rows[0], len(self.written)))
        assert rows[0] == 0 or self.config.saving.keep_results
        states = [Checkpoints(path / "checkpoints").about(len(self.written)).digest for path in (self.run, whole.run)]
        assert states[0] == states[1]


def flip(file: Path, where: float, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    file.write_bytes(content)


def explore(number: int, examples: int, steps: int) -> None:
    """Random examples; the same number gives the same ones."""
    checks, phases = list(HealthCheck), [Phase.generate]
    chosen = settings(stateful_step_count=steps, deadline=None, suppress_health_check=checks, phases=phases)
    seeded(number)(Machine)
    run_state_machine_as_test(Machine, settings=settings(chosen, max_examples=examples, database=None))


def soak(number: int) -> dict[str, Any]:
    while COUNTS["step"] < LEAST_STEPS:
        explore(number + COUNTS["step"], 20, 50)
    return {"seed": number, "violations": 0, "counts": dict(sorted(COUNTS.items()))}


def main() -> None:
    number = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(2**32))
    print(f"SOAK_SEED={number}", flush=True)
    results = Results(RESULTS, "python -m tests.soak.state_machine", {"steps": LEAST_STEPS})
    found = results.run("faults", lambda: soak(number))
    for name, count in found["counts"].items():
        print(f"{count:8,}  {name}")


if __name__ == "__main__":
    main()
