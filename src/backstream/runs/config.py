"""The configuration of a run: defaults, then a configuration file, then options. It is checked and saved."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from backstream._version import __version__
from backstream.data.columns import Columns
from backstream.errors import InputError
from backstream.runs import formats, toml
from backstream.settings import FleetSettings, Saving, Settings

from .model_registry import ModelChoice

Precision = Literal["float32", "float64"]
OF_RUNS = ("format_version", "version")
"""What says who wrote a configuration, and is no setting."""


@dataclass(frozen=True)
class Config:
    """Everything that decides the bits of a run, except the source."""

    format_version: int = formats.FORMAT_VERSION
    version: str = __version__
    """Of the package that began the run."""
    precision: Precision = "float32"
    model: ModelChoice = field(default_factory=ModelChoice)
    learning: Settings = field(default_factory=Settings)
    columns: Columns = field(default_factory=Columns)
    saving: Saving = field(default_factory=Saving)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    """What counts where `columns.key` is set."""
    model_optimizer: Any = None
    """Steps for θ that are functions, an optax transformation. They cannot be written down: such a run stays in
    memory."""

    def text(self) -> str:
        return toml.dump(asdict(replace(self, model_optimizer=None)))


def read_config(path: Path) -> Config:
    """A configuration file that a user has written."""
    return toml.read(Config, toml.load(path), str(path))


def read_run_config(path: Path) -> Config:
    """The configuration that a run directory holds, whatever format it was written in."""
    return toml.read(Config, formats.migrate_config(toml.load(path), str(path)), str(path))


def parse_config(text: str, where: str) -> Config:
    """What `Config.text` wrote, in any format."""
    tables = toml.loads(text, f"The configuration of {where}")
    return toml.read(Config, formats.migrate_config(tables, where), where)


def read_tables(path: Path) -> dict[str, Any]:
    """What a configuration file sets, and nothing else, once all of it is known to be valid."""
    read_config(path)
    tables = toml.load(path)
    for name in OF_RUNS:
        tables.pop(name, None)
    tables.get("model", {}).pop("identity", None)
    return tables


def merge(config: Config, flags: dict[str, Any]) -> Config:
    """A configuration with some settings replaced: nested tables of those that were given, None for those that were
    not."""
    return toml.read(Config, _merged(asdict(config), flags), "The command line")


def _merged(base: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for key in (*base, *(key for key in flags if key not in base)):
        below, above = base.get(key), flags.get(key)
        if isinstance(below, dict) or isinstance(above, dict):
            result[key] = _merged(below or {}, {} if above is None else above)
        elif above is not None or below is not None:
            result[key] = below if above is None else above
    return result


def check_same(recorded: Config, asked: Config, where: Path | str) -> None:
    """Raises InputError, naming the first setting in which they differ: a continued run keeps its settings."""
    there, here = _flat(asdict(recorded)), _flat(asdict(asked))
    for key in sorted((there.keys() | here.keys()).difference(OF_RUNS)):
        if there.get(key) != here.get(key):
            raise InputError(
                f"{where} was made with {key} = {there.get(key)!r}, not {here.get(key)!r}: a continued run keeps its "
                "settings, so give the same, or begin a new run in another directory."
            )


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
