"""Configuration as TOML: dataclasses read from tables with every wrong key and type named, and written back."""

import dataclasses
import json
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from backstream.errors import InputError

T = TypeVar("T")


MOST_BYTES = 16 * 1024**2
"""The size of a file above which it is not parsed."""


def load(path: Path) -> dict[str, Any]:
    """The tables of a file."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"The configuration {path} is larger than {MOST_BYTES // 1024**2} MiB.")
    try:
        return loads(content.decode(), f"The configuration {path}")
    except UnicodeDecodeError as error:
        raise InputError(f"The configuration {path} is not TOML: {error}.") from error


def loads(text: str, where: str) -> dict[str, Any]:
    """The tables of a text. `where` says in errors whose text it is."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise InputError(f"{where} is not TOML: {error}.") from error


def read(cls: type[T], table: Any, where: str) -> T:
    """A dataclass from a table; what is absent has its default. `where` says in errors whose table it is.

    >>> from backstream.learning import Settings
    >>> read(Settings, {"particles": 50}, "run.toml").particles
    50
    >>> read(Settings, {"particels": 50}, "run.toml")
    Traceback (most recent call last):
    backstream.errors.InputError: run.toml has an unknown key 'particels'; the keys are: family, learn, ...
    """
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table, not {_shown(table)}.")
    assert dataclasses.is_dataclass(cls)
    fields = typing.get_type_hints(cls)
    for key in table:
        if key not in fields:
            raise InputError(f"{where} has an unknown key {key!r}; the keys are: {', '.join(fields)}.")
    values = {key: _value(fields[key], value, f"{where}, {key}") for key, value in table.items()}
    try:
        return typing.cast(T, cls(**values))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return read(typing.cast(type, kind), value, where)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
            raise InputError(f"{where} must be a list of names, not {_shown(value)}.")
        return tuple(value)
    if origin in (types.UnionType, typing.Union):
        return _value(_arm(typing.get_args(kind), value), value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a table, not {_shown(value)}.")
        return value
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise InputError(f"{where} must be one of {', '.join(typing.get_args(kind))}, not {_shown(value)}.")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise InputError(f"{where} must be {words[kind]}, not {_shown(value)}.")
    return value


def _arm(arms: tuple[Any, ...], value: Any) -> Any:
    """Which of several types a value is to have: the one that it has, where it has one of them."""
    arms = tuple(arm for arm in arms if arm is not type(None))
    chosen = (arm for arm in arms if type(value) is arm or value in typing.get_args(arm))
    return next(chosen, arms[0])


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"


def dump(tables: dict[str, Any], prefix: str = "") -> str:
    """TOML text of tables of numbers, texts, lists and further tables. None is left out.

    >>> print(dump({"a": 1, "b": {"c": [1.5, 2.0], "d": "x"}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [1.5, 2.0]
    d = "x"
    """
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict) and value is not None}
    text = "".join(f"{_key(key)} = {_literal(value)}\n" for key, value in plain.items())
    for key, value in tables.items():
        if isinstance(value, dict):
            name = f"{prefix}{_key(key)}"
            text += f"\n[{name}]\n" + dump(value, f"{name}.")
    return text


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else _literal(key)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)
