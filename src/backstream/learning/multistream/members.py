"""The live streams of a fleet by name, and as the two arrays that a checkpoint holds of them."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

NUMBERS = np.dtype([("slot", "<i4"), ("name", "<i4"), ("time", "<i4"), ("row", "<i8")])
"""Of each stream: its slot, the lengths of its name and of its last time in bytes, and its last row."""
NO_TIME = -1


class Member(NamedTuple):
    """A live stream."""

    slot: int
    last_row: int
    last_time: str | None


class MemberColumns(NamedTuple):
    """All streams in two arrays of bytes: in JSON they would be several times as long."""

    numbers: Any
    text: Any
    """The name of each stream, followed by its last time."""

    @classmethod
    def blank(cls, numbers: int, text: int) -> "MemberColumns":
        """Their shapes."""
        return cls(jax.ShapeDtypeStruct((numbers,), np.uint8), jax.ShapeDtypeStruct((text,), np.uint8))


def sizes(members: Mapping[str, Member]) -> tuple[int, int]:
    """The lengths of the two arrays."""
    times = sum(len(member.last_time.encode()) for member in members.values() if member.last_time is not None)
    return NUMBERS.itemsize * len(members), times + sum(len(name.encode()) for name in members)


def encode(members: Mapping[str, Member]) -> MemberColumns:
    numbers, texts = np.empty(len(members), NUMBERS), list[bytes]()
    for i, (name, member) in enumerate(members.items()):
        time = None if member.last_time is None else member.last_time.encode()
        texts += [name.encode(), time or b""]
        numbers[i] = member.slot, len(texts[-2]), NO_TIME if time is None else len(time), member.last_row
    return MemberColumns(numbers.view(np.uint8), np.frombuffer(b"".join(texts), np.uint8))


def decode(columns: MemberColumns) -> "OrderedDict[str, Member]":
    """
    >>> streams = OrderedDict(pump=Member(3, 41, None), fan=Member(0, 42, "12:00"))
    >>> decode(encode(streams)) == streams
    True
    """
    text, members, begin = np.asarray(columns.text).tobytes(), OrderedDict[str, Member](), 0
    for slot, name, time, row in np.asarray(columns.numbers).view(NUMBERS).tolist():
        middle, end = begin + name, begin + name + max(time, 0)
        members[text[begin:middle].decode()] = Member(slot, row, None if time == NO_TIME else text[middle:end].decode())
        begin = end
    return members
