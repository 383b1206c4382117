"""Whole lines as they become available, from a file, a file that grows, or a pipe."""

import os
import select
import time
from collections.abc import Callable, Iterator

from .errors import RunError

LONGEST = 1 << 24
"""Bytes in a line. What is longer is no table, and would fill the memory."""


def chunks(
    descriptor: int, name: str, *, follow: bool, stopped: Callable[[], bool], poll: float = 0.1
) -> Iterator[list[bytes]]:
    """Lists of lines, without their ends: all that can be had without waiting, then the next.

    A last line without its newline is given at the end of a file or pipe; while following a file there is no end, and
    it is not given until its newline arrives. Ends when `stopped()` is true, which is looked at while waiting too.
    """
    rest, read = b"", 0
    while not stopped():
        if not follow and not select.select([descriptor], [], [], poll)[0]:
            continue
        data = os.read(descriptor, 1 << 16)
        read += len(data)
        if not data and follow:
            if os.fstat(descriptor).st_size < read:
                raise RunError(f"{name} has become shorter while it was followed.")
            time.sleep(poll)
        elif not data:
            if rest:
                yield [rest]
            return
        else:
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LONGEST:
                raise RunError(f"{name} has a line of more than {LONGEST} bytes: is it a table of text?")
            if lines:
                yield lines
