"""Lines of JSON that a run adds to as it goes on: the monitor's reports, and the rows that were set aside."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from backstream._version import __version__
from backstream.learning import Parameter, Reference, Report, ThetaGain
from backstream.runs import atomic_files

OPTIONAL = ("stream", "row", "parameters", "theta_gain", "reference")
"""What only some reports have: those of a run with many streams, of one that learns the model, and of one whose
posterior is not exact."""
KINDS: dict[str, Any] = {
    "t": int,
    "warnings": list,
    "stream": str | None,
    "row": int | None,
    "parameters": dict | None,
    "theta_gain": list | None,
    "reference": list | None,
}
"""What the parts of a report are in JSON; the others are numbers, or null where there is none."""
T = TypeVar("T")


class Rejected(NamedTuple):
    """A row that could not be used."""

    row: int
    """The number of rows before it."""
    key: str | None
    reason: str
    content: str
    """The row as the source had it."""


class LogWriter(Generic[T]):
    """A file of lines, for the process that writes it."""

    def __init__(self, path: Path, encode: Callable[[T], bytes], decode: Callable[[Any], T], row: Callable[[T], int]):
        """`row` is the position in the source from which on a line counts."""
        self._path, self._encode, self._decode, self._row = path, encode, decode, row
        self._size, self._waiting = 0, list[T]()

    def cut(self, position: int, first: int = 0) -> None:
        """Drops what does not belong to the rows after `first` up to a position, and lines that make no sense."""
        kept = [line for line, found in decoded(self._path, self._decode) if first < self._row(found) <= position]
        content = b"".join(kept)
        atomic_files.write(self._path, content)
        self._size, self._waiting = len(content), []

    def add(self, entries: Sequence[T]) -> None:
        self._waiting += entries

    def write(self) -> None:
        """Puts the lines on the disk. Where that fails it can be tried again."""
        content = b"".join(self._encode(entry) for entry in self._waiting)
        self._size = atomic_files.append(self._path, self._size, content)
        self._waiting = []


def decoded(file: Path, decode: Callable[[Any], T]) -> list[tuple[bytes, T]]:
    """The lines of a file, with what they say; one that is not whole, or makes no sense, is left out."""
    found = []
    for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else []:
        try:
            found.append((line, decode(json.loads(line))))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


# ---- reports ---------------------------------------------------------------------------------------------------------
def encode_report(report: Report) -> bytes:
    return (json.dumps({"version": __version__, **report_record(report)}) + "\n").encode()


def report_record(report: Report) -> dict[str, Any]:
    """As plain JSON."""
    given = {key: v for key, v in report._asdict().items() if key not in OPTIONAL or v is not None}
    values = {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in given.items()}
    if report.parameters is not None:
        values["parameters"] = {
            name: [number if math.isfinite(number) else None for number in parameter]
            for name, parameter in report.parameters.items()
        }
    values["warnings"] = list(report.warnings)
    for name, numbers in (("reference", report.reference), ("theta_gain", report.theta_gain)):
        if numbers is not None:
            values[name] = [number if math.isfinite(number) else None for number in numbers]
    return values


def decode_report(values: Any) -> Report:
    """From JSON. Raises KeyError or TypeError where it is of another shape."""
    if not isinstance(values, dict):
        raise TypeError("a report is a table")
    given: dict[str, Any] = {name: values.get(name) if name in OPTIONAL else values[name] for name in Report._fields}
    for name, value in given.items():
        kinds = KINDS.get(name, int | float | None)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise TypeError(f"{name} is of another type")
        if value is None and name not in OPTIONAL:
            given[name] = math.nan
    if not all(isinstance(warning, str) for warning in given["warnings"]):
        raise TypeError("warnings are sentences")
    given["warnings"] = tuple(given["warnings"])
    if given["parameters"] is not None:
        given["parameters"] = {name: _parameter(pair) for name, pair in given["parameters"].items()}
    if given["theta_gain"] is not None:
        given["theta_gain"] = ThetaGain(*_parameter(given["theta_gain"]))
    if given["reference"] is not None:
        given["reference"] = _reference(given["reference"])
    return Report(**given)


def _parameter(pair: Any) -> Parameter:
    if not isinstance(pair, list) or len(pair) != 2:
        raise TypeError("a parameter is a value with its standard error")
    if not all(isinstance(number, int | float | None) and not isinstance(number, bool) for number in pair):
        raise TypeError("a parameter is made of numbers")
    return Parameter(*(math.nan if number is None else float(number) for number in pair))


def _reference(numbers: list[Any]) -> Reference:
    if not 4 <= len(numbers) <= len(Reference._fields) or type(numbers[0]) is not int:
        raise TypeError("a reference is a number of rows, a gap with its error, a sample size, and perhaps another gap")
    if not all(isinstance(number, int | float | None) and not isinstance(number, bool) for number in numbers[1:]):
        raise TypeError("a reference is made of numbers")
    return Reference(numbers[0], *(math.nan if number is None else float(number) for number in numbers[1:]))


# ---- rows that were set aside ----------------------------------------------------------------------------------------
def encode_rejected(rejected: Rejected) -> bytes:
    return (json.dumps(rejected._asdict()) + "\n").encode()


def decode_rejected(values: Any) -> Rejected:
    """From JSON. Raises KeyError or TypeError where it is of another shape."""
    if not isinstance(values, dict):
        raise TypeError("a rejected row is a table")
    found = Rejected(**{name: values[name] for name in Rejected._fields})
    if type(found.row) is not int or not isinstance(found.reason, str) or not isinstance(found.content, str):
        raise TypeError("a rejected row has a number, a reason and a content")
    return found
