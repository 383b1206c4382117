"""Observations and inputs in memory, as one table with named columns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from backstream.data.columns import Columns
from backstream.errors import InputError

ALL = Columns()


def is_path(source: Any) -> bool:
    return isinstance(source, str) or hasattr(source, "__fspath__")


def has_names(source: Any) -> bool:
    """Whether the columns of a source have names: those of an array have none."""
    return is_path(source) or isinstance(source, pa.Table) or hasattr(source, "columns") or hasattr(source, "to_frame")


def as_rows(values: Any, what: str) -> np.ndarray:
    """An array [T, n] of numbers. A sequence of numbers is one column."""
    array = np.asarray(values)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise InputError(f"{what} must be an array of numbers of shape [T, n] or [T], not {array.dtype} {array.shape}.")
    return array


def as_table(source: Any, inputs: Any, columns: Columns) -> tuple[Any, Columns]:
    """A source that can be opened, and which of its columns are what.

    Args:
        source: A path, an Arrow table, a pandas DataFrame or Series, or an array [T, dy] or [T].
        inputs: The known inputs of each row, in any of these forms but a path; None where they are columns of the
            source, or where there are none.
        columns: Which columns are what, where they have names.
    """
    if is_path(source):
        if inputs is not None:
            raise InputError("Inputs of a file are columns of it: name them, columns=bs.Columns(inputs=(...)).")
        return source, columns
    parts, time = _named(source, "y")
    if time is not None and columns.time is None:
        columns = replace(columns, time=time)
    if inputs is None:
        return pa.table(parts), columns
    more, _ = _named(inputs, "u")
    lengths = [len(next(iter(some.values()))) for some in (parts, more)]
    if lengths[0] != lengths[1]:
        raise InputError(f"There are {lengths[0]} rows of observations, but {lengths[1]} of inputs.")
    twice = sorted(set(parts) & set(more))
    if twice:
        raise InputError(f"Observations and inputs both have a column {twice[0]!r}.")
    observed = columns.observed or tuple(name for name in parts if name not in (time, columns.time, columns.key))
    return pa.table(parts | more), replace(columns, observed=observed, inputs=tuple(more))


def as_before(source: Any, inputs: Any, columns: Columns) -> tuple[Any, Columns]:
    """Further rows for columns that are known already. Columns with other names are taken in their order, and the time
    may be left out where nothing depends on it."""
    if is_path(source):
        return as_table(source, inputs, columns)
    table, found = as_table(source, inputs, ALL)
    names = list(table.column_names)
    if found.time is not None and found.time in names and columns.time is not None:
        names[names.index(found.time)] = columns.time
    time = columns.time or found.time
    if time not in names and not columns.elapsed:
        time = None
    wanted, others = [*columns.observed, *columns.inputs], [name for name in names if name not in (time, columns.key)]
    if not set(wanted) <= set(names):
        if len(wanted) != len(others):
            raise InputError(f"The rows must have the columns {', '.join(wanted)}, not {', '.join(others)}.")
        renamed = dict(zip(others, wanted, strict=True))
        names = [renamed.get(name, name) for name in names]
    return table.rename_columns(names), replace(columns, time=time)


def _named(values: Any, letter: str) -> tuple[dict[str, Any], str | None]:
    """Columns by name, and the name of the one that is an index of dates, where there is one."""
    if isinstance(values, pa.Table):
        return {name: values[name] for name in values.column_names}, None
    index = getattr(values, "index", None)
    if hasattr(values, "columns"):
        found = {str(name): values[name] for name in values.columns}
    elif index is not None and hasattr(values, "to_frame"):
        found = {str(values.name if values.name is not None else f"{letter}0"): values}
    else:
        rows = as_rows(values, "Observations" if letter == "y" else "Inputs")
        return {f"{letter}{i}": rows[:, i] for i in range(rows.shape[1])}, None
    arrays: dict[str, Any] = {name: pa.Array.from_pandas(column) for name, column in found.items()}
    if getattr(getattr(index, "dtype", None), "kind", "") != "M" or letter != "y":
        return arrays, None
    time = str(getattr(index, "name", None) or "time")
    return {time: pa.Array.from_pandas(index), **arrays}, time
