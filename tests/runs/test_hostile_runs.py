"""A run directory made by somebody else runs no code, whatever its configuration names and whichever command opens it.

Every hostile run below creates a file, the marker, as soon as any of the code that it names is run.
"""

import hashlib
import io
import logging
import os
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer

from backstream.cli import app
from backstream.data.columns import Columns
from backstream.engine.run import Run
from backstream.errors import InputError
from backstream.learning import Settings
from backstream.runs import toml
from backstream.runs.config import Config
from backstream.runs.store import RunWriter
from command import here

EVIL = """
import pathlib
import backstream as bs
pathlib.Path({marker!r}).touch()
class Model(bs.Growth):
    pass
"""

NO_RUN = {"demo", "simulate", "reproduce", "bench", "spark"}
"""The commands that open no run. A new command must be added here, or have an argument RUN or an option --resume."""
NO_MODEL = {"inspect", "plot"}
"""Those that open a run but need no model: they succeed on a run whose model they would not run."""


# ---- hostile runs ----------------------------------------------------------------------------------------------------
def evil_file(path, marker):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EVIL.format(marker=str(marker)))
    return path


def named(name, file, **parameters):
    """The tables of a model, with the digest that the run of an honest user would hold."""
    identity = {"source": hashlib.sha256(Path(file).read_bytes()).hexdigest(), "values": "0" * 64}
    return toml.dump({"model": {"name": name, "parameters": parameters, "identity": identity}})


def shell_command(folder, marker):
    return named("subprocess:getoutput", subprocess.__file__, cmd=f"touch {marker}")


def shell_command_by_a_builtin(folder, marker):
    return named("os:system", os.__file__, command=f"touch {marker}")


def function_that_runs_a_file(folder, marker):
    return named("runpy:run_path", runpy.__file__, path_name=str(evil_file(folder / "evil.py", marker)))


def class_that_is_no_model(folder, marker):
    return named("logging:FileHandler", logging.__file__, filename=str(marker))


def file_beside_the_run(folder, marker):
    file = evil_file(folder / "evil.py", marker)
    return named(f"{file}:Model", file)


def file_in_the_run(folder, marker):
    file = evil_file(folder / "run" / "evil.py", marker)
    return named(f"{file}:Model", file)


def link_in_the_run(folder, marker):
    file = evil_file(folder / "evil.py", marker)
    (folder / "run" / "link.py").symlink_to(file)
    return named(f"{folder / 'run' / 'link.py'}:Model", file)


def link_to_the_run(folder, marker):
    file = evil_file(folder / "run" / "evil.py", marker)
    (folder / "link.py").symlink_to(file)
    return named(f"{folder / 'link.py'}:Model", file)


def path_that_leads_up(folder, marker):
    file = evil_file(folder / "evil.py", marker)
    return named("../evil.py:Model", file)


def module_with_side_effects(folder, marker):
    file = evil_file(folder / "site" / "evil_module.py", marker)
    return named("evil_module:Model", file)


def package_with_side_effects(folder, marker):
    """Its marker is made by the __init__, which Python runs before it looks for the module."""
    evil_file(folder / "site" / "evil_package" / "__init__.py", marker)
    file = folder / "site" / "evil_package" / "inner.py"
    file.write_text("from backstream import Growth as Model")
    return named("evil_package.inner:Model", file)


def pipe_that_nobody_writes_to(folder, marker):
    """To open it would be to wait without end."""
    os.mkfifo(folder / "evil.py")
    return named(f"{folder / 'evil.py'}:Model", __file__)


def parameters_in_tables(folder, marker):
    text = file_beside_the_run(folder, marker)
    return text.replace("[model.parameters]", "[model.parameters.a.b]\nc = 1\n")


def parameters_in_deep_lists(folder, marker):
    text = file_beside_the_run(folder, marker)
    return text.replace("[model.parameters]", f"[model.parameters]\na = {'[' * 300}{']' * 300}\n")


def ten_thousand_parameters(folder, marker):
    text = file_beside_the_run(folder, marker)
    return text.replace("[model.parameters]", "[model.parameters]\n" + "".join(f"p{i} = 1\n" for i in range(10**4)))


def parameter_of_many_digits(folder, marker):
    text = file_beside_the_run(folder, marker)
    return text.replace("[model.parameters]", f"[model.parameters]\na = {'9' * 5000}\n")


def shipped_model_with_odd_parameters(folder, marker):
    parameters = {"dim": f"__import__('pathlib').Path({str(marker)!r}).touch()", "x" * 10**5: "y" * 10**5}
    return toml.dump({"model": {"name": "chaotic-rnn", "parameters": parameters}})


def shipped_model_that_takes_all_memory(folder, marker):
    """The compiler would end the process."""
    return toml.dump({"model": {"name": "chaotic-rnn", "parameters": {"dim": 10**9}}})


NAMING_CODE = [
    shell_command,
    shell_command_by_a_builtin,
    function_that_runs_a_file,
    class_that_is_no_model,
    file_beside_the_run,
    file_in_the_run,
    link_in_the_run,
    link_to_the_run,
    path_that_leads_up,
    module_with_side_effects,
    package_with_side_effects,
    pipe_that_nobody_writes_to,
    ten_thousand_parameters,
]
SAID = {
    shell_command_by_a_builtin: "There is no Python module 'os' with a source file",  # it is part of the interpreter
    function_that_runs_a_file: "There is no Python module 'runpy' with a source file",
    file_in_the_run: "lies in the run directory, from which nothing is executed",
    link_in_the_run: "lies in the run directory, from which nothing is executed",
    link_to_the_run: "lies in the run directory, from which nothing is executed",
}
"""What is said of those that trust would not help."""
ASKED_ABOUT = [
    class_that_is_no_model,
    file_beside_the_run,
    path_that_leads_up,
    module_with_side_effects,
    ten_thousand_parameters,
]
"""What `backstream trust` shows and asks about: files outside of the run that define the class."""
NOT_READ = [parameters_in_tables, parameters_in_deep_lists, parameter_of_many_digits]
"""Their configuration is refused as such, by commands that need no model too."""
SHIPPED = [shipped_model_with_odd_parameters, shipped_model_that_takes_all_memory]
HOSTILE = [*NAMING_CODE, *NOT_READ, *SHIPPED]


def hostile_run(folder, tables):
    """A run with results and a checkpoint, and the tables of a model in its configuration."""
    columns, learning = Columns(observed=("y",)), Settings(monitor_every=20)
    config, rows = Config(columns=columns, learning=learning), np.arange(30)
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "config.toml").write_text(config.text())  # its files are there already
    writer = RunWriter(folder / "run", config)
    scores = {name: np.full(30, 0.5) for name in ("log_score", "pit_0", "residual_0", "crps_0")}
    filtered = {"row": rows, "refused": np.zeros(30, bool), "mean_0": rows / 7, "std_0": np.ones(30), **scores}
    writer.add(pa.table(filtered), [])
    writer.commit(30, {"sum": np.zeros(())}, {"time": None})
    writer.close()
    (folder / "run" / "config.toml").write_text(toml.dump({**asdict(config), "model": None}) + tables)
    return folder / "run"


@pytest.fixture(params=HOSTILE, ids=lambda kind: kind.__name__)
def hostile(request, tmp_path, monkeypatch):
    """A hostile run, in whose folder the command is run; no answer comes from standard input."""
    (tmp_path / "run").mkdir()
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    tables = request.param(tmp_path, tmp_path / "marker")
    run = hostile_run(tmp_path, tables)
    (tmp_path / "obs.csv").write_text("y\n" + "1.5\n" * 30)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("evil_module", "evil_package", "evil_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # another test has run it
    return request.param, run, tmp_path / "marker"


def assert_one_sentence(stderr):
    assert stderr.startswith("backstream: ") and stderr.count("\n") == 1, stderr[:2000]
    assert stderr.endswith((".\n", "?\n"))
    assert len(stderr) < 1000


# ---- every command ---------------------------------------------------------------------------------------------------
COMMANDS = typer.main.get_command(app).commands


def opens_a_run(command):
    return any(parameter.metavar == "RUN" or "--resume" in parameter.opts for parameter in command.params)


def arguments(command, run):
    """What the command needs to get as far as the run's model."""
    values = {"RUN": run, "SOURCE": run.parent / "obs.csv", "MODEL": "chaotic-rnn"}
    given = []
    for parameter in command.params:
        if "--resume" in parameter.opts:
            given += ["--resume", "--out", run]
        elif parameter.required or (command.name == "evaluate" and parameter.name == "states"):
            value = values.get(parameter.metavar, run.parent / "obs.csv")
            given += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return given


def test_every_command_is_walked():
    assert {name for name, command in COMMANDS.items() if not opens_a_run(command)} == NO_RUN
    assert set(COMMANDS) - NO_RUN >= {"stream", "smooth", "forecast", "evaluate", "plot", "inspect"}


def exit_code(name, kind):
    if kind in NOT_READ:
        return 2
    if name == "trust":
        return 1 if kind in ASKED_ABOUT else 0 if kind in SHIPPED else 2
    return 0 if name in NO_MODEL else 2


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - NO_RUN))
def test_no_command_runs_what_a_run_names(name, hostile):
    kind, run, marker = hostile
    code = exit_code(name, kind)
    ended = here(name, *arguments(COMMANDS[name], run), check=code)
    said = ended.stderr
    assert not marker.exists()
    assert name != "trust" or len(ended.stdout) < 3000
    assert not (run.parent / "settings" / "backstream").exists()
    if code == 2:
        assert_one_sentence(said)
    if code == 1:
        assert said.endswith("\nbackstream: Nothing was trusted.\n")
    if name in {"smooth", "forecast", "evaluate"} and kind in NAMING_CODE:
        assert SAID.get(kind, "name the model yourself (--model file.py:Class") in said
        assert kind in SAID or f"backstream trust {run}" in said


def test_settings_from_a_hostile_file_name_no_code(hostile):
    """A run's configuration given as that of a new run: the model is the one that the command names."""
    kind, run, marker = hostile
    for name, *more in (("simulate",), ("stream", run.parent / "obs.csv")):
        said = here(name, "chaotic-rnn", *more, "--config", run / "config.toml", check=2).stderr
        assert_one_sentence(said)
        assert kind not in NAMING_CODE or "is for the model" in said
    assert not marker.exists()


def test_python_runs_no_more_than_the_commands_do(hostile):
    _, run, marker = hostile
    with pytest.raises(InputError):
        _ = Run(run).learned
    assert not marker.exists()
