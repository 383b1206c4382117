"""Files and directories that appear whole or not at all, whenever the process or the machine stops.

Everything that a run writes goes through this module, and through `os` in it: a test that puts another `os` in its
place can stop the process at any write, or fill the disk there.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

INCOMING, REPLACED = ".incoming-", ".replaced-"
"""How the names of what is still being written begin, and of what is about to be replaced by it."""


def write(path: Path, content: bytes) -> None:
    """Puts a file in place of whatever was there."""
    incoming = path.with_name(INCOMING + path.name)
    try:
        remove(incoming)  # were it a link, something elsewhere would be overwritten
        create(incoming, [content])
        os.replace(incoming, path)
    except BaseException:
        remove(incoming)
        raise
    sync_directory(path.parent)


def create(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """A new file, on the disk when this returns; the SHA-256 of its content."""
    total = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for part in parts:
            total.update(part)
            _write_all(descriptor, part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return total.hexdigest()


def append(path: Path, size: int, content: bytes) -> int:
    """Adds to the first `size` bytes of a file, and drops what an attempt that failed has left beyond them. The new
    size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size + len(content)


def publish(incoming: Path, final: Path) -> None:
    """Renames a directory whose files were made by `create` into place, in place of whatever was there. A process that
    is killed in between leaves what `tidy_up` brings back."""
    sync_directory(incoming)
    replaced = final.with_name(REPLACED + final.name)
    if final.exists() or final.is_symlink():
        remove(replaced)
        os.rename(final, replaced)
    os.rename(incoming, final)
    sync_directory(final.parent)
    remove(replaced)


def sync_directory(folder: Path) -> None:
    """Makes renames in a directory last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tidy_up(folder: Path) -> None:
    """Removes what a killed process was in the middle of writing, and brings back what it was about to replace."""
    for path in folder.glob(INCOMING + "*"):
        remove(path)
    for path in folder.glob(REPLACED + "*"):
        final = path.with_name(path.name.removeprefix(REPLACED))
        if final.exists():
            remove(path)
        else:
            os.rename(path, final)


def retire(folder: Path) -> None:
    """Removes a directory so that it is either all there or not there at all."""
    leaving = folder.with_name(INCOMING + folder.name)
    remove(leaving)
    os.rename(folder, leaving)
    remove(leaving)


def remove(path: Path) -> None:
    """A file, a directory with all that is in it, or a link, but nothing that it leads to."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            remove(entry)
        os.rmdir(path)
    elif path.exists() or path.is_symlink():
        os.unlink(path)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
