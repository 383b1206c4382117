"""Whole lines as they become available, from a file, a pipe, or a file that grows and is replaced."""

import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from backstream.errors import RunError

LONGEST = 1 << 24
"""Bytes in a line. What is longer is no table, and would fill the memory."""
BLOCK = 1 << 16
"""Bytes that are read at once."""
BEAT = 1.0
"""Seconds without a line after which an empty list is given, so that the caller can do what falls due."""
REMEMBERED = 4096
"""Bytes at the beginning of a followed file, and before the place reached, that are compared as it grows."""

Stopped = Callable[[], bool]


def chunks(descriptor: int, name: str, *, stopped: Stopped, poll: float = 0.1) -> Iterator[list[bytes]]:
    """Lists of lines, without their ends: all that can be had without waiting, then the next.

    A last line without its newline is given at the end. Ends when `stopped()` is true, which is looked at while
    waiting too; a line that has begun to arrive is given as well, so that the next reader of a pipe finds whole lines.
    """
    rest, since = b"", time.monotonic()
    while not stopped():
        if not _readable(descriptor, poll):
            if time.monotonic() - since > BEAT:
                since = time.monotonic()
                yield []
            continue
        data = os.read(descriptor, BLOCK)
        if not data:
            if rest:
                yield [rest]
            return
        lines, rest = _split(rest + data, name)
        if lines:
            since = time.monotonic()
            yield lines
    if rest:
        yield [rest + _rest_of_line(descriptor)]


def _readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many seconds. Unlike `select`, `poll` takes the
    descriptors of processes that have thousands of files open, too."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))


def _rest_of_line(descriptor: int) -> bytes:
    """Up to the newline, byte by byte, so that nothing of the next line is taken; what comes within a second."""
    found = b""
    while _readable(descriptor, BEAT):
        byte = os.read(descriptor, 1)
        if byte in (b"", b"\n") or len(found) >= LONGEST:
            break
        found += byte
    return found


def followed(path: Path, descriptor: int, *, stopped: Stopped, poll: float = 0.1) -> Iterator[list[bytes] | None]:
    """The same for a file that grows, which has no end: a line is not given until its newline arrives.

    When another file takes the place of this one under its name (as when a log is rotated), the rest of this one is
    given, then None, then the lines of the other. A file that becomes shorter, or whose bytes change, is an error: what
    was lost is not known.
    """
    file, since = _GrowingFile(path, descriptor), time.monotonic()
    try:
        while not stopped():
            lines = file.read()
            if lines:
                since = time.monotonic()
                yield lines
                continue
            successor = file.successor()
            if successor is None:
                time.sleep(poll)
                if time.monotonic() - since > BEAT:
                    since = time.monotonic()
                    yield []
                continue
            time.sleep(poll)  # whoever writes may still have the old file open
            while lines := file.read():
                yield lines
            if file.rest:
                yield [file.rest]
            file.close()
            file = _GrowingFile(path, successor)
            yield None
    finally:
        file.close()


class _GrowingFile:
    def __init__(self, path: Path, descriptor: int):
        self._path, self._descriptor = path, descriptor
        self._read, self._head, self._tail = 0, b"", b""
        self.rest = b""
        """What has been read of a line that is not whole yet."""

    def read(self) -> list[bytes]:
        """The lines of the next block; none where no line has been completed."""
        lines: list[bytes] = []
        while not lines:
            data = os.read(self._descriptor, BLOCK)
            self._check()
            if not data:
                return []
            self._read += len(data)
            self._head += data[: REMEMBERED - len(self._head)]
            self._tail = (self._tail + data)[-REMEMBERED:]
            lines, self.rest = _split(self.rest + data, str(self._path))
        return lines

    def _check(self) -> None:
        """Raises RunError where the file no longer has the bytes that were read. A file that was emptied and has
        grown again since is as long as before, or longer."""
        if os.fstat(self._descriptor).st_size < self._read:
            raise RunError(f"{self._path} has become shorter while it was followed: rows may have been lost.")
        head = os.pread(self._descriptor, len(self._head), 0)
        tail = os.pread(self._descriptor, len(self._tail), self._read - len(self._tail))
        if head != self._head or tail != self._tail:
            raise RunError(
                f"{self._path} was emptied and written again while it was followed: rows may have been lost."
            )

    def successor(self) -> int | None:
        """A descriptor of the file that has taken the place of this one, if one has."""
        try:
            about = os.stat(self._path)
            if os.path.samestat(about, os.fstat(self._descriptor)):
                return None
            if not stat.S_ISREG(about.st_mode):  # to open a pipe would be to wait
                raise RunError(f"{self._path} was replaced by something that is no file while it was followed.")
            return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:  # renamed, and not made again yet
            return None

    def close(self) -> None:
        os.close(self._descriptor)


def _split(data: bytes, name: str) -> tuple[list[bytes], bytes]:
    *lines, rest = data.split(b"\n")
    if len(rest) > LONGEST:
        raise RunError(f"{name} has a line of more than {LONGEST} bytes: is it a table of text?")
    return lines, rest
