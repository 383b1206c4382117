"""From flags, a configuration file and what a run was made with, to the settings that hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from backstream.errors import InputError
from backstream.runs.config import Config, check_same, merge, read_tables
from backstream.runs.model_registry import Identity
from backstream.runs.store import is_run, open_config


def effective(flags: dict[str, Any], file: Path | None, run: Path | None = None) -> tuple[Config, Identity | None]:
    """The configuration, and the identity that its model must have if it continues a run.

    Flags win over the file, which wins over what the run was made with, which wins over defaults. Raises InputError,
    naming the setting, where a continued run was made otherwise.
    """
    recorded = open_config(run) if run is not None and is_run(run) else None
    config, name = recorded or Config(), flags["model"]["name"]
    if file is not None:
        tables = read_tables(file)
        for_model = tables.get("model", {}).get("name", name)
        if _full(for_model) != _full(name):
            raise InputError(f"{file} is for the model {for_model}, not {name}.")
        config = merge(config, tables)
    config = merge(config, flags)
    if recorded is None or run is None:
        return config, None
    config = replace(config, model=replace(config.model, name=_full(name), identity=recorded.model.identity))
    check_same(recorded, config, run)
    return config, recorded.model.identity


def _full(name: str) -> str:
    """The name that a run directory records."""
    where, _, attribute = name.rpartition(":")
    return f"{Path(where).absolute()}:{attribute}" if where.endswith(".py") else name
