"""Tables of results, written as the suffix of their file says."""

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from backstream._terminal import visible
from backstream._version import __version__
from backstream.data.parsing import is_numeric
from backstream.data.sources import SUFFIXES
from backstream.errors import InputError, RunError
from backstream.runs import atomic_files

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that a spreadsheet computes."""


def write_result(table: pa.Table, out: str | Path, config: str, raw: bool = False) -> None:
    """A table of what was learned, "-" for JSON Lines on standard output, where the first row says how it was made.
    In CSV, text that a spreadsheet or a terminal would act on is made harmless, unless `raw` is true. Beside CSV and
    JSON Lines in files, which have no place for it, the configuration and the version lie in a file of their own:
    `smoothed.csv.toml` for `smoothed.csv`."""
    if str(out) == "-":
        write_rows(table.to_pylist(), config)
        return
    kind = check_suffix(Path(out))
    write_table(harmless(table) if kind == "csv" and not raw else table, out, config)
    if kind != "parquet":
        atomic_files.write(Path(f"{out}.toml"), config.encode())


def write_rows(rows: list[dict[str, Any]], config: str | None) -> None:
    """JSON Lines on standard output. The first row carries the configuration, the version in it, where one is given."""
    if rows and config is not None:
        rows = [rows[0] | {"config": tomllib.loads(config)}, *rows[1:]]
    sys.stdout.write(_jsonl(rows))
    sys.stdout.flush()


def write_table(table: pa.Table, out: str | Path, config: str) -> None:
    """Parquet, CSV or JSON Lines, in one piece or not at all; "-" is JSON Lines on standard output.

    Parquet carries the version and the text of the configuration.
    """
    if str(out) == "-":
        write_rows(table.to_pylist(), None)
        return
    path, buffer = Path(out), io.BytesIO()
    kind = check_suffix(path)
    if kind == "parquet":
        pq.write_table(table.replace_schema_metadata({"backstream": __version__, "config": config}), buffer)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, buffer)
    else:
        buffer.write(_jsonl(table.to_pylist()).encode())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, buffer.getvalue())
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror}. Choose another place with --out.") from error


def check_suffix(path: Path) -> str:
    """What kind of table a path asks for: to be known before hours are spent on its content."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in one of {', '.join(SUFFIXES)}, so that its format is known.")
    return SUFFIXES[path.suffix.lower()]


def harmless(table: pa.Table) -> pa.Table:
    """A table whose texts, names of columns included, are neither formulas nor control sequences.

    >>> harmless(pa.table({"=a": ["@b", "-1.5", "+c"]})).to_pydict()
    {"'=a": ["'@b", '-1.5', "'+c"]}
    """
    columns = [
        pa.array([None if cell is None else _inert(cell) for cell in column.to_pylist()], pa.string())
        if pa.types.is_string(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=[_inert(name) for name in table.column_names])


def _inert(text: str) -> str:
    shown = visible(text)
    return f"'{shown}" if shown.startswith(FORMULA) and not is_numeric(shown) else shown


def _jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
