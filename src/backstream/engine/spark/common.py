"""A common λ by micro-batches: workers add gradients up, the driver takes the step, and each version has a file.

The λ that micro-batch n is read with lies in `n.bin`. When all sums of micro-batch n are there the driver writes
`n+1.bin`. A micro-batch that is repeated finds the λ it had, gives the sums it gave, and writes the same file again, so
that nothing is counted twice.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from pyarrow import fs

from backstream.errors import RunError
from backstream.learning import LearnerState
from backstream.learning.multistream.gradient_sums import Sums, add, nothing, step
from backstream.runs.packed import pack, unpack

from .bucket import Bucket

KEPT = 10
"""How many versions stay: Spark repeats the latest micro-batch only."""


def load(directory: str, batch: int, like: LearnerState | None) -> LearnerState:
    """The λ of a micro-batch, with what goes with it. `like` is the one before any row."""
    place, path = _file(directory, batch)
    try:
        with place.open_input_stream(path) as file:
            content = file.read()
    except OSError as error:
        raise RunError(f"The λ of micro-batch {batch} cannot be read from {path}: {error}") from error
    return _unpacked(content, like)


def save(directory: str, batch: int, common: LearnerState | None) -> None:
    """The λ of a micro-batch, whole or not at all."""
    place, path = _file(directory, batch)
    place.create_dir(path.rpartition("/")[0], recursive=True)
    with place.open_output_stream(f"{path}.incoming") as file:
        file.write(_packed(common))
    place.move(f"{path}.incoming", path)
    old, unwanted = _file(directory, batch - KEPT)
    if batch >= KEPT and old.get_file_info(unwanted).type == fs.FileType.File:
        old.delete_file(unwanted)


def versions(directory: str) -> list[int]:
    """The micro-batches whose λ is there."""
    place, path = _place(directory)
    found = place.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(int(info.base_name[:-4]) for info in found if info.base_name.endswith(".bin"))


def advance(directory: str, batch: int, bucket: Bucket, parts: Sequence[bytes]) -> None:
    """The step after a micro-batch. The sums are added in the order given: the same order gives the same bits."""
    assert bucket.common is not None
    common, sums = load(directory, batch, bucket.common), nothing(bucket.panel, bucket.common)
    for part in parts:
        sums = add(sums, _unpacked(part, sums))
    save(directory, batch + 1, step(bucket.panel.learner, common, sums))


def packed_sums(sums: Sums | None) -> bytes:
    return _packed(sums)


def _packed(tree: Any) -> bytes:
    return pack(jax.tree.map(lambda leaf: np.asarray(leaf)[None], eqx.filter(tree, eqx.is_array)), {})


def _unpacked(content: bytes, like: Any) -> Any:
    arrays, static = eqx.partition(like, eqx.is_array)
    found = unpack(content, arrays)
    if found.damaged.any():
        raise RunError("A λ or a sum of gradients is damaged: it is not what was written.")
    leaves = [jax.numpy.asarray(leaf[0]) for leaf in found.arrays]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), static)


def _place(directory: str) -> tuple[Any, str]:
    """Spark says s3a where Arrow says s3."""
    return fs.FileSystem.from_uri(directory.replace("s3a://", "s3://", 1))


def _file(directory: str, batch: int) -> tuple[Any, str]:
    place, path = _place(directory)
    return place, f"{path.rstrip('/')}/{batch:012d}.bin"
