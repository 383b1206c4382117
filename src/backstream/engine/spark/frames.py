"""Columns of a Spark DataFrame as the workers take them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backstream.data.columns import Columns
from backstream.errors import InputError

from .tables import BUCKET, KEY, PACKED, PROBLEM, TIME, input_column, kept_column, observed_column, packed

NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")
CORRUPT = "_corrupt_record"
"""Where Spark's readers put a row of another schema, if that column is in the schema they are given."""


def resolved(df: Any, columns: Columns, kept: Sequence[str]) -> Columns:
    """The columns with `observed` filled in. Raises InputError where one is not there, or none is left."""
    kinds = {field.name: field.dataType.typeName() for field in df.schema.fields}
    if columns.key is None:
        raise InputError("A fleet on Spark needs the column that names the stream of each row: key='sensor_id'.")
    if columns.time is None:
        raise InputError(
            "Spark does not keep the order of rows: name a column by which those of a stream are ordered, a time or "
            "the offset of a Kafka record, as in columns=bs.Columns(time='at')."
        )
    if columns.elapsed:
        raise InputError("elapsed is not available on Spark: make the time since the last row an input column.")
    named = [columns.key, columns.time, *columns.observed, *columns.inputs, *kept]
    for name in named:
        if name not in kinds:
            raise InputError(f"The DataFrame has no column {name!r}; it has {', '.join(kinds)}.")
    if columns.observed:
        return columns
    left = [name for name, kind in kinds.items() if kind.startswith(NUMBERS) and name not in named]
    if not left:
        raise InputError("The DataFrame has no numeric columns that could be observed: name them.")
    return replace(columns, observed=tuple(left))


def for_workers(df: Any, columns: Columns, kept: Sequence[str], buckets: int) -> Any:
    """The columns that the workers need, with the bucket of each row and why it cannot be used, where that is seen
    already: a text that is no number, or a row of another schema."""
    import pyspark.sql.functions as F  # noqa: N812  # pyright: ignore[reportMissingImports]

    kinds = {field.name: field.dataType.typeName() for field in df.schema.fields}
    problems, numbers = [], []
    if CORRUPT in df.columns:
        problems.append(F.when(F.col(CORRUPT).isNotNull(), F.lit("The row is of another schema.")))
    time = F.col(_quoted(str(columns.time)))
    problems.append(F.when(time.isNull(), F.lit(f"Column {columns.time!r}, which gives the order, is empty.")))
    wanted = [(name, observed_column(i)) for i, name in enumerate(columns.observed)]
    for name, short in wanted + [(name, input_column(i)) for i, name in enumerate(columns.inputs)]:
        column = F.col(_quoted(name))
        if kinds[name].startswith(NUMBERS):
            numbers.append(column.cast("double").alias(short))
            continue
        value = column.cast("string").try_cast("double")
        text = F.trim(column.cast("string"))
        wrong = value.isNull() & column.isNotNull() & (text != "")
        sentence = F.concat(F.lit(f"Column {name!r} holds "), F.substring(text, 1, 40), F.lit(", which is no number."))
        problems.append(F.when(wrong, sentence))
        numbers.append(value.alias(short))
    key = F.col(_quoted(str(columns.key))).cast("string")
    return df.select(
        F.pmod(F.xxhash64(key), F.lit(buckets)).cast("int").alias(BUCKET),
        key.alias(KEY),
        F.coalesce(*problems).alias(PROBLEM),
        *numbers,
        time.alias(TIME),
        *(F.col(_quoted(name)).alias(kept_column(i)) for i, name in enumerate(kept)),
    )


def packed_for_workers(df: Any, columns: Columns, kept: Sequence[str], buckets: int) -> Any:
    """The same, as blocks of bytes for a stateful processor."""
    return for_workers(df, columns, kept, buckets).mapInArrow(packed, f"{BUCKET} int, {PACKED} binary")


def kept_columns(columns: Columns, keep: Sequence[str]) -> list[str]:
    """The columns that are copied to the results: the key, the time, and those that the caller asks for."""
    return list(dict.fromkeys([str(columns.key), str(columns.time), *keep]))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
