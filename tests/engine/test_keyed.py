"""Many streams in one source: every kind of source gives them, ticks do not depend on how rows arrive, runs resume to
the same bytes, and one bad stream does not stop the others."""

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpyro.distributions import constraints

from backstream.data.columns import Columns
from backstream.data.sources import open_source, read_all
from backstream.engine.driver import learn
from backstream.engine.fleet_reader import Ticker, assemble
from backstream.engine.preparation import prepare
from backstream.engine.run import Run
from backstream.errors import InputError, RunError
from backstream.learning import FleetSettings, Settings
from backstream.models import ChaoticRNN, StateSpaceModel
from backstream.runs.checkpoints import Checkpoints
from backstream.runs.config import Config
from backstream.runs.model_registry import describe
from backstream.runs.store import RunWriter, read_rejected, read_reports
from backstream.settings import Saving
from command import contents, here
from command import run as run_command

ARGUMENTS = (
    *("stream", "chaotic-rnn", "--set", "dim=1", "--key", "sensor", "--precision", "float64", "--no-print"),
    *("--lag", "3", "--trajectories", "2", "--width", "3", "--monitor-every", "20", "--checkpoint-every", "30"),
    *("--tick-rows", "4"),
)
"""The same from the command line, with reports further apart."""
SETTINGS = Settings(lag=3, trajectories=2, width=3, monitor_every=10)
COLUMNS = Columns(observed=("y",), key="sensor")


@cache
def model():
    return ChaoticRNN.random(1, key=jax.random.key(0))


def config(**fleet):
    fleet = FleetSettings(**{"tick_rows": 4, "watched": 2, **fleet})
    saving = Saving(checkpoint_every=30)
    return Config(1, "0.2.0", "float64", describe(model()), SETTINGS, COLUMNS, saving, fleet)


@cache  # one learner, compiled once
def prepared():
    return prepare(model(), config(), {})


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
        running = learn(model(), open_source(path, COLUMNS, dtype="float64"), made, writer, warn=warn)
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
    reports = Run(whole / "run", model()).reports
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
    import backstream.data.lines as module

    read = module.os.read
    monkeypatch.setattr(module.os, "read", lambda descriptor, size: read(descriptor, 50))
    run(whole / "obs.csv", tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole / "run")


def test_one_bad_stream_does_not_stop_the_others(whole, tmp_path):
    """Its bad rows are set aside, with the reason and their content; everything else is read; the run says so, and
    fails in the end. What was counted is so also after a stop."""
    rows, said = lines(), []
    bad = next(i for i in range(50, 100) if rows[i].startswith("c"))
    nameless = next(i for i in range(60, 100) if rows[i].startswith("d"))
    rows[bad] += ",7"
    rows[nameless] = rows[nameless].replace("d", "", 1)
    run(write(tmp_path, rows), tmp_path / "run", pieces=2, warn=said.append)
    with pytest.raises(RunError, match=r"2 rows of .*obs.csv could not be used, .*has 3 cells.*run/rejected\.jsonl"):
        run(tmp_path / "obs.csv", tmp_path / "run", warn=said.append)
    assert [word in said[0] + said[1] for word in ("has 3 cells", "belongs to no stream")] == [True, True]
    rejected = [(one.row, one.key, one.content) for one in read_rejected(tmp_path / "run")]
    assert rejected == [(bad - 1, "c", rows[bad]), (nameless - 1, "", rows[nameless])]
    found, good = (pq.read_table(folder / "run" / "filtered") for folder in (tmp_path, whole))
    mean, keys = found["mean_0"].to_numpy(), good["key"].to_pylist()
    assert found["row"].to_pylist() == list(range(100))
    closed = bad - 1 - 4  # a tick of 4 rows may have the bad one in it
    np.testing.assert_array_equal(mean[:closed], good["mean_0"].to_numpy()[:closed])
    left_out = [bad - 1, nameless - 1]
    assert np.flatnonzero(np.isnan(mean)).tolist() == left_out
    assert np.flatnonzero(found["refused"].to_numpy()).tolist() == left_out
    opened = Run(tmp_path / "run", model())
    assert opened.streams() == list("abcde") and int(opened.stream("e").t) == keys.count("e")
    assert int(opened.stream("c").t) == keys.count("c") - 1


@pytest.mark.slow
def test_what_was_learned_is_used_stream_by_stream(whole):
    """Filtering and smoothing a source of many streams is doing so for each of its streams."""
    opened = Run(whole / "run", model())
    batch = opened.data(whole / "obs.csv")
    smoothed = opened.smooth(batch)
    rows = [i for i, key in enumerate(batch.keys) if key == "b"]
    alone = opened.smooth(replace(batch, ys=batch.ys[rows], keys=None))
    np.testing.assert_allclose(np.asarray(smoothed.mean)[rows], alone.mean, rtol=1e-12)
    assert opened.streams() == list("abcde")
    ahead = opened.forecast(3, stream="b")
    assert ahead.observations.values.shape == (1000, 3, 1)
    with pytest.raises(InputError, match="many streams: name one"):
        opened.forecast(3)
    with pytest.raises(InputError, match="no stream 'z'"):
        opened.forecast(3, stream="z")


@pytest.mark.slow
def test_every_command_knows_the_streams(tmp_path, monkeypatch):
    """A run from the command line in which one row has too many cells: it alone is set aside, in learning and in
    smoothing, and both end with code 1. What a command says of a stream is what the files hold of it."""
    rows, folder = lines(), tmp_path / "run"
    last = max(i for i, row in enumerate(rows) if row.startswith("c,"))
    rows[last] += ",1.0"
    source, states = write(tmp_path, rows), tmp_path / "states.csv"
    states.write_text("x\n" + "\n".join(f"{np.sin(i):.3f}" for i in range(100)) + "\n")
    said = run_command(*ARGUMENTS, source, "--out", folder, check=1).stderr
    assert f"line {last + 1}, has 3 cells" in said and f"1 rows of {source} could not be used" in said
    stderr = here(*ARGUMENTS, source, "--key", "machine", "--out", tmp_path / "no", check=2).stderr
    assert "has no column 'machine'; it has: sensor, y." in stderr and not (tmp_path / "no").exists()

    stderr = here("smooth", folder, source, check=1).stderr
    assert f"line {last + 1}, has 3 cells, but the header has 2. The row is passed over." in stderr
    smoothed = pq.read_table(folder / "smoothed.parquet")
    mean, keys = smoothed["mean_0"].to_numpy(), np.asarray(smoothed["key"].to_pylist())
    assert np.flatnonzero(np.isnan(mean)).tolist() == [last - 1]
    found = json.loads(here("evaluate", folder, "--states", states, "--source", source, "--json", check=1).stdout)
    truth = np.sin(np.arange(100)).round(3)
    assert found["smoothed, as learned"]["rmse"] == pytest.approx(np.sqrt(np.nanmean((mean - truth) ** 2)), rel=1e-9)
    here("forecast", folder, "--horizon", 3, "--stream", "a", "--stream", "d", "--samples", 20)
    assert pq.read_table(folder / "forecast.parquet")["key"].to_pylist() == ["a"] * 3 + ["d"] * 3
    assert "no stream 'z'" in here("forecast", folder, "--stream", "z", check=2).stderr

    stdout = here("inspect", folder).stdout
    assert "5 by sensor, one posterior learned from all" in stdout and "Set aside  1 rows, in rejected.jsonl" in stdout
    watched = {report.stream for report in read_reports(folder)}
    assert watched and all(f"ELBO       {name}: " in stdout for name in watched)
    assert "no stream 'z' among its 5" in here("plot", folder, "--stream", "z", check=2).stderr
    figures = []
    monkeypatch.setattr("backstream.plots.save", lambda figure, target, config: figures.append(figure))
    assert "of 'd', one of 5 streams" in here("plot", folder, "--stream", "d", "--states", states).stderr
    drawn = {line.get_label(): line.get_xydata() for line in figures[0].axes[0].lines}
    mine = np.flatnonzero(keys == "d")
    np.testing.assert_array_equal(drawn["smoothed, 90 % band"], np.column_stack([np.arange(len(mine)), mean[mine]]))
    np.testing.assert_array_equal(drawn["truth"][:, 1], truth[mine])
    assert drawn["forecast, 90 % band"][:, 0].tolist() == [len(mine), len(mine) + 1, len(mine) + 2]


class Pushed(StateSpaceModel):
    """A walk that a known input pushes, and whose steps grow with the time that has gone by."""

    noise: jax.Array
    constraints: ClassVar = {"noise": constraints.positive}

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + 0.1 * u[0], 0.1 * jnp.sqrt(u[1] + 1e-3)).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.noise).to_event(1)


@pytest.mark.slow
def test_inputs_time_and_model_of_each_stream_are_its_own(tmp_path):
    """Streams with inputs, time elapsed, missing rows and a θ of their own, interleaved: each is learned and smoothed
    as it is alone, from a file with its rows only, when it draws the same."""
    rng, rows = np.random.default_rng(0), []
    for name, every in (("a", 1), ("b", 3)):
        at = np.cumsum(rng.integers(1, 4, 20) * every)
        values = [f"{y:.4f}" if i % 7 else "" for i, y in enumerate(rng.normal(size=20))]
        rows += [(t, f"{name},{t},{rng.normal():.3f},{y}") for t, y in zip(at, values, strict=True)]
    header, rows = "sensor,at,push,y", [row for _, row in sorted(rows)]
    columns = Columns(("y",), "at", ("push",), True, "sensor")
    world, settings = (
        Pushed(jnp.array([0.5])),
        replace(SETTINGS, learn_model=True, model_learning_rate=0.05, monitor_every=100),
    )
    kept = {"precision": "float64", "model": describe(world), "learning": settings}
    together = Config(**kept, columns=columns, fleet=FleetSettings(common=False, tick_rows=4))
    apart = Config(**kept, columns=replace(columns, key=None))

    def learned(made, folder, rows):
        source = folder.with_suffix(".csv")
        source.write_text("\n".join([header, *rows]) + "\n")
        with closing(RunWriter(folder, made)) as writer:
            list(learn(world, open_source(source, made.columns, dtype="float64"), made, writer))
        opened = Run(folder, world)
        return opened, opened.filtered.table, opened.smooth(source)

    opened, filtered, smoothed = learned(together, tmp_path / "run", rows)
    for name in "ab":
        own = [row for row in rows if row.startswith(name)]
        alone, told, law = learned(apart, tmp_path / name, own)
        mine = [i for i, row in enumerate(rows) if row.startswith(name)]
        for column in ("mean_0", "std_0"):
            np.testing.assert_allclose(filtered[column].to_numpy()[mine], told[column].to_numpy(), rtol=1e-9)
        np.testing.assert_allclose(np.asarray(smoothed.mean)[mine], law.mean, rtol=1e-8)
        ahead, expected = (one.forecast(2, np.ones((2, 2)), 4, which) for one, which in ((opened, name), (alone, None)))
        np.testing.assert_allclose(ahead.states.values, expected.states.values, rtol=1e-8)
    noise = [float(opened.stream(name).theta_average.noise[0]) for name in "ab"]
    assert abs(noise[0] - noise[1]) > 1e-3 < abs(noise[0] - np.log(0.5))  # learned, each its own


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
