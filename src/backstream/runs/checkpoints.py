"""Checkpoints: a pytree of arrays and what it belongs to, whole or not at all, and refused if a byte has changed.

A checkpoint is a directory named by the position in the source:

    checkpoints/000000001000/
      state.bin     the arrays, one after another
      about.json    names, shapes and types of the arrays, their digest, the format, and what the caller adds
      SHA256SUMS    of all of the above; `sha256sum -c SHA256SUMS` checks it without this library

The sums are compared before anything is parsed, and nothing is unpickled: a restored pytree has the structure of one
that the caller builds, and only its numbers come from the disk. No more memory is taken than the file of the arrays is
long.
"""

import contextlib
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from backstream._version import __version__
from backstream.errors import InputError, RunError
from backstream.runs import atomic_files, formats

ABOUT, STATE, SUMS = "about.json", "state.bin", "SHA256SUMS"
ATTEMPTS = 3
"""How often checkpoints are looked for that are replaced meanwhile by the process that writes the run."""


class DamagedCheckpointError(RunError):
    """A checkpoint that is not what was written."""


class Checkpoint(NamedTuple):
    """What was saved."""

    position: int
    """How many rows of the source are behind it."""
    tree: Any
    record: dict[str, Any]
    """What the caller added: plain JSON."""


class About(NamedTuple):
    """What a checkpoint holds, apart from its arrays."""

    format_version: int
    version: str
    """Of the package that wrote it."""
    position: int
    digest: str
    """Of the arrays."""
    leaves: list[dict[str, Any]]
    """Their names, shapes and types."""
    record: dict[str, Any]

    @classmethod
    def read(cls, values: Any) -> "About":
        """From JSON. Raises KeyError or TypeError where it is of another shape."""
        about = cls(**{name: values[name] for name in cls._fields})
        for entry in about.leaves:
            if not isinstance(entry["name"], str) or not isinstance(entry["shape"], list):
                raise TypeError("a leaf has a name and a shape")
            entry["dtype"]
        if not isinstance(about.version, str) or not isinstance(about.digest, str):
            raise TypeError("version and digest are text")
        if type(about.position) is not int or type(about.format_version) is not int:
            raise TypeError("position and format_version are numbers")
        if not isinstance(about.record, dict):
            raise TypeError("record is a table")
        return about


class Checkpoints:
    """The checkpoints in a directory, of which the newest `keep` stay.

        checkpoints = Checkpoints(Path("run/checkpoints"))
        checkpoints.save(1000, state, {"note": "after the first thousand"})
        position, state, record = checkpoints.newest(like)

    `like` is a pytree of the same structure, of arrays or of `jax.ShapeDtypeStruct`s: what `eqx.filter_eval_shape`
    makes of the function that made the first state. Where its shapes depend on what was saved, it is a function of the
    record.
    """

    def __init__(self, directory: Path, keep: int = 3):
        if keep < 1:
            raise InputError(f"At least 1 checkpoint must be kept, not {keep}.")
        self.directory, self.keep = Path(directory), keep

    def positions(self) -> list[int]:
        """Of all checkpoints, oldest first, whether they can be read or not."""
        names = [path.name for path in self.directory.glob("[0-9]*") if path.name.isascii() and path.name.isdecimal()]
        return sorted(int(name) for name in names if name == self.path(int(name)).name)

    def path(self, position: int) -> Path:
        return self.directory / f"{position:012d}"

    def save(self, position: int, tree: Any, record: dict[str, Any]) -> Path:
        """Writes a checkpoint, then removes the oldest beyond `keep`."""
        leaves = _leaves(tree)
        about = {
            "format_version": formats.FORMAT_VERSION,
            "version": __version__,
            "position": position,
            "digest": digest(tree),
            "leaves": [leaf.description() for leaf in leaves],
            "record": record,
        }
        incoming, final = self.directory / f"{atomic_files.INCOMING}{position:012d}", self.path(position)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            atomic_files.remove(incoming)
            incoming.mkdir()
            sums = {
                ABOUT: atomic_files.create(incoming / ABOUT, [json.dumps(about, indent=1).encode()]),
                STATE: atomic_files.create(incoming / STATE, (leaf.content() for leaf in leaves)),
            }
            listed = "".join(f"{value}  {name}\n" for name, value in sums.items())
            atomic_files.create(incoming / SUMS, [listed.encode()])
            atomic_files.publish(incoming, final)
        except OSError as error:
            with contextlib.suppress(OSError):
                atomic_files.remove(incoming)
            raise RunError(f"The checkpoint {final} could not be written: {error.strerror}.") from error
        behind = [old for old in self.positions() if old <= position]
        with contextlib.suppress(OSError):  # what could not be removed is tried again the next time
            for old in behind[: -self.keep]:
                atomic_files.retire(self.path(old))
        return final

    def cut(self, position: int) -> None:
        """Removes those beyond a position, from which a run goes on because they are damaged."""
        for beyond in self.positions():
            if beyond > position:
                atomic_files.retire(self.path(beyond))

    def about(self, position: int) -> "About":
        """The record of a checkpoint, without its arrays, after all its checksums are verified."""
        path = self.path(position)
        links = [file.name for file in (path, *path.rglob("*")) if file.is_symlink()]
        if links:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {links[0]} is a link to something else.")
        if not (path / SUMS).is_file():
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {SUMS} is missing.")
        try:
            entries = [line.split("  ", 1) for line in (path / SUMS).read_text().splitlines()]
            expected = {name: value for value, name in entries}
            found = _sums(path)
        except (OSError, ValueError) as error:
            raise DamagedCheckpointError(
                f"The checkpoint {path} is damaged: its sums cannot be read ({error})."
            ) from error
        for name in sorted(expected.keys() | found.keys() | {ABOUT, STATE}):
            if name not in found:
                raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {name} is missing.")
            if expected.get(name) != found[name]:
                raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {name} is not what was written.")
        try:
            values = json.loads((path / ABOUT).read_text())
            formats.check_format(values.get("format_version", 0), f"The checkpoint {path}", values.get("version"))
            about = About.read(values)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {ABOUT} says nothing usable.") from error
        if about.position != position:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: it is that of row {about.position}.")
        return about

    def load(self, position: int, like: Any) -> Checkpoint:
        """Reads one checkpoint into the structure of `like`.

        Raises DamagedCheckpointError if its bytes have changed, and InputError, naming what differs, if it belongs to
        another version, model, family or setting.
        """
        path, about = self.path(position), self.about(position)
        where = f"The checkpoint {path}"
        record = formats.migrate_record(about.record, about.format_version, where, about.version)
        like = like(record) if inspect.isroutine(like) else like
        wanted = _leaves(like)
        table = [leaf.description() for leaf in wanted]
        _compare(path, about.leaves, table)
        if about.leaves != table:
            raise DamagedCheckpointError(f"{where} is damaged: {ABOUT} names its arrays otherwise.")
        try:
            if sum(leaf.size() for leaf in wanted) != (path / STATE).stat().st_size:
                raise DamagedCheckpointError(f"{where} is damaged: {STATE} is not as long as its arrays.")
            content = (path / STATE).read_bytes()
        except OSError as error:  # removed meanwhile
            raise DamagedCheckpointError(f"{where} cannot be read: {error.strerror}.") from error
        restored = dict(_restored(wanted, content))
        tree = jax.tree_util.tree_map_with_path(
            lambda names, leaf: restored.get(jax.tree_util.keystr(names), leaf), like
        )
        if digest(tree) != about.digest:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: its arrays are not those that were saved.")
        return Checkpoint(about.position, tree, record)

    def newest(self, like: Any, warn: Callable[[str], None] = lambda sentence: None) -> Checkpoint | None:
        """The newest that can be read; None if there is none. `warn` is called for each that is damaged. If the process
        that writes the run has replaced them meanwhile, the new ones are read."""
        positions: list[int] = []
        for _ in range(ATTEMPTS):
            before, positions = positions, self.positions()
            if positions == before:
                break
            for position in reversed(positions):
                try:
                    return self.load(position, like)
                except DamagedCheckpointError as error:
                    if self.path(position).exists():
                        warn(f"{error} The one before it is used instead.")
        if positions:
            raise DamagedCheckpointError(f"Every checkpoint in {self.directory} is damaged: begin a new run.")
        return None


def digest(tree: Any) -> str:
    """The SHA-256 of the arrays and numbers of a pytree, with their names, shapes and types.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros(2)})
    True
    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros((1, 2))})
    False
    """
    total = hashlib.sha256()
    for leaf in _leaves(tree):
        total.update(json.dumps(leaf.description(), sort_keys=True).encode())
        total.update(leaf.content())
    return total.hexdigest()


# ---- leaves ----------------------------------------------------------------------------------------------------------
class _Leaf(NamedTuple):
    """An array, a key, a number, or the shape of one."""

    name: str
    value: Any

    def description(self) -> dict[str, Any]:
        if isinstance(self.value, bool | int | float):
            return {"name": self.name, "shape": [], "dtype": type(self.value).__name__}
        return {"name": self.name, "shape": list(self.value.shape), "dtype": str(self.value.dtype)}

    def array(self) -> np.ndarray:
        return np.asarray(jax.random.key_data(self.value) if _is_key(self.value) else self.value)

    def content(self) -> memoryview:
        """Its bytes. The largest arrays of a fleet take hundreds of megabytes: they are not copied."""
        return np.ascontiguousarray(self.array()).reshape(-1).view(np.uint8).data

    def stored(self) -> tuple[tuple[int, ...], Any]:
        """The shape and the type of what is written of it."""
        if isinstance(self.value, bool | int | float):
            return (), np.asarray(self.value).dtype
        if _is_key(self.value):
            data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(self.value.shape, self.value.dtype))
            return data.shape, data.dtype
        return self.value.shape, np.dtype(self.value.dtype)

    def size(self) -> int:
        """In bytes."""
        shape, dtype = self.stored()
        return math.prod(shape) * dtype.itemsize

    def restored(self, content: memoryview) -> Any:
        """What was saved, as the kind of thing that `value` is."""
        shape, dtype = self.stored()
        array = np.frombuffer(content, dtype).reshape(shape)
        if isinstance(self.value, bool | int | float):
            return type(self.value)(array.item())
        if _is_key(self.value):
            impl = jax.random.key_impl(jnp.empty(0, self.value.dtype))
            return jax.random.wrap_key_data(jnp.array(array), impl=impl)
        # A copy: the learner overwrites the buffers of its state, and these may be shared with NumPy.
        return jnp.array(array, self.value.dtype)


def _restored(leaves: list[_Leaf], content: bytes) -> Iterator[tuple[str, Any]]:
    rest = memoryview(content)
    for leaf in leaves:
        yield leaf.name, leaf.restored(rest[: leaf.size()])
        rest = rest[leaf.size() :]


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _leaves(tree: Any) -> list[_Leaf]:
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    kinds = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct | bool | int | float
    return [_Leaf(jax.tree_util.keystr(names), leaf) for names, leaf in named if isinstance(leaf, kinds)]


def _compare(path: Path, saved: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    there, here = ({entry["name"]: entry for entry in table} for table in (saved, wanted))
    for name in sorted(there.keys() ^ here.keys()):
        who, other = ("the checkpoint", "the learner") if name in there else ("the learner", "the checkpoint")
        raise InputError(
            f"The checkpoint {path} is of another family or learner: {who} has {name}, and {other} has not."
        )
    for name, entry in there.items():
        for what in ("shape", "dtype"):
            if entry[what] != here[name][what]:
                raise InputError(
                    f"The checkpoint {path} does not fit: the {what} of {name} is {entry[what]} there, "
                    f"and {here[name][what]} with the model and the settings given."
                )


# ---- files -----------------------------------------------------------------------------------------------------------
def _sums(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and file != path / SUMS)
    return {str(file.relative_to(path)): _sum(file) for file in files}


def _sum(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
