"""A disk that fails: `os` for `backstream.runs.atomic_files`, with a fault at a chosen operation."""

import errno
import os
from collections import Counter
from typing import Any

CHANGING = ("open", "write", "fsync", "ftruncate", "replace", "rename", "unlink", "rmdir")
"""Operations at which a fault can fall."""


class Killed(BaseException):
    """The process has ended here: nothing that comes after it has any effect."""


class FaultyDisk:
    """As `os`, until the given operation.

    "kill" ends the process before it, "kill after" once it is done, "tear" in the middle of a write; after any of them
    nothing is done any more. "full" leaves no room for that write or for any later one.
    """

    def __init__(self, fault: str | None = None, at: int = 0, counts: Counter[str] | None = None):
        self._fault, self._left, self._counts = fault, at, Counter() if counts is None else counts
        self._dead = self._full = False

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
            return real(*arguments, **options)

        return operation

    def _fail(self, name: str, real: Any, arguments: tuple[Any, ...]) -> None:
        if self._fault == "full":
            if name == "write":
                self._counts["disk full"] += not self._full
                self._full = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        self._counts[f"{self._fault} at {name}"] += 1
        self._dead = True
        if self._fault == "tear" and name == "write":
            descriptor, content = arguments
            real(descriptor, content[: len(content) // 2])
        elif self._fault == "kill after":
            real(*arguments)
        raise Killed
