"""The code of a user's model. It is found and read without any of it being run, and run exactly as it was read.

A name leads to a single file, `file.py:Class`, or to an installed module, `package.module:Class`. Before a module
Python runs the `__init__.py` of each package around it, so these files are part of its code.
"""

import ast
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeGuard

from backstream.errors import InputError
from backstream.models import StateSpaceModel

MOST_BYTES = 16 * 1024**2
"""The size of a source file above which it is not read."""


@dataclass(frozen=True)
class Place:
    """Where the code of a model is. None of it has been opened."""

    name: str
    """The name that leads to it from any folder."""
    class_name: str
    files: dict[str, Path]
    """By the name of the module, in the order in which they are run; the last one has the class. A single file belongs
    to no module: its name is empty."""

    @property
    def file(self) -> Path:
        return list(self.files.values())[-1]

    def require_outside(self, run: Path) -> None:
        """Raises InputError if any of it lies in a run directory, by its own path or through a link."""
        for path in self.files.values():
            if path.is_relative_to(run.absolute()) or path.resolve().is_relative_to(run.resolve()):
                raise InputError(
                    f"The model {self.name!r} lies in the run directory, from which nothing is executed: move it."
                )

    def read(self) -> "ModelCode":
        return ModelCode(self, {module: _read(path) for module, path in self.files.items()})


@dataclass(frozen=True)
class ModelCode:
    """The files of a model as they were when they were read, once. None of them has been run."""

    place: Place
    contents: dict[str, bytes]

    def digests(self) -> dict[Path, str]:
        """The SHA-256 of each file."""
        return {path: hashlib.sha256(self.contents[module]).hexdigest() for module, path in self.place.files.items()}

    @property
    def source(self) -> str:
        """The digest of the file that has the class: the one that a run records."""
        return self.digests()[self.place.file]

    def defines_class(self) -> bool:
        """Whether the last file defines the class itself, rather than importing it. The file is parsed, not run."""
        try:
            tree = ast.parse(list(self.contents.values())[-1])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return any(isinstance(part, ast.ClassDef) and part.name == self.place.class_name for part in _statements(tree))

    def run(self) -> type[StateSpaceModel]:
        """The class, after the files have been run. Raises InputError if it is not the class of a model."""
        path, class_name = self.place.file, self.place.class_name
        try:
            module = self._run_file() if "" in self.contents else self._import_module()
        except (Exception, SystemExit) as error:
            raise InputError(f"The model file {path} cannot be run: {type(error).__name__}: {error}") from error
        found = getattr(module, class_name, None)
        if not _is_model(found):
            models = [key for key, value in vars(module).items() if _is_model(value)]
            raise InputError(
                f"{path} has no class {class_name} that is derived from backstream.StateSpaceModel; it has: "
                f"{', '.join(models) or 'none'}."
            )
        return found

    def _run_file(self) -> ModuleType:
        path = self.place.file
        module = ModuleType(f"backstream_model_{path.stem}_{self.source[:8]}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses look their annotations up there
        exec(compile(self.contents[""], str(path), "exec", dont_inherit=True), vars(module))
        return module

    def _import_module(self) -> ModuleType:
        with _served(self):
            return importlib.import_module(list(self.contents)[-1])


# ---- finding without running -----------------------------------------------------------------------------------------
def locate(name: str) -> Place:
    """Where `file.py:Class` or `package.module:Class` leads to. Nothing is opened, imported or run."""
    where, _, class_name = name.rpartition(":")
    if not where or "\0" in where or not class_name.isidentifier():
        raise InputError(f"{name!r} names no model: your own is file.py:Class or package.module:Class.")
    if where.endswith(".py"):
        path = Path(where).absolute()
        return Place(f"{path}:{class_name}", class_name, {"": path})
    return Place(name, class_name, _files_of_module(where))


def _files_of_module(where: str) -> dict[str, Path]:
    """The files that an import would run. (`importlib.util.find_spec` would run the packages to look into them.)"""
    files: dict[str, Path] = {}
    search: Sequence[str] | None = None
    parts = where.split(".")
    for count in range(1, len(parts) + 1):
        module = ".".join(parts[:count])
        spec = _spec(module, search) if parts[count - 1].isidentifier() else None
        if spec is None:
            break
        locations = spec.submodule_search_locations
        search = None if locations is None else list(locations)  # of a namespace package it is no sequence
        if spec.has_location and spec.origin is not None:  # a namespace package has no file
            files[module] = Path(spec.origin).absolute()
    if where not in files or files[where].suffix != ".py":
        raise InputError(f"There is no Python module {where!r} with a source file: is it installed?")
    return files


def _spec(module: str, search: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(module, search)
        if spec is not None:
            return spec
    return None


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"The model file {path} is not a file.")
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"The model file {path} cannot be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"The model file {path} is larger than {MOST_BYTES // 1024**2} MiB.")
    return content


def _is_model(value: object) -> TypeGuard[type[StateSpaceModel]]:
    return isinstance(value, type) and issubclass(value, StateSpaceModel) and value is not StateSpaceModel


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of a module, also under `if`, `try` and `with`, but not those of its classes and functions."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.stmt):
            yield part
        if not isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(part))


# ---- importing what was read -----------------------------------------------------------------------------------------
@contextmanager
def _served(code: ModelCode) -> Iterator[None]:
    """For a while, Python imports these modules from what was read: neither a file that has changed since then nor a
    compiled copy with another content is run."""
    finder = _Finder(code)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, code: ModelCode):
        self._code = code

    def find_spec(
        self, fullname: str, path: Iterable[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._code.contents:
            return None
        file = self._code.place.files[fullname]
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_Loader(fullname, str(file), self._code.contents[fullname]),
            submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None,
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, content: bytes):
        super().__init__(fullname, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._content, self.path, "exec", dont_inherit=True)
