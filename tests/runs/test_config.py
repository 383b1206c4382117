"""Configuration: written and read back the same, every wrong key and type named; models by name, checked by digest."""

from dataclasses import replace

import pytest

from backstream.cli.settings import effective
from backstream.data.columns import Columns
from backstream.engine.run import Run
from backstream.errors import InputError
from backstream.learning import Settings
from backstream.runs import toml
from backstream.runs.config import Config, read_config
from backstream.runs.model_registry import SHIPPED, Identity, ModelChoice, find
from backstream.settings import Saving

FLAGS = {"model": {"name": "growth", "parameters": {}}}


def test_a_configuration_is_read_back_as_it_was_written(tmp_path):
    awkward = {"text": 'a "quoted" \\ line\n\x7f', "list": [1.0, 2.5], "flag": True, "dotted.key": 3}
    config = Config(
        precision="float64",
        model=ModelChoice("my.py:Model", awkward, Identity("abc", "def")),
        learning=Settings(learning_rate=1e-7, learn_model=True),
        columns=Columns(("y 1", "y2"), "at", ("u",), True),
        saving=Saving(7, 1),
    )
    (tmp_path / "config.toml").write_text(config.text())
    assert read_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[learning]\nparticels = 3",
            "bad.toml, learning has an unknown key 'particels'; the keys are: family, learn",
        ),
        ("[learning]\nparticles = 3.5", "bad.toml, learning, particles must be a whole number, not 3.5"),
        ("[learning]\nparticles = true", "bad.toml, learning, particles must be a whole number, not True"),
        ("[learning]\nparticles = 1", "bad.toml, learning: particles must be at least 2, not 1"),
        ("[learning]\nlearning_rate = nan", "learning_rate must be a positive number, not nan"),
        ("[columns]\nobserved = 'y'", "observed must be a list of names, not 'y'"),
        ("[columns]\nobserved = ['y', 'y']", "'y' is named twice"),
        ("[columns]\nelapsed = true", "needs the name of the time column"),
        ("precision = 'half'", "precision must be one of float32, float64, not 'half'"),
        ("learning = 3", "learning must be a table, not 3"),
        ("[saving]\nkeep = 0", "keep must be at least 1, not 0"),
        ("[model.parameters]\nborn = 2024-01-01", "parameter born of the model must be a number"),
        ("[learning]\nseed = 9999999999999999999999", "seed must be below 2**31"),
        ("[learning]\nwidth = 1000000000", "width must be at most 16384, not 1000000000"),
        ("[saving]\nkeep_results = '7 weeks'", "keep_results: '7 weeks' is not a number of rows such as 100000"),
        ("[saving]\nkeep_results = 7", "keep_results must be text, not 7"),
        ("= 3", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, said):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError) as error:
        effective(FLAGS, tmp_path / "bad.toml")
    assert said in str(error.value) and str(tmp_path / "bad.toml") in str(error.value)


def test_a_file_that_is_too_large_is_not_parsed(tmp_path):
    with open(tmp_path / "large.toml", "wb") as file:
        file.truncate(toml.MOST_BYTES + 1)
    with pytest.raises(InputError, match=r"large\.toml is larger than 16 MiB"):
        read_config(tmp_path / "large.toml")


def test_flags_win_over_the_file_which_wins_over_the_defaults(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text("[learning]\nparticles = 7\nwidth = 9\n[model.parameters]\nemission_scale = 2.0\n")
    config, identity = effective({**FLAGS, "learning": {"particles": 5, "width": None}}, file)
    assert (config.learning.particles, config.learning.width, config.learning.seed) == (5, 9, 0)
    assert config.model.parameters == {"emission_scale": 2.0} and identity is None
    file.write_text("[model]\nname = 'chaotic-rnn'\n")
    with pytest.raises(InputError, match="is for the model chaotic-rnn, not growth"):
        effective(FLAGS, file)


def test_settings_are_written_down_and_read_back(tmp_path):
    """By flag, by file and from Python. What is left to the method is not written, and stays left to it."""
    for learning in ({}, {"method": "recursion"}, {"method": "recursion", "learning_rate": 2e-3}, {"learn": False}):
        config, _ = effective({**FLAGS, "learning": learning}, None)
        (tmp_path / "same.toml").write_text(f"[learning]\n{toml.dump(learning)}")
        assert config == effective(FLAGS, tmp_path / "same.toml")[0]
        assert config.learning == Settings(**learning)
        assert ("learning_rate = " in config.text().replace("model_learning_rate", "")) == ("learning_rate" in learning)
        (tmp_path / "run.toml").write_text(config.text())
        assert read_config(tmp_path / "run.toml") == config


def recorded(folder, **changes):
    _, choice = find("growth", {})
    config = replace(Config(model=choice, columns=Columns(("y",), inputs=("t",))), **changes)
    (folder / "config.toml").write_text(config.text())
    return config


def test_a_continued_run_keeps_its_settings(tmp_path):
    before = recorded(tmp_path, learning=Settings(particles=50))
    config, identity = effective(FLAGS, None, tmp_path)
    assert config == before and identity == before.model.identity
    for flags, said in (
        ({"learning": {"particles": 60}}, "made with learning.particles = 50, not 60"),
        ({"columns": {"inputs": ["s"]}}, r"made with columns.inputs = \('t',\), not \('s',\)"),
        ({"model": {"name": "growth", "parameters": {"emission_scale": 2.0}}}, "emission_scale = None, not 2.0"),
        ({"model": {"name": "chaotic-rnn", "parameters": {}}}, "model.name = 'growth', not 'chaotic-rnn'"),
    ):
        with pytest.raises(InputError, match=said):
            effective({**FLAGS, **flags}, None, tmp_path)
    before = recorded(tmp_path, version="0.0.7")
    assert effective(FLAGS, None, tmp_path)[0] == before  # another version of the package, the same format
    recorded(tmp_path, format_version=0)
    with pytest.raises(InputError, match=r"in an older format, which backstream 0\.2\.0 cannot read"):
        effective(FLAGS, None, tmp_path)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_found_again(name):
    _, choice = find(name, {})
    assert find(choice.name, choice.parameters, choice.identity)[1] == choice
    with pytest.raises(InputError, match=f"{name} does not take these parameters .*; it takes: "):
        find(name, {"nonsense": 1})
    with pytest.raises(InputError, match="its values differ"):
        find(name, choice.parameters, replace(choice.identity, values="other"))


OWN = """
import pathlib
import backstream as bs
pathlib.Path(__file__).with_suffix(".ran").touch()
class Own(bs.Growth):
    pass
def touch():
    pathlib.Path(__file__).with_suffix(".called").touch()
class Touch:
    def __init__(self):
        touch()
"""


def test_a_changed_file_is_refused_before_it_is_run(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    _, choice = find(f"{file}:Own", {"emission_scale": 2.0})
    file.with_suffix(".ran").unlink()
    file.write_text(OWN + "\n")
    with pytest.raises(InputError, match=r"source of the model .*own\.py:Own' has changed"):
        find(choice.name, choice.parameters, choice.identity)
    assert not file.with_suffix(".ran").exists()


def test_nothing_in_a_run_directory_is_executed(tmp_path, monkeypatch):
    """Not even if the user names it: by its path, by a link to it or from it, as a module, or in a package whose
    __init__ would be run first."""
    path, outside = tmp_path / "run", tmp_path / "outside.py"
    (path / "package").mkdir(parents=True)
    for file in (path / "own.py", path / "package" / "__init__.py", path / "package" / "own.py", outside):
        file.write_text(OWN)
    (tmp_path / "link.py").symlink_to(path / "own.py")
    (path / "link.py").symlink_to(outside)
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(str(path))
    _, choice = find(f"{outside}:Own", {})
    outside.with_suffix(".ran").unlink()
    recorded(path, model=choice, precision="float64")
    for name in (path / "own.py", "own.py", "../run/own.py", tmp_path / "link.py", "link.py", "own", "package.own"):
        with pytest.raises(InputError, match="lies in the run directory, from which nothing is executed"):
            _ = Run(path, f"{name}:Own").learned
    assert not list(tmp_path.rglob("*.ran"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "There is no model 'nothing'. Choose one of linear-gaussian"),
        ("none.py:Model", "none.py cannot be read: No such file"),
        ("no.such.module:Model", "There is no Python module 'no.such.module'"),
        ("backstream.models:Nothing", "__init__.py has no class Nothing that is derived from"),
        ("own.py:Touch", "has no class Touch that is derived from backstream.StateSpaceModel; it has: Own."),
        ("own.py:Missing", "has no class Missing that is derived from backstream.StateSpaceModel; it has: Own."),
        ("own.py:touch", "has no class touch that is derived from backstream.StateSpaceModel; it has: Own."),
        ("broken.py:Model", "broken.py cannot be run: ZeroDivisionError"),
    ],
)
def test_models_that_cannot_be_found(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError) as error:
        find(name, {})
    assert said in str(error.value)
    assert not (tmp_path / "own.called").exists()


def test_a_model_by_its_arrays():
    model, _ = find("backstream.models:StochasticVolatility", {"mu": [0.0], "phi": [0.9], "sigma": [0.2]})
    assert model.phi.shape == (1,)
