"""The version of what a run directory holds, apart from that of the package.

A run can be opened by every version of the package that knows its format. When the format changes, FORMAT_VERSION goes
up by one and a migration from the one before is added, so that older runs are still opened.
"""

from collections.abc import Callable
from typing import Any

from backstream._version import __version__
from backstream.errors import InputError

FORMAT_VERSION = 1
OLDEST_FORMAT = 1
"""Format 0 is that of package versions up to 0.2, which recorded no format."""

Tables = dict[str, Any]
CONFIG_MIGRATIONS: dict[int, Callable[[Tables], Tables]] = {}
"""What makes the tables of config.toml in format n + 1 from those in format n."""
RECORD_MIGRATIONS: dict[int, Callable[[Tables], Tables]] = {}
"""The same for the record of a checkpoint."""


def migrate_config(tables: Tables, where: str) -> Tables:
    """The tables of a run's configuration in the present format."""
    found = tables.get("format_version", 0)
    return {
        **_migrated(tables, found, CONFIG_MIGRATIONS, where, tables.get("version")),
        "format_version": FORMAT_VERSION,
    }


def migrate_record(record: Tables, found: int, where: str, version: str) -> Tables:
    """The record of a checkpoint of some format in the present one."""
    return _migrated(record, found, RECORD_MIGRATIONS, where, version)


def check_format(found: Any, where: str, version: Any) -> int:
    """Raises InputError where a format cannot be read here."""
    by = f" by backstream {version}" if isinstance(version, str) else ""
    if type(found) is not int or found < OLDEST_FORMAT:
        raise InputError(
            f"{where} was written{by} in an older format, which backstream {__version__} cannot read: "
            "open it with the version that wrote it, or begin a new run."
        )
    if found > FORMAT_VERSION:
        raise InputError(
            f"{where} was written{by} in format {found}; backstream {__version__} reads formats up to "
            f"{FORMAT_VERSION}: use a newer version."
        )
    return found


def _migrated(
    tables: Tables, found: Any, steps: dict[int, Callable[[Tables], Tables]], where: str, version: Any
) -> Tables:
    for number in range(check_format(found, where, version), FORMAT_VERSION):
        tables = steps[number](tables)
    return tables
