"""Many streams in one source: every kind of source gives them, ticks do not depend on how rows arrive, runs resume to
the same bytes, and one bad stream does not stop the others."""

import json
from contextlib import closing
from functools import cache
from itertools import islice

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstream.io.catalogue import describe
from backstream.io.checkpoints import Checkpoints
from backstream.io.config import Columns, Config, Saving
from backstream.io.errors import InputError, RunError
from backstream.io.keyed import Ticker, assemble, learn
from backstream.io.results import Run
from backstream.io.runs import RunWriter
from backstream.io.sources import open_source, read_all
from backstream.io.streaming import prepare
from backstream.learning import FleetSettings, Settings
from backstream.models import ChaoticRNN
from command import contents

SETTINGS = Settings(lag=3, trajectories=2, width=3, monitor_every=10)
COLUMNS = Columns(observed=("y",), key="sensor")


@cache
def model():
    return ChaoticRNN.random(1, key=jax.random.key(0))


def config(**fleet):
    fleet = FleetSettings(**{"tick_rows": 4, "watched": 2, **fleet})
    return Config("0.1.0", "float64", describe(model()), SETTINGS, COLUMNS, Saving(checkpoint_every=30), fleet)


@cache  # one learner, compiled once
def prepared():
    return prepare(model(), config())


def lines(count=100, streams="abcde", seed=0):
    """A header, then rows of some streams in no order, with empty cells."""
    rng, seen = np.random.default_rng(seed), dict.fromkeys(streams, 0)
    rows = []
    for i in range(count):
        name = str(rng.choice(list(streams)))
        seen[name] += 1
        y = np.sin(seen[name] / 5) + 0.1 * rng.normal()
        rows.append(f"{name}," + ("" if i % 37 == 5 else f"{y:.5f}"))
    return ["sensor,y", *rows]


def write(folder, rows, kind="csv"):
    path = folder / f"obs.{kind}"
    cells = [row.split(",") for row in rows[1:]]
    if kind == "csv":
        path.write_text("\n".join(rows) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"sensor": k, "y": float(y) if y else None}) + "\n" for k, y in cells))
    else:
        names, ys = [k for k, _ in cells], [float(y) if y else None for _, y in cells]
        pq.write_table(pa.table({"sensor": names, "y": ys}), path)
    return path


def run(path, folder, made=None, pieces=None, warn=lambda sentence: None):
    """All of a source into a run, or until so many pieces are done."""
    made = made or config()
    with closing(RunWriter(folder, made)) as writer:
        running = learn(prepared(), open_source(path, COLUMNS, dtype="float64"), made, writer, warn=warn)
        with closing(running):
            return list(islice(running, pieces))


def digest(folder):
    checkpoints = Checkpoints(folder / "checkpoints")
    return checkpoints.about(checkpoints.positions()[-1]).digest


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_kind_of_source_names_the_streams(tmp_path, kind):
    rows = lines(30)
    batch = read_all(open_source(write(tmp_path, rows, kind), Columns(key="sensor")))
    assert batch.keys == [row.split(",")[0] for row in rows[1:]] and batch.ys.shape == (30, 1)
    with pytest.raises(InputError, match="has no column 'machine'; it has: sensor, y"):
        open_source(tmp_path / f"obs.{kind}", Columns(key="machine"))


@given(st.lists(st.sampled_from("abcd"), min_size=1), st.integers(1, 5), st.integers(1, 9))
def test_ticks(names, most, every):
    """At most one row of a stream, at most `most` rows, none across a checkpoint, none that could have been longer."""
    ticker = Ticker(most, every)
    ticks = [ticker.place(row, name) for row, name in enumerate(names)]
    groups = [[i for i, tick in enumerate(ticks) if tick == t] for t in range(ticks[-1] + 1)]
    assert [i for group in groups for i in group] == list(range(len(names)))
    for group, after in zip(groups, [*groups[1:], None], strict=True):
        inside = [names[i] for i in group]
        assert len(set(inside)) == len(inside) <= most and group[0] // every == group[-1] // every
        if after is not None:
            assert names[after[0]] in inside or len(group) == most or after[0] % every == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path = write(folder, lines())
    run(path, folder / "run")
    return folder


def test_a_run_holds_every_row_with_its_stream(whole):
    table = pq.read_table(whole / "run" / "filtered")
    assert table["row"].to_pylist() == list(range(100)) and table.column_names[:2] == ["row", "key"]
    assert table["key"].to_pylist() == [row.split(",")[0] for row in lines()[1:]]
    assert np.isfinite(table["mean_0"].to_numpy()).all()
    reports = Run(whole / "run", model()).reports()
    first = list(dict.fromkeys(table["key"].to_pylist()))[:2]
    assert len(reports) >= 2 and {report.stream for report in reports} == set(first)
    for report in reports:  # after 10 rows of its own, counted from the second
        assert report.t % 10 == 1 and table["key"].to_pylist()[: report.row].count(report.stream) == report.t


def test_a_stopped_run_goes_on_to_the_same_bytes(whole, tmp_path):
    """Stopped in the middle of a part, of a tick and of the monitor's windows."""
    pieces = run(whole / "obs.csv", tmp_path / "run", pieces=2)
    assert 30 < pieces[-1].position < 100
    run(whole / "obs.csv", tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole / "run")
    assert digest(tmp_path / "run") == digest(whole / "run")


def test_how_rows_arrive_changes_nothing(whole, tmp_path, monkeypatch):
    """Blocks of a few bytes in place of whole files."""
    import backstream.io.lines as module

    read = module.os.read
    monkeypatch.setattr(module.os, "read", lambda descriptor, size: read(descriptor, 50))
    run(whole / "obs.csv", tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole / "run")


def test_one_bad_stream_does_not_stop_the_others(whole, tmp_path):
    """It is set aside from its bad row on; up to there nothing changes; the run says so, and fails in the end."""
    rows, said = lines(), []
    bad = next(i for i in range(50, 100) if rows[i].startswith("c"))
    nameless = next(i for i in range(60, 100) if rows[i].startswith("d"))
    rows[bad] += ",7"
    rows[nameless] = rows[nameless].replace("d", "", 1)
    with pytest.raises(RunError, match=r"1 of the streams could not be read to the end .'c'.*has 3 cells"):
        run(write(tmp_path, rows), tmp_path / "run", warn=said.append)
    assert [word in said[0] + said[1] for word in ("'c' is set aside", "belongs to no stream")] == [True, True]
    found, good = (pq.read_table(folder / "run" / "filtered") for folder in (tmp_path, whole))
    mean, keys = found["mean_0"].to_numpy(), good["key"].to_pylist()
    assert found["row"].to_pylist() == list(range(100))
    closed = bad - 1 - 4  # a tick of 4 rows may have the bad one in it
    np.testing.assert_array_equal(mean[:closed], good["mean_0"].to_numpy()[:closed])
    left_out = [i for i, key in enumerate(keys) if i == nameless - 1 or (key == "c" and i >= bad - 1)]
    assert np.flatnonzero(np.isnan(mean)).tolist() == left_out
    assert np.flatnonzero(found["refused"].to_numpy()).tolist() == left_out
    opened = Run(tmp_path / "run", model())
    assert opened.streams() == list("abde") and int(opened.stream("e").t) == keys.count("e")


def test_what_was_learned_is_used_stream_by_stream(whole):
    """Filtering and smoothing a source of many streams is doing so for each of its streams."""
    opened = Run(whole / "run", model())
    batch = opened.data(whole / "obs.csv")
    smoothed = opened.smooth(batch)
    rows = [i for i, key in enumerate(batch.keys) if key == "b"]
    alone = opened.smooth(batch._replace(ys=batch.ys[rows], keys=None))
    np.testing.assert_allclose(np.asarray(smoothed.mean)[rows], alone.mean, rtol=1e-12)
    assert opened.streams() == list("abcde")
    ahead = opened.forecast(3, stream="b")
    assert ahead.observations.values.shape == (1000, 3, 1)
    with pytest.raises(InputError, match="many streams: say of which"):
        opened.forecast(3)
    with pytest.raises(InputError, match="no stream 'z'"):
        opened.forecast(3, stream="z")


def test_memory_follows_the_live_streams():
    """Forty streams come and go: slots are used again, and given back."""
    fleet = assemble(prepared(), config(forget_after=24, watched=0))
    names = [f"s{i // 3}" for i in range(120)]
    for start in range(0, 120, 15):
        part = names[start : start + 15]
        fleet.read(part, list(range(15)), np.zeros((15, 1)), rows=range(start, start + 15))
    assert fleet.capacity == 16 and len(fleet.members) == 9
    for row in range(120, 140):
        fleet.read(["s39"], [0], np.zeros((1, 1)), rows=[row])
    fleet.tidy()
    assert fleet.capacity == fleet.state.capacity == 8 and list(fleet.members)[-1] == "s39" and len(fleet.members) <= 3
    assert int(fleet.panel.stream(fleet.state, fleet.members["s39"].slot).t) == 23
