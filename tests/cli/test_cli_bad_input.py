"""Bad input: one sentence that names what is wrong and what to do, an exit code, and what was computed stays."""

import contextlib
import json
import os
import resource

import pyarrow.parquet as pq
import pytest

from backstream.runs.checkpoints import Checkpoints
from command import MODEL, SMALL, contents, csv_lines, here, run

# So that a directory without permission to write cannot be written by root either.
NO_PRIVILEGE = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()


def written(folder, text):
    path = folder / "obs.csv"
    path.write_text(text)
    return path


def sentence(*arguments, check, **options):
    """The one line on stderr; of a process of its own where options ask for it."""
    stderr = run(*arguments, check=check, **options).stderr if options else here(*arguments, check=check).stderr
    assert stderr.startswith("backstream: ") and stderr.count("\n") == 1, stderr
    return stderr


def test_a_missing_file(tmp_path):
    said = run("stream", *MODEL, tmp_path / "none.csv", "--out", tmp_path / "run", check=2).stderr
    assert str(tmp_path / "none.csv") in said and not (tmp_path / "run").exists()


def test_an_unknown_column(tmp_path):
    said = sentence("stream", *MODEL, written(tmp_path, "at,y\n1,2\n"), "--columns", "z", check=2)
    assert "obs.csv has no column 'z'; it has: at, y." in said


def test_an_empty_source(tmp_path):
    assert "obs.csv is empty" in sentence("stream", *MODEL, written(tmp_path, "at,y\n"), check=2)


def test_a_row_of_the_wrong_length(tmp_path):
    said = sentence("stream", *MODEL, written(tmp_path, "at,y\n1,2,3\n"), check=1)
    assert "obs.csv, line 2, has 3 cells, but the header has 2" in said


def test_a_dimension_that_does_not_fit(tmp_path):
    said = sentence("stream", *MODEL, written(tmp_path, "a,b\n1,2\n"), "--out", tmp_path / "run", check=2)
    assert "observes 1 columns, but the source gives 2 (a, b)" in said and not (tmp_path / "run").exists()


def test_an_unknown_setting(tmp_path):
    obs = written(tmp_path, "y\n1\n")
    (tmp_path / "bad.toml").write_text("[learning]\nparticels = 3\n")
    said = sentence("stream", *MODEL, obs, "--config", tmp_path / "bad.toml", check=2)
    assert "bad.toml, learning has an unknown key 'particels'" in said


@contextlib.contextmanager
def no_file_larger_than(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_text_in_a_numeric_column_and_a_full_disk(tmp_path):
    """What came before is saved, and can be read; the run goes on once the cell is mended, and stops again, with what
    it had saved, where a file may not grow or nothing may be written; in the end its bytes are those of a run that met
    none of this."""
    lines = csv_lines(100)
    lines[41] = lines[41].split(",")[0] + ",oops\n"
    folder, obs = tmp_path / "run", written(tmp_path, "".join(lines))
    command = ("stream", *MODEL, obs, "--out", folder, "--no-print", "--time", "at")
    said = sentence(*command, *SMALL, check=1)
    assert "obs.csv, row 41 (line 42), column 'y' holds 'oops', which is not a number" in said
    assert pq.read_table(folder / "filtered").num_rows == 40
    assert Checkpoints(folder / "checkpoints").positions() == [30, 40]

    written(tmp_path, "".join(csv_lines(100)))

    with no_file_larger_than(5 * 1024):
        stderr = here(*command, "--resume", check=1).stderr
    assert "could not be written" in stderr.splitlines()[-1] and str(folder) in stderr
    assert Checkpoints(folder / "checkpoints").about(40).position == 40
    assert json.loads(here("inspect", folder, "--json").stdout)["position"] == 40

    for path in (folder, folder / "filtered", folder / "checkpoints"):
        path.chmod(0o555)
    said = sentence(*command, "--resume", check=1, before=NO_PRIVILEGE)
    assert str(folder) in said and "could not be written: Permission denied" in said
    for path in (folder, folder / "filtered", folder / "checkpoints"):
        path.chmod(0o755)
    (folder / "smoothed.csv").mkdir()
    said = sentence("smooth", folder, obs, "--out", folder / "smoothed.csv", check=1)
    assert f"{folder / 'smoothed.csv'} could not be written: Is a directory. Choose another place" in said

    here(*command, "--resume")
    here("stream", *MODEL, obs, "--out", tmp_path / "whole", "--no-print", "--time", "at", *SMALL)
    assert contents(folder) == contents(tmp_path / "whole")

    said = sentence(*command, check=2)
    assert "already holds a run" in said and "resume" in said
    said = sentence("stream", "stochastic-volatility", obs, "--out", folder, "--resume", check=2)
    assert "made with model.name = 'chaotic-rnn', not 'stochastic-volatility'" in said
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("format_version = 1", "format_version = 7", 1))
    said = sentence(*command, "--resume", check=2)
    assert "in format 7; backstream 0.2.0 reads formats up to 1" in said


def test_parameters_that_a_model_refuses(tmp_path):
    """Whatever the error is that the model, or JAX below it, raises."""
    said = sentence("stream", "chaotic-rnn", written(tmp_path, "y\n1\n"), "--set", "dim=-1", check=2)
    assert "The model chaotic-rnn refuses its parameters {'dim': -1}: " in said


@pytest.mark.slow
def test_standard_output_that_is_full(tmp_path):
    with open("/dev/full", "w") as full:
        obs = written(tmp_path, "".join(csv_lines(40)))
        ended = here("stream", *MODEL, obs, "--columns", "y", *SMALL, check=1, stdout=full)
    assert "Standard output cannot be written: No space left on device." in ended.stderr


def test_a_directory_that_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    said = sentence("stream", *MODEL, written(tmp_path, "y\n1\n"), "--out", tmp_path, check=2)
    assert "exists and is not a run directory" in said and (tmp_path / "notes.txt").exists()


def test_debug_shows_where_an_error_comes_from(tmp_path):
    import subprocess

    from command import BACKSTREAM, environment

    command = [BACKSTREAM, "stream", "chaotic-rnn", str(tmp_path / "none.csv"), "--debug"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert ended.returncode == 1 and "Traceback" in ended.stderr and "InputError" in ended.stderr
