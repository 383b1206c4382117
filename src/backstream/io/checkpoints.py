"""Checkpoints: a pytree of arrays and what it belongs to, whole or not at all, and refused if a byte has changed.

A checkpoint is a directory named by the position in the source:

    checkpoints/000000001000/
      state/        the arrays, by orbax
      about.json    names, shapes and types of the arrays, their digest, the version, and what the caller adds
      SHA256SUMS    of all of the above; `sha256sum -c SHA256SUMS` checks it without this library

The sums are compared before anything is parsed, and nothing is unpickled: a restored pytree has the structure of one
that the caller builds, and only its numbers come from the disk.
"""

import errno
import hashlib
import inspect
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from backstream import __version__

from . import atomic
from .errors import InputError, RunError

ABOUT, STATE, SUMS = "about.json", "state", "SHA256SUMS"
ROOM = "room"


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
    """What stands beside the arrays of a checkpoint."""

    version: str
    position: int
    digest: str | None
    """Of the arrays; None where several processes wrote them."""
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
        if not isinstance(about.version, str) or not isinstance(about.digest, str | None):
            raise TypeError("version and digest are text")
        if type(about.position) is not int or not isinstance(about.record, dict):
            raise TypeError("position is a number, record a table")
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
        """Writes a checkpoint, then removes the oldest beyond `keep`. Where several processes hold the arrays, all of
        them call it, each writes its own, and the first does the rest."""
        leaves = _leaves(tree)
        table = [leaf.description() for leaf in leaves]
        together, first = jax.process_count() > 1, jax.process_index() == 0
        arrays = {f"{i:05d}": leaf.value if leaf.is_divided() else leaf.array() for i, leaf in enumerate(leaves)}
        about = {
            "version": __version__,
            "position": position,
            "digest": None if together else digest(tree),
            "leaves": table,
            "record": record,
        }
        incoming, final = self.directory / f"{atomic.INCOMING}{position:012d}", self.path(position)
        try:
            if first:
                self.directory.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(incoming, ignore_errors=True)
                incoming.mkdir()
                _require_room(incoming, sum(array.nbytes for array in arrays.values()))
            wait_for_all(f"{incoming} is there")
            _save_arrays(incoming / STATE, {name: array for name, array in arrays.items() if array.size})
            if first:
                (incoming / ABOUT).write_text(json.dumps(about, indent=1))
                (incoming / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in _sums(incoming).items()))
                atomic.publish(incoming, final)
        except Exception as error:  # orbax raises errors of many types
            if first:
                shutil.rmtree(incoming, ignore_errors=True)
            raise RunError(f"The checkpoint {final} could not be written: {_reason(error)}") from error
        if first:
            behind = [old for old in self.positions() if old <= position]  # what lies beyond is damaged
            for old in behind[: -self.keep]:
                atomic.remove(self.path(old))
        wait_for_all(f"{final} is there")
        return final

    def about(self, position: int) -> "About":
        """What is written in a checkpoint beside its arrays, once all its bytes are known to be right."""
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
        for name in sorted(expected.keys() | found.keys() | {ABOUT}):
            if name not in found:
                raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {name} is missing.")
            if expected.get(name) != found[name]:
                raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {name} is not what was written.")
        try:
            about = About.read(json.loads((path / ABOUT).read_text()))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
        like = like(about.record) if inspect.isroutine(like) else like
        if about.version != __version__:
            raise InputError(
                f"The checkpoint {path} was written by backstream {about.version}, and this is {__version__}: "
                "use that version, or begin a new run."
            )
        wanted = _leaves(like)
        table = [leaf.description() for leaf in wanted]
        _compare(path, about.leaves, table)
        if about.leaves != table:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {ABOUT} names its arrays otherwise.")
        stored = [f"{i:05d}" for i, entry in enumerate(about.leaves) if 0 not in entry["shape"]]
        homes = {f"{i:05d}": leaf.home() for i, leaf in enumerate(wanted)}
        try:
            arrays = _load_arrays(path / STATE, {name: homes[name] for name in stored})
        except Exception as error:  # orbax raises errors of many types
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: {STATE} cannot be read.") from error
        restored = {
            leaf.name: leaf.restored(arrays.get(f"{i:05d}", np.zeros(entry["shape"])))
            for i, (leaf, entry) in enumerate(zip(wanted, about.leaves, strict=True))
        }
        tree = jax.tree_util.tree_map_with_path(
            lambda names, leaf: restored.get(jax.tree_util.keystr(names), leaf), like
        )
        if about.digest is not None and jax.process_count() == 1 and digest(tree) != about.digest:
            raise DamagedCheckpointError(f"The checkpoint {path} is damaged: its arrays are not those that were saved.")
        return Checkpoint(about.position, tree, about.record)

    def newest(self, like: Any, warn: Callable[[str], None] = lambda sentence: None) -> Checkpoint | None:
        """The newest that can be read; None if there is none at all. `warn` is told of each that is damaged."""
        positions = self.positions()
        for position in reversed(positions):
            try:
                return self.load(position, like)
            except DamagedCheckpointError as error:
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
        total.update(leaf.array().tobytes())
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

    def is_divided(self) -> bool:
        """Whether other processes hold a part of it."""
        return isinstance(self.value, jax.Array) and not self.value.is_fully_addressable

    def home(self) -> Any:
        """Where it is to be read to, if that is said: on which devices, of which processes."""
        return getattr(self.value, "sharding", None) if isinstance(self.value, jax.ShapeDtypeStruct) else None

    def restored(self, array: Any) -> Any:
        """What was saved, as the kind of thing that `value` is."""
        if self.home() is not None:
            return array
        if isinstance(self.value, bool | int | float):
            return type(self.value)(array.item())
        if _is_key(self.value):
            impl = jax.random.key_impl(jnp.empty(0, self.value.dtype))
            return jax.random.wrap_key_data(jnp.array(array), impl=impl)
        # A copy: the learner overwrites the buffers of its state, and these may be shared with NumPy.
        return jnp.array(array, self.value.dtype)


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
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # what orbax has to say is in what it raises
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _require_room(folder: Path, size: int) -> None:
    """Raises OSError where the disk has no room for so many bytes. Orbax would find out in many threads at once, each
    of which prints what it thinks of it."""
    room = folder / ROOM
    room.write_bytes(bytes(2 * size + 2**16))
    room.unlink()


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(arrays))


def _load_arrays(path: Path, homes: dict[str, Any]) -> dict[str, Any]:
    """Arrays by their names: of NumPy, or spread over devices where a home is given."""
    import orbax.checkpoint as ocp

    def argument(home):
        return ocp.RestoreArgs(restore_type=np.ndarray) if home is None else ocp.ArrayRestoreArgs(sharding=home)

    with _checkpointer() as checkpointer:
        arguments = {name: argument(home) for name, home in homes.items()}
        return checkpointer.restore(path.absolute(), args=ocp.args.PyTreeRestore(restore_args=arguments))


def wait_for_all(what: str) -> None:
    """Until all processes have come this far."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def _reason(error: Exception) -> str:
    """One line of what may be a long story."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + "."
    full = os.strerror(errno.ENOSPC)
    if full in str(error):  # somewhere in what a writing thread of orbax has to say
        return full + "."
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
