"""The five-minute start, command by command, and help that does not wait."""

import json
import resource
import subprocess
import tomllib

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

import backstream
from command import BACKSTREAM, SMALL, environment, here, run

OWN = """
import jax.numpy as jnp
import numpyro.distributions as dist
import backstream as bs

class Level(bs.StateSpaceModel):
    noise: float = 0.3

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, 0.1).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.noise).to_event(1)
"""


@pytest.mark.slow
def test_from_simulation_to_forecast(tmp_path):
    obs, states, folder = tmp_path / "obs.csv", tmp_path / "states.csv", tmp_path / "run"
    said = here("simulate", "chaotic-rnn", "--set", "dim=1", "-n", 130, "-o", obs, "--states", states).stderr
    assert f"backstream stream chaotic-rnn {obs} --config {obs.with_suffix('.toml')}" in said
    config = obs.with_suffix(".toml")
    assert config.read_text().startswith("# The draws: backstream simulate chaotic-rnn --rows 130 --seed 0 ")
    printed = here("stream", "chaotic-rnn", obs, "--config", config, "--out", folder, *SMALL, "--print").stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["row"] for row in rows] == list(range(130)) and len(rows[0]["mean"]) == len(rows[0]["std"]) == 1
    made_with = tomllib.loads((folder / "config.toml").read_text())
    assert rows[0]["config"] == made_with and "version" in made_with and "config" not in rows[1]

    here("smooth", folder, obs)
    smoothed = pq.read_table(folder / "smoothed.parquet")
    assert smoothed.column_names == ["row", "mean_0", "std_0"] and smoothed.num_rows == 130
    here("forecast", folder, "--horizon", 7, "-o", tmp_path / "ahead.csv", "--samples", 50)
    ahead = pyarrow.csv.read_csv(tmp_path / "ahead.csv").to_pydict()
    assert ahead["step"] == list(range(1, 8))
    assert (tmp_path / "ahead.csv.toml").read_bytes() == (folder / "config.toml").read_bytes()
    assert all(low < high for low, high in zip(ahead["y0_lower"], ahead["y0_upper"], strict=True))

    found = json.loads(here("evaluate", folder, "--states", states, "--source", obs, "--json").stdout)
    assert found["config"]["version"] == backstream.__version__
    truth = np.loadtxt(states, skiprows=1)
    mean = smoothed["mean_0"].to_numpy()
    assert found["smoothed, as learned"]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - truth) ** 2)), rel=1e-4)
    assert found["smoothed, as learned"]["rmse"] < found["the observation itself"]["rmse"]

    here("plot", folder, "--states", states, "-o", tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.text["Description"] == (folder / "config.toml").read_text()
    refused = here("plot", folder, "-o", tmp_path / "picture.xyz", check=2).stderr
    assert "picture.xyz must end in one of ." in refused
    (folder / "forecast.parquet").write_bytes((folder / "smoothed.parquet").read_bytes())
    refused = here("plot", folder, check=1).stderr
    assert "forecast.parquet has no columns state_lower_0, state_upper_0, state_mean_0" in refused
    (folder / "forecast.parquet").unlink()
    (folder / "smoothed.parquet").write_bytes(b"PAR1")
    assert "smoothed.parquet cannot be read" in here("plot", folder, check=1).stderr
    words = here("inspect", folder).stdout
    scores = json.loads(here("inspect", folder, "--json").stdout)["scores"]
    latest = pq.read_table(max((folder / "filtered").glob("*.parquet")))
    assert scores["rows"] == len(latest) and list(scores["crps"]) == ["y0"]
    assert scores["crps"]["y0"] == pytest.approx(np.nanmean(latest["crps_0"].to_numpy()), rel=1e-5)
    assert f"CRPS y0 {scores['crps']['y0']:.4g} (the latest {len(latest):,} rows)" in words
    assert "chaotic-rnn (dim = 1)" in words and "130 rows" in words and "guided, learned" in words and "Health" in words


@pytest.mark.slow
def test_a_users_own_model_in_a_file(tmp_path):
    """With a parameter, Parquet out of the simulation and into the stream; the run is opened with the model named, or
    trusted, until its file changes."""
    file, obs, folder = tmp_path / "level.py", tmp_path / "obs.parquet", tmp_path / "run"
    file.write_text(OWN)
    model = f"{file}:Level"
    here("simulate", model, "--set", "noise=0.5", "-n", 40, "-o", obs)
    asked = "stream", model, obs, "--config", obs.with_suffix(".toml"), "--out", folder, *SMALL
    assert "nothing to learn in it" in here(*asked, "--learn-model", check=2).stderr  # its noise is a plain number
    here(*asked)
    assert "noise = 0.5" in (folder / "config.toml").read_text()
    untrusted = here("smooth", folder, obs, "--out", "-", check=2).stderr
    assert "--model file.py:Class" in untrusted and f"backstream trust {folder}" in untrusted
    named = here("smooth", folder, obs, "--out", "-", "--model", model).stdout
    here("trust", folder, "--yes")
    assert here("smooth", folder, obs, "--out", "-").stdout == named
    printed = named.splitlines()
    assert len(printed) == 40 and json.loads(printed[-1])["row"] == 39
    assert json.loads(printed[0])["config"] == tomllib.loads((folder / "config.toml").read_text())
    file.write_text(OWN.replace("0.1", "0.2"))
    refused = here("smooth", folder, obs, "--model", model, check=2).stderr
    assert "source of the model" in refused and str(file) in refused and "changed" in refused
    assert "has changed since you trusted it" in here("smooth", folder, obs, check=2).stderr


class Moved(backstream.StateSpaceModel):
    """Two states that an input pushes, over as much time as has passed: u holds the push, and the time elapsed, which
    is zero before the first row, where no transition has a density."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + u[1] * (jnp.tanh(x[::-1]) - x + u[0]), jnp.sqrt(u[1])).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.2).to_event(1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["log-score", "window", "recursion"])
def test_a_run_with_inputs_resumes(tmp_path, method):
    """With an input and the time elapsed, which the model's dynamics read: in one piece or in two, the same rows."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"at": np.cumsum(rng.uniform(0.1, 0.5, 60)), "push": rng.normal(size=60)})
    frame[["a", "b"]] = rng.normal(size=(60, 2))
    columns = backstream.Columns(observed=("a", "b"), time="at", inputs=("push",), elapsed=True)
    settings = backstream.Settings(method=method, lag=4, trajectories=2, particles=4, monitor_every=20)
    options = {"settings": settings, "columns": columns, "progress": False}
    options["saving"] = backstream.Saving(checkpoint_every=30)
    whole = backstream.learn(Moved(), frame, out=tmp_path / "whole", **options)
    backstream.learn(Moved(), frame[:45], out=tmp_path / "run", **options)
    again = backstream.learn(Moved(), frame, out=tmp_path / "run", resume=True, **options)
    assert again.filtered.table.num_rows == 60 and again.filtered.table.equals(whole.filtered.table)
    assert not np.any(whole.filtered.table["refused"])


@pytest.mark.slow
def test_python_does_the_same_job(tmp_path):
    """The same few names: arrays in, a run directory out, opened again; NumPy and Arrow."""
    import jax

    model = backstream.LinearGaussian.random(1, 1, key=jax.random.key(0))
    ys = np.array(model.simulate(60, key=jax.random.key(1))[1])
    settings = backstream.Settings(lag=4, trajectories=2, width=4, monitor_every=20)
    saving = backstream.Saving(checkpoint_every=30)
    options = {"settings": settings, "saving": saving, "progress": False}
    first = backstream.learn(model, ys[:45], out=tmp_path / "run", **options)
    assert first.learned.position == 45
    again = backstream.learn(model, ys, out=tmp_path / "run", resume=True, **options)
    assert again.learned.position == 60 and again.filtered.table.num_rows == 60 and len(again.reports) == 2
    opened = backstream.Run(tmp_path / "run", model)
    smoothed = opened.smooth(ys)
    np.testing.assert_array_equal(smoothed.to_arrow()["mean_0"], np.asarray(smoothed.mean)[:, 0])
    np.testing.assert_array_equal(smoothed.to_pandas()["std_0"], np.asarray(smoothed.std)[:, 0])
    frame = pandas.DataFrame({"at": np.arange(60), "y": ys[:, 0]})
    columns = backstream.Columns(observed=("y",), time="at")
    same = backstream.learn(model, frame, out=tmp_path / "frame", columns=columns, **options)
    np.testing.assert_array_equal(same.filtered.table["mean_0"], again.filtered.table["mean_0"])
    assert opened.forecast(5).observations.to_arrow().num_rows == 5
    with pytest.raises(ValueError, match="made in Python"):
        _ = backstream.Run(tmp_path / "run").learned
    with pytest.raises(ValueError, match="already holds a run"):
        backstream.learn(model, ys, out=tmp_path / "run", **options)


def test_help_teaches_and_is_quick():
    for command in ("simulate", "stream", "smooth", "forecast", "evaluate", "plot", "inspect", "trust"):
        shown = " ".join(run(command, "--help").stdout.split())
        assert f"Example: backstream {command}" in shown, command
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert spent < 1.0  # seconds of the processor, 0.4 on a quiet machine; importing JAX would take several


def test_completion():
    """What the shell asks for when TAB is pressed."""
    words = {"_BACKSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "backstream stream --check", "COMP_CWORD": "2"}
    ended = subprocess.run([BACKSTREAM], env=environment() | words, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["--checkpoint-every", "--checkpoint-seconds"]


def test_version():
    assert run("--version").stdout == f"backstream {backstream.__version__}\n"
