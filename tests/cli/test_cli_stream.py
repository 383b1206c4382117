"""`backstream stream` as a user runs it: killed, interrupted, followed, piped; nothing lost and nothing doubled."""

import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from backstream.runs.checkpoints import Checkpoints
from command import MODEL, SECONDS, SMALL, Running, contents, csv_lines, here, run

ROWS = 130
TIMED = ("--time", "at")


def state(path):
    checkpoints = Checkpoints(path / "checkpoints")
    return checkpoints.about(checkpoints.positions()[-1])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Made in this process; what is compared with it was begun in another, and may be ended in either."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "obs.csv").write_text("".join(csv_lines(ROWS)))
    here("stream", *MODEL, folder / "obs.csv", "--out", folder / "run", *SMALL, *TIMED, "--no-print")
    return folder


def assert_equals(path, whole):
    assert contents(path) == contents(whole / "run")
    ours, theirs = state(path), state(whole / "run")
    assert ours.position == ROWS and ours.digest == theirs.digest


@pytest.mark.slow
def test_a_run_holds_every_row_once(uninterrupted):
    """Parts of 30 rows, the last one shorter; the monitor at every 20 rows after the first."""
    table = pq.read_table(uninterrupted / "run" / "filtered")
    columns = ["row", "time", "refused", "log_score", "mean_0", "std_0", "pit_0", "residual_0", "crps_0"]
    assert table.column_names == columns
    assert table["row"].to_pylist() == list(range(ROWS))
    assert table["time"][65].as_py() == "2024-01-01T00:01:05"
    reports = [json.loads(line) for line in (uninterrupted / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [report["t"] for report in reports] == [21, 41, 61, 81, 101, 121]
    assert len(list((uninterrupted / "run" / "filtered").iterdir())) == 5
    assert Checkpoints(uninterrupted / "run" / "checkpoints").positions() == [90, 120, ROWS]
    about = pq.read_schema(next((uninterrupted / "run" / "filtered").iterdir())).metadata
    assert about[b"backstream"] and b"chaotic-rnn" in about[b"config"]


@pytest.mark.slow
def test_kill_and_resume_give_the_same_bytes(uninterrupted, tmp_path):
    """kill -9 between two checkpoints; what had been written beyond the last one is dropped."""
    lines = csv_lines(ROWS)
    with Running("stream", *MODEL, "-", "--out", tmp_path / "run", *SMALL, *TIMED) as running:
        running.feed("".join(lines[:81]))
        while json.loads(running.line())["row"] < 79:
            pass
        running.process.kill()
    assert state(tmp_path / "run").position == 60
    # As if it had been killed a moment later, after the part and before the checkpoint, in the middle of a report.
    part = tmp_path / "run" / "filtered" / "000000000060.parquet"
    part.write_bytes((tmp_path / "run" / "filtered" / "000000000030.parquet").read_bytes())
    with open(tmp_path / "run" / "metrics.jsonl", "ab") as file:
        file.write(b'{"version": "0.2.0", "t": 81, "elb')
    here("stream", *MODEL, uninterrupted / "obs.csv", "--out", tmp_path / "run", "--resume", "--no-print")
    assert_equals(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_following_a_file_that_grows_until_ctrl_c(uninterrupted, tmp_path):
    """Rows come as they are written; half a line is not read; Ctrl-C stops with a checkpoint, in the middle of a part
    and of a window, and the rest can be added later."""
    lines, growing = csv_lines(ROWS), tmp_path / "growing.csv"
    growing.write_text("".join(lines[:50]))
    command = ("stream", *MODEL, growing, "--out", tmp_path / "run", *TIMED)
    with Running(*command, *SMALL, "--follow") as running:
        for row in range(49):
            assert json.loads(running.line())["row"] == row
        with open(growing, "a") as file:
            file.write("".join(lines[50:70]) + lines[70][:25])
            file.flush()
            for row in range(49, 69):
                assert json.loads(running.line())["row"] == row
            assert running.line(seconds=1.5) is None
            file.write(lines[70][25:])
        assert json.loads(running.line())["row"] == 69
        running.process.send_signal(signal.SIGINT)
        running.end(check=130)
    assert state(tmp_path / "run").position == 70
    assert pq.read_table(tmp_path / "run" / "filtered").num_rows == 70
    with open(growing, "a") as file:
        file.write("".join(lines[71:]))
    here(*command, "--resume", "--no-print")
    assert_equals(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_pipe_whose_reader_goes_away(uninterrupted, tmp_path):
    """One row at a time comes out as it goes in; when nobody reads any more, what was computed is saved. A pipe then
    goes on where it was: JSON Lines this time."""
    lines = csv_lines(ROWS)
    with Running("stream", *MODEL, "-", "--out", tmp_path / "run", *SMALL, *TIMED) as running:
        running.feed(lines[0])
        for row in range(3):
            running.feed(lines[1 + row])
            assert json.loads(running.line())["row"] == row
        running.process.stdout.close()
        running.feed(lines[4])
        running.process.wait(SECONDS)
        stderr = running.process.stderr.read().decode()
    assert running.process.returncode == 1 and "Traceback" not in stderr
    assert "standard output has closed it after row 4" in stderr and "saved" in stderr
    assert state(tmp_path / "run").position == 4
    rest = (line.rstrip("\n").split(",") for line in lines[5:])
    rows = "".join(json.dumps({"at": at, "y": float(y) if y else None}) + "\n" for at, y in rest)
    run("stream", *MODEL, "-", "--out", tmp_path / "run", "--resume", "--no-print", input=rows)
    assert_equals(tmp_path / "run", uninterrupted)


def catches(process, number):
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(mask, 16) >> (number - 1) & 1


def test_waiting_for_the_first_row_can_be_interrupted():
    with Running("stream", *MODEL, "-") as running:
        running.feed("y\n")
        end = time.monotonic() + SECONDS
        while not catches(running.process, signal.SIGTERM) and time.monotonic() < end:
            time.sleep(0.05)
        running.process.send_signal(signal.SIGINT)
        running.end(check=130)


WANDERING = """
import jax.numpy as jnp
import numpyro.distributions as dist
import backstream as bs

class Wandering(bs.StateSpaceModel):
    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        kept = jnp.exp(-0.1 * u[0])
        return dist.Normal(kept * x, jnp.sqrt(1 - kept**2)).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)
"""


@pytest.mark.slow
def test_irregular_times_and_a_pipe_that_begins_again(tmp_path, monkeypatch):
    """A model from a package, the time between rows as its input; stopped after 40 of 70 rows of a pipe, then all of
    them once more with --replay: the bytes of a file read in one go."""
    (tmp_path / "plant").mkdir()
    (tmp_path / "plant" / "models.py").write_text(WANDERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.syspath_prepend(str(tmp_path))
    seconds = [0.0]
    for i in range(69):
        seconds.append(seconds[-1] + (0.1, 1.0, 7.0)[i % 3])
    lines = ["at,y\n", *(f"{at:.1f},{0.1 * (i % 11):.2f}\n" for i, at in enumerate(seconds))]
    (tmp_path / "obs.csv").write_text("".join(lines))
    options = ("--time", "at", "--elapsed", *SMALL)
    model = "plant.models:Wandering"
    here("stream", model, tmp_path / "obs.csv", "--out", tmp_path / "whole", *options, "--no-print")
    for rows, more in ((41, ()), (71, ("--resume", "--replay"))):
        piped = ("stream", model, "-", "--out", tmp_path / "pieces", *options, "--no-print", *more)
        run(*piped, input="".join(lines[:rows]))
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
    assert state(tmp_path / "pieces").digest == state(tmp_path / "whole").digest
    table = pq.read_table(tmp_path / "whole" / "filtered")
    after_long, after_short = (table["std_0"].to_numpy()[start::3].mean() for start in (60, 61))
    assert after_long > after_short  # the longer the wait, the less is known
