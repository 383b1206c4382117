"""The states of many streams as one block of bytes, in which damage is found and confined to the streams it hit.

    4 bytes     BSP1
    4 bytes     length of the header
    32 bytes    SHA-256 of the header
    header      JSON: format, package version, names, shapes and types of the arrays of one stream, the number of
                streams, and what the caller adds
    records     one for each stream, all of one length: 16 bytes of BLAKE2b, then its arrays one after another

It is the content of a checkpoint (see `checkpoints`) in the form that a keyed state store takes. Nothing is unpickled:
what is read has the structure of a tree that the caller builds, and only its numbers come from the bytes.
"""

import hashlib
import json
import struct
from typing import Any, NamedTuple

import jax
import numpy as np

from backstream._version import __version__
from backstream.errors import InputError

from . import formats
from .checkpoints import DamagedCheckpointError

MAGIC = b"BSP1"
START = struct.Struct(">4sI32s")
DIGEST = 16


class Unpacked(NamedTuple):
    """What a block holds."""

    arrays: list[np.ndarray]
    """The leaves of the tree, with a leading axis for the streams."""
    record: dict[str, Any]
    damaged: np.ndarray
    """Of each stream, whether its arrays are not what was written."""


def pack(tree: Any, record: dict[str, Any]) -> bytes:
    """The block of a tree whose leaves have a leading axis for the streams."""
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = [np.ascontiguousarray(leaf) for _, leaf in named]
    count = len(arrays[0])
    header = {
        "format_version": formats.FORMAT_VERSION,
        "version": __version__,
        "leaves": _table([(path, leaf.shape[1:], leaf.dtype) for (path, _), leaf in zip(named, arrays, strict=True)]),
        "count": count,
        "record": record,
    }
    text = json.dumps(header).encode()
    columns = [leaf.reshape(count, -1).view(np.uint8) for leaf in arrays if leaf[:1].nbytes]
    body = np.concatenate([np.zeros((count, DIGEST), np.uint8), *columns], axis=1)
    for row in body:
        row[:DIGEST] = np.frombuffer(_digest(row[DIGEST:]), np.uint8)
    return START.pack(MAGIC, len(text), hashlib.sha256(text).digest()) + text + body.tobytes()


def unpack(content: bytes, like: Any) -> Unpacked:
    """Reads a block into the leaves of `like`: arrays, or shapes of arrays, of one stream.

    Raises:
        DamagedCheckpointError: Where the header is not what was written, so that nothing can be said of any stream.
        InputError: Where the block belongs to another model, family, setting or format.
    """
    header, body = _opened(content)
    formats.check_format(header["format_version"], "The state of a bucket", header["version"])
    named = jax.tree_util.tree_flatten_with_path(like)[0]
    table = _table([(path, leaf.shape, np.dtype(leaf.dtype)) for path, leaf in named])
    if header["leaves"] != table:
        differ = [one["name"] for one, other in zip(header["leaves"], table, strict=False) if one != other]
        raise InputError(
            "The state of a bucket belongs to another model, family or setting: "
            f"{differ[0] if differ else 'the number of arrays'} differs."
        )
    sizes = [int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for _, leaf in named]
    count, length = header["count"], DIGEST + sum(sizes)
    rows = np.zeros(count * length, np.uint8)
    found = np.frombuffer(body[: len(rows)], np.uint8)
    rows[: len(found)] = found
    rows = rows.reshape(count, length)
    damaged = np.array([row[:DIGEST].tobytes() != _digest(row[DIGEST:]) for row in rows], bool)
    arrays, start = [], DIGEST
    for (_, leaf), size in zip(named, sizes, strict=True):
        part = np.ascontiguousarray(rows[:, start : start + size])
        arrays.append(part.view(np.dtype(leaf.dtype)).reshape(count, *leaf.shape))
        start += size
    return Unpacked(arrays, header["record"], damaged)


def _opened(content: bytes) -> tuple[dict[str, Any], memoryview]:
    damaged = DamagedCheckpointError("The state of a bucket is damaged: its header is not what was written.")
    if len(content) < START.size:
        raise damaged
    magic, length, digest = START.unpack_from(content)
    text = bytes(content[START.size : START.size + length])
    if magic != MAGIC or len(text) != length or hashlib.sha256(text).digest() != digest:
        raise damaged
    return json.loads(text), memoryview(content)[START.size + length :]


def _digest(row: np.ndarray) -> bytes:
    return hashlib.blake2b(row.data, digest_size=DIGEST).digest()


def _table(leaves: list[tuple[Any, Any, np.dtype]]) -> list[dict[str, Any]]:
    return [
        {"name": jax.tree_util.keystr(path), "shape": list(shape), "dtype": str(dtype)} for path, shape, dtype in leaves
    ]
