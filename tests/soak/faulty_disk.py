"""A disk that fails: `os` for `backstream.runs.atomic_files`, with a fault at a chosen operation."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGING = ("open", "write", "fsync", "ftruncate", "replace", "rename", "unlink", "rmdir")
"""Operations at which a fault can fall."""


class Killed(BaseException):
    """The process has ended here: nothing that comes after it has any effect."""


class FaultyDisk:
    """As `os`, until the given operation.

    "kill" ends the process before it, "kill after" once it is done, "tear" in the middle of a write; after any of them
    nothing is done any more. "power" ends it before the operation and takes back what was not synced: bytes beyond the
    last fsync of their file, and renames before the next fsync of their directory. "full" leaves no room for that write
    or for any later one.
    """

    def __init__(self, fault: str | None = None, at: int = 0, counts: Counter[str] | None = None):
        self._fault, self._left, self._counts = fault, at, Counter() if counts is None else counts
        self._dead = self._full = False
        self._unsynced = Unsynced()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def operation(*arguments: Any, **options: Any) -> Any:
            if self._dead:
                raise Killed
            if self._fault is not None:
                self._left -= 1
                if self._left <= 0:
                    self._fail(name, real, arguments)
            if self._fault == "power":
                return self._unsynced.perform(name, real, arguments, options)
            return real(*arguments, **options)

        return operation

    def _fail(self, name: str, real: Any, arguments: tuple[Any, ...]) -> None:
        if self._fault == "full":
            if name == "write":
                self._counts["disk full"] += not self._full
                self._full = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        torn = self._fault == "tear" and name == "write"
        self._counts[f"{'kill' if self._fault == 'tear' and not torn else self._fault} at {name}"] += 1
        self._dead = True
        if torn:
            descriptor, content = arguments
            real(descriptor, content[: len(content) // 2])
        elif self._fault == "kill after":
            real(*arguments)
        elif self._fault == "power":
            self._unsynced.lose()
        raise Killed


class Unsynced:
    """What a loss of power would take back."""

    def __init__(self):
        self._files: dict[str, int] = {}
        """Files with bytes that are not synced, and the size up to which they are."""
        self._undo: list[tuple[str, Callable[[], None]]] = []
        """Changes of directories that are not synced, and what takes them back, oldest first."""

    def perform(self, name: str, real: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name in ("write", "ftruncate"):
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            self._files.setdefault(path, os.fstat(arguments[0]).st_size)
            if name == "ftruncate":
                self._files[path] = min(self._files[path], arguments[1])
        elif name == "fsync":
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            self._files.pop(path, None)
            self._undo = [(folder, undo) for folder, undo in self._undo if folder != path]
        elif name in ("rename", "replace"):
            self._remember_rename(*map(os.fspath, arguments))
        return real(*arguments, **options)

    def _remember_rename(self, source: str, target: str) -> None:
        before = Path(target).read_bytes() if os.path.isfile(target) else None

        def undo() -> None:
            if os.path.exists(target):
                os.rename(target, source)
            if before is not None:
                Path(target).write_bytes(before)

        self._undo.append((os.path.dirname(target), undo))
        if source in self._files:
            self._files[target] = self._files.pop(source)

    def lose(self) -> None:
        for path, size in self._files.items():
            if os.path.exists(path):
                os.truncate(path, size)
        for _, undo in reversed(self._undo):
            undo()
