"""What a run is made with: defaults, then a configuration file, then flags; all of it validated and written down."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from backstream import __version__
from backstream.learning import FleetSettings, Settings

from . import toml
from .catalogue import ModelChoice
from .errors import InputError

Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Columns:
    """Which columns of the source are what. Empty `observed` stands for all numeric ones that are nothing else."""

    observed: tuple[str, ...] = ()
    time: str | None = None
    """Kept beside the results."""
    inputs: tuple[str, ...] = ()
    """Known inputs u of the model."""
    elapsed: bool = False
    """Whether the time since the last observation is a further input, the last one."""
    key: str | None = None
    """Names the stream of each row, where there are many."""

    def __post_init__(self):
        if self.elapsed and self.time is None:
            raise ValueError("elapsed needs the name of the time column: set time too.")
        named = [*self.observed, *self.inputs, *(name for name in (self.time, self.key) if name is not None)]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"The column {twice[0]!r} is named twice.")

    def has_inputs(self) -> bool:
        return bool(self.inputs) or self.elapsed


@dataclass(frozen=True)
class Saving:
    """When and how a run is written to disk."""

    checkpoint_every: int = 1000
    """How many observations one part of the results holds, and how many lie between checkpoints."""
    keep: int = 3
    """How many checkpoints stay."""

    def __post_init__(self):
        for name in ("checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Config:
    """Everything that decides the bits of a run, except the source."""

    version: str = __version__
    precision: Precision = "float32"
    model: ModelChoice = field(default_factory=ModelChoice)
    learning: Settings = field(default_factory=Settings)
    columns: Columns = field(default_factory=Columns)
    saving: Saving = field(default_factory=Saving)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    """What counts where `columns.key` is set."""

    def text(self) -> str:
        return toml.dump(asdict(self))


def read_config(path: Path) -> Config:
    """A configuration file, or the one that a run directory holds."""
    return toml.read(Config, toml.load(path), str(path))


def parse_config(text: str, where: str) -> Config:
    """What `Config.text` wrote."""
    return toml.read(Config, toml.loads(text, f"The configuration of {where}"), where)


def read_tables(path: Path) -> dict[str, Any]:
    """What a configuration file sets, and nothing else, once all of it is known to be valid."""
    read_config(path)
    tables = toml.load(path)
    tables.pop("version", None)
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
    if recorded.version != __version__:
        raise InputError(
            f"{where} was made by backstream {recorded.version}, and this is {__version__}: use that version, "
            "or begin a new run in another directory."
        )
    there, here = _flat(asdict(recorded)), _flat(asdict(asked))
    for key in sorted(there.keys() | here.keys()):
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
