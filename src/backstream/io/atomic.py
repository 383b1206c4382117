"""Files and directories that appear whole or not at all, whenever the process or the machine stops."""

import os
import shutil
from pathlib import Path

INCOMING = ".incoming-"
"""How the names of what is still being written begin."""


def write(path: Path, content: bytes) -> None:
    """Puts a file in place of whatever was there."""
    incoming = path.with_name(INCOMING + path.name)
    try:
        incoming.unlink(missing_ok=True)  # were it a link, something elsewhere would be overwritten
        with open(incoming, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(incoming, path)
    except BaseException:
        incoming.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def publish(incoming: Path, final: Path) -> None:
    """Renames a finished directory into place, in place of whatever was there."""
    for folder, _, names in os.walk(incoming):
        for name in names:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))
    remove(final)
    os.rename(incoming, final)
    sync_directory(final.parent)


def sync_directory(folder: Path) -> None:
    """Makes renames in a directory last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard_incoming(folder: Path) -> None:
    """Removes what a killed process was in the middle of writing."""
    for path in folder.glob(INCOMING + "*"):
        remove(path)


def remove(path: Path) -> None:
    """A file, a directory with all that is in it, or a link, but nothing that it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
