"""One commit point: what the driver saves, refuses and says, with a stub in the place of the learner."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from backstream.data.columns import Columns
from backstream.data.rows import Batch
from backstream.data.sources import Source, open_source
from backstream.engine import driver, environment
from backstream.engine.driver import Loop
from backstream.engine.model_errors import explained
from backstream.errors import InputError, RunError
from backstream.models import LinearGaussian
from backstream.runs.checkpoints import Checkpoints
from backstream.runs.config import Config
from backstream.runs.model_registry import find
from backstream.runs.store import RunWriter, read_filtered, read_rejected
from backstream.settings import Saving
from tests.soak.stub_reader import ModelError, StubReader

EVERY = 5
CONFIG = Config(columns=Columns(("y",), time="at"), saving=Saving(EVERY, keep=2))


def written(path, times):
    path.write_text("".join(json.dumps({"at": time, "y": i / 3}) + "\n" for i, time in enumerate(times)))
    return path


def times(count):
    return [f"{i}" for i in range(count)]


def learn(run, source, config=CONFIG, holds="all", breaks_at=None, **options):
    """All rows of a source; what was said."""
    said = []
    opened = open_source(source, config.columns, dtype="float64", **options)
    with closing(RunWriter(run, config)) as writer:
        reader = StubReader(config.columns.key is not None, EVERY, breaks_at)
        for _ in Loop(reader, opened, config, writer, holds, warn=said.append).run():
            pass
    return said


def newest(run):
    checkpoints = Checkpoints(run / "checkpoints")
    return checkpoints.about(checkpoints.positions()[-1])


@pytest.mark.parametrize("elapsed", [False, True])
def test_a_row_that_cannot_be_written_is_set_aside_and_the_stream_goes_on(tmp_path, elapsed):
    """Half of a pair of characters as a time, which no file can hold. The time elapsed is then that since the row
    before, and no row is missing or doubled after a resume."""
    config = replace(CONFIG, columns=replace(CONFIG.columns, elapsed=elapsed))
    odd = times(12)
    odd[7] = "\ud800"
    source, run = written(tmp_path / "obs.jsonl", odd), tmp_path / "run"
    for _ in range(2):
        with pytest.raises(RunError, match=r"1 rows of .* could not be used, .*row 8 \(line 8\), column 'at' holds"):
            learn(run, source, config)
        assert read_filtered(run)["row"].to_pylist() == list(range(12))
        assert read_filtered(run)["time"].to_pylist() == [*times(7), None, *times(12)[8:]]
        (rejected,) = read_rejected(run)
        assert rejected.row == 7 and json.loads(rejected.content) == {"at": "\ud800", "y": 7 / 3}
    if elapsed:
        (batch,) = open_source(source, config.columns).batches()
        np.testing.assert_array_equal(batch.inputs[:, 0], [0, 1, 1, 1, 1, 1, 1, 0, 2, 1, 1, 1])


def test_a_model_that_raises_leaves_the_run_where_it_was_saved(tmp_path):
    """At row 7, with results up to 5 saved: nothing of the piece in between is written, and the run goes on."""
    source, run = written(tmp_path / "obs.jsonl", times(12)), tmp_path / "run"
    with pytest.raises(ModelError):
        learn(run, source, breaks_at=7)
    assert newest(run).position == 5 and read_filtered(run)["row"].to_pylist() == list(range(5))
    learn(run, source)
    learn(tmp_path / "whole", source)
    assert newest(run).digest == newest(tmp_path / "whole").digest
    assert read_filtered(run) == read_filtered(tmp_path / "whole")


def test_another_source_is_refused_and_nothing_is_written(tmp_path):
    """Rows inserted before the position, and rows of a pipe that does not repeat what was read."""
    source, run = written(tmp_path / "obs.jsonl", times(8)), tmp_path / "run"
    learn(run, source)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="row 3 differs"):
        learn(run, written(tmp_path / "other.jsonl", ["0", "1", "x", *times(12)[2:]]))
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    damaged = run / "checkpoints" / "000000000008" / "state.bin"
    damaged.write_bytes(b"0" * 16)
    with pytest.raises(RunError, match="the rows from 6 to 8 would be lost: give them again"):
        learn(run, written(tmp_path / "rest.jsonl", times(4)), holds="rest")
    (said,) = learn(run, source)
    assert "000000000008 is damaged" in said and newest(run).position == 8


def test_a_rotation_counts_even_where_no_row_is_new(tmp_path):
    """All rows of the old file are saved when it is rotated: the run is continued with the new file as it stands."""
    log, run, looks = written(tmp_path / "log.jsonl", times(10)), tmp_path / "run", []

    def stopped():
        looks.append(0)
        if len(looks) == 5:  # once its rows have been read
            log.rename(tmp_path / "log.1.jsonl")
            log.write_text("")
        return len(looks) > 25

    learn(run, log, follow=True, stopped=stopped)
    assert newest(run).position == 10 and newest(run).record["source"]["begins"] == 10
    log.write_text(json.dumps({"at": "10", "y": 1.0}) + "\n")
    learn(run, log)
    assert read_filtered(run)["time"].to_pylist() == times(11)


class Arriving(Source):
    """Rows that come in batches of three."""

    def __init__(self, count):
        self.name, self._starts = "standard input", range(0, count, 3)

    def batches(self, last_time=None):
        for start in self._starts:
            labels = [f"{i}" for i in range(start, start + 3)]
            yield Batch(start, np.arange(start, start + 3)[:, None] / 3, None, labels)


@pytest.mark.parametrize(("holds", "saved"), [("rest", 6), ("all", 0)])
def test_rows_taken_from_a_pipe_are_read_before_it_stops(tmp_path, holds, saved):
    """By Ctrl-C, SIGTERM or SIGHUP: they would not come again. Those of a file would."""
    with closing(RunWriter(tmp_path / "run", CONFIG)) as writer:
        reader = StubReader(False, EVERY)
        for _ in Loop(reader, Arriving(6), CONFIG, writer, holds, stopped=lambda: True).run():
            pass
    assert max(Checkpoints(tmp_path / "run" / "checkpoints").positions(), default=0) == saved


def test_the_clock_saves_too(tmp_path, monkeypatch):
    """Every 10 seconds, here with 4 seconds between two batches of three rows: after the third."""
    config = replace(CONFIG, saving=Saving(1000, checkpoint_seconds=10.0))
    now, positions = [0.0], Checkpoints(tmp_path / "run" / "checkpoints").positions
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])
    saved = []
    with closing(RunWriter(tmp_path / "run", config)) as writer:
        for _ in Loop(StubReader(False, 1000), Arriving(12), config, writer).run():
            saved.append(max(positions(), default=0))
            now[0] += 4
    assert saved == [0, 0, 0, 9] and positions()[-1] == 12


def test_another_compiler_is_noticed(tmp_path, monkeypatch):
    source, run = written(tmp_path / "obs.jsonl", times(6)), tmp_path / "run"
    assert learn(run, source) == []
    assert set(newest(run).record["environment"]) == {"backstream", "jax", "jaxlib", "XLA_FLAGS", "device"}
    assert learn(run, source) == []
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    (said,) = learn(run, source)
    assert "another XLA_FLAGS" in said and "fast_math" in said and "its last digits may differ" in said
    for name in ("jax", "jaxlib", "device"):
        assert f"another {name} ('other', now" in environment.differences(environment.current() | {name: "other"})[0]


@pytest.fixture
def pump(tmp_path, monkeypatch):
    """A model in a file of its own, with a mistake in its fourth line, and an error that came from there."""
    file, module = tmp_path / "pump.py", ModuleType("pump")
    file.write_text("from backstream.models import Growth\nclass Pump(Growth):\n  def wrong(self):\n    1 / 0\n")
    module.__file__ = str(file)
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "pump", module)
    model = module.Pump()
    with pytest.raises(ZeroDivisionError) as caught:
        model.wrong()
    return file, model, caught.value


def test_an_error_of_a_model_has_its_file_and_line(pump):
    """Raised while it is traced, or by a callback of the compiled program, whose error has the place in its text."""
    file, model, error = pump
    for raised in (
        error,
        RuntimeError(
            f'INTERNAL: CpuCallback error\n  File "{file}", line 4, in f\nZeroDivisionError: division by zero'
        ),
    ):
        said = str(explained(raised, model, "obs.csv", 41))
        assert said.startswith(f"The model failed at {file}, line 4, in the rows after row 41 of obs.csv: ")
        assert "ZeroDivisionError: division by zero" in said


def test_a_model_without_states_is_refused():
    none = np.zeros((0, 0))
    with pytest.raises(ValueError, match="Q0 is that of a model with no states"):
        LinearGaussian(np.zeros(0), none, none, np.zeros((1, 0)), none, np.eye(1))
    for name in ("linear-gaussian", "chaotic-rnn", "stochastic-volatility"):
        with pytest.raises(InputError, match="dim must be at least 1: there are no states"):
            find(name, {"dim": 0})


@pytest.mark.parametrize("name", ["linear-gaussian", "chaotic-rnn", "stochastic-volatility"])
def test_a_model_that_would_take_all_memory_is_refused_before_it_does(name):
    """Its parameters may come from somebody else's run. The compiler would end the process."""
    with pytest.raises(InputError, match=r"it would consist of .* numbers, where 100,000,000 are the most"):
        find(name, {"dim": 10**9})
