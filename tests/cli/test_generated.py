"""Options that are generated from dataclasses."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import pytest
import typer

from backstream.cli.generated import Group, GroupedHelp, field_texts, generated
from backstream.data.columns import Columns
from backstream.settings import FleetSettings, Saving, Settings
from command import here


@dataclass(frozen=True)
class Bread:
    """A loaf."""

    flour: str
    """Which flour."""
    water: float = 0.7
    """Parts of water."""
    seeds: tuple[str, ...] = ()
    """What goes `on` it.
    Default: nothing."""
    shape: Literal["round", "long"] = "round"
    """The shape."""
    rise: bool = True
    """Let it rise."""
    salt: bool = True
    """With salt."""
    slices: int | Literal["auto"] = "auto"
    """Slices."""
    size: Annotated[int, typer.Option("--size", "-s", min=1)] = 1
    """Loaves."""


@pytest.fixture
def bake(capsys):
    """Runs a command with the options of Bread. Returns what it was given, and its exit code, output and errors."""
    found: dict[str, Any] = {}
    app = typer.Typer(rich_markup_mode=None)

    @generated(bread=Group(Bread, "The loaf", {"salt": typer.Option("--bland", help="Without salt.")}))
    def command(where: str, bread: dict[str, Any]) -> None:
        found.update(bread)

    app.command(cls=GroupedHelp)(command)

    def run(*words: str) -> tuple[dict[str, Any], int, str, str]:
        found.clear()
        with pytest.raises(SystemExit) as end:
            app(["home", *words])
        return dict(found), int(end.value.code or 0), *capsys.readouterr()

    return run


def test_only_what_was_given_is_passed_on(bake):
    assert bake("--flour", "rye")[0] == {"flour": "rye"}
    words = [
        "--flour",
        "rye",
        "--water",
        "0.5",
        "--seeds",
        "poppy,flax",
        "--shape",
        "long",
        "--no-rise",
        "--bland",
        "--slices",
        "12",
        "-s",
        "2",
    ]
    assert bake(*words)[0] == {
        "flour": "rye",
        "water": 0.5,
        "seeds": ["poppy", "flax"],
        "shape": "long",
        "rise": False,
        "salt": False,
        "slices": 12,
        "size": 2,
    }
    assert bake("--flour", "rye", "--slices", "auto", "--rise")[0] == {"flour": "rye", "slices": "auto", "rise": True}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "--flour"),
        ("--flour rye --shape flat", "'round'"),
        ("--flour rye --water wet", "--water"),
        ("--flour rye --size 0", "--size"),
        ("--flour rye --sugar 1", "--sugar"),
    ],
)
def test_what_is_wrong_is_named(bake, words, named):
    _, code, _, errors = bake(*words.split())
    assert code == 2 and named in errors


def test_help_has_the_texts_and_defaults_of_the_fields(bake):
    shown = " ".join(bake("--help")[2].split())
    assert "The loaf: --flour" in shown and "Which flour. [required]" in shown
    assert "Parts of water. Default: 0.7." in shown
    assert "What goes on it. Default: nothing." in shown
    assert "--shape <round|long> The shape. Default: round." in shown
    assert "--rise / --no-rise Let it rise. Default: --rise." in shown
    assert "--bland Without salt." in shown


def test_every_setting_is_an_option_of_stream():
    shown = here("stream", "--help").stdout
    others = {"observed": "columns", "inputs": "input-columns", "learn": "no-learn", "learn_parameters": "learn"}
    for cls in (Settings, Columns, Saving, FleetSettings):
        texts = field_texts(cls)
        for field in fields(cls):
            name = {"common": "own"}.get(field.name, others.get(field.name, field.name)).replace("_", "-")
            assert f"  --{name} " in shown, name
            assert texts[field.name].endswith("."), field.name
