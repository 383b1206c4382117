"""The user's own list of model files that a run directory may name and have run.

It lies in the user's configuration folder, outside of any run, and holds the path and the SHA-256 of each file: a file
of other content, or a copy in another place, is not trusted.
"""

import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from backstream.errors import InputError, RunError
from backstream.runs import atomic_files, toml

from .model_code import ModelCode, Place

HEAD = "# Model files whose code backstream may run when a run directory names them. Remove a line to take it back.\n"


@dataclass(frozen=True)
class TrustList:
    files: dict[str, Any] = field(default_factory=dict)
    """The SHA-256 of each, by its path."""


def list_path() -> Path:
    """`backstream/trusted.toml` in $XDG_CONFIG_HOME, or in ~/.config where that is not set to an absolute path."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (folder if folder.is_absolute() else Path.home() / ".config") / "backstream" / "trusted.toml"
    except RuntimeError:
        raise InputError("There is no home folder for the list of trusted models: set XDG_CONFIG_HOME.") from None


def trusted(place: Place) -> ModelCode | None:
    """The code at a place; None, with no file opened, if the list does not have all of its files. Raises InputError if
    one of them has changed since it was put on the list."""
    listed = _read().files
    if not all(str(path) in listed for path in place.files.values()):
        return None
    code = place.read()
    for path, digest in code.digests().items():
        if listed[str(path)] != digest:
            raise InputError(
                f"{path} has changed since you trusted it, and is not run: bring it back as it was, or trust it again "
                "with backstream trust."
            )
    return code


def add(code: ModelCode) -> None:
    """Puts the files on the list, with the digests of what was read."""
    path, files = list_path(), _read().files | {str(file): digest for file, digest in code.digests().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, (HEAD + toml.dump(asdict(TrustList(files)))).encode())
        path.chmod(0o600)
    except OSError as error:
        raise RunError(f"The trust list {path} could not be written: {error.strerror}.") from error


def _read() -> TrustList:
    path = list_path()
    if not path.exists():
        return TrustList()
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(f"The trust list {path} can be written by other users: chmod 600 it, after a look at it.")
    return toml.read(TrustList, toml.load(path), str(path))
