"""Rows on their way into a worker and results on their way out, as pandas' tables. Nothing here imports JAX."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

BUCKET, KEY, TIME, PROBLEM = "bucket", "key", "time", "problem"
"""What columns are called on their way. Spark makes named tuples of the rows, so that any other name could get lost."""
SUMS = "gradient_sums"
OK, MISSING, REFUSED, REJECTED = "ok", "missing", "refused", "rejected"
"""The verdict on a row: used; used, but without any observation; its update was not finite; set aside."""


class Rows(NamedTuple):
    """Rows of one bucket, in the order in which they count."""

    names: Sequence[str | None]
    ys: np.ndarray
    inputs: np.ndarray | None
    problems: Sequence[str | None]
    """Why a row cannot be used, where that is known before it gets here."""


class Told(NamedTuple):
    """What is said of each row. Where there is a reason the numbers are NaN."""

    infos: Any
    """As a learner's `Info`."""
    reasons: list[str | None]


def observed_column(i: int) -> str:
    return f"y{i}"


def input_column(i: int) -> str:
    return f"u{i}"


def kept_column(i: int) -> str:
    return f"kept{i}"


def gathered(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """All rows of a bucket in the order of their times. Spark may deliver them in any order: among equal times their
    values decide, so that a repeated micro-batch gives the same."""
    table = pd.concat(list(parts), ignore_index=True)
    values = [name for name in table.columns if name[0] in "yu"]
    return table.sort_values([TIME, *values], ignore_index=True, na_position="first")


def rows_of(table: pd.DataFrame, observed: int, inputs: int) -> Rows:
    """The rows as a bucket takes them."""

    def numbers(names: list[str]) -> np.ndarray:
        return table[names].to_numpy(np.float64, na_value=np.nan)

    def texts(name: str) -> list[str | None]:
        known = table[name].notna().tolist()
        return [str(text) if there else None for text, there in zip(table[name].tolist(), known, strict=True)]

    ys = numbers([observed_column(i) for i in range(observed)])
    us = numbers([input_column(i) for i in range(inputs)]) if inputs else None
    return Rows(texts(KEY), ys, us, texts(PROBLEM))


def results_of(table: pd.DataFrame, kept: Sequence[str], rows: Rows, told: Told) -> pd.DataFrame:
    """One line for each row: the columns that are kept, then what is said of it."""
    infos, rejected = told.infos, np.array([reason is not None for reason in told.reasons], bool)
    verdict = np.where(np.isnan(rows.ys).all(axis=1), MISSING, OK).astype(object)
    verdict[np.asarray(infos.refused, bool)] = REFUSED
    verdict[rejected] = REJECTED
    columns: dict[str, Any] = {name: table[kept_column(i)] for i, name in enumerate(kept)}
    columns["t"] = np.where(rejected, 0, np.asarray(infos.t, np.int64) + 1)
    columns["log_score"] = np.asarray(infos.log_score, np.float64)
    for name in ("mean", "std", "pit", "residual"):
        values = np.asarray(getattr(infos, name), np.float64)
        columns |= {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
    columns["verdict"] = verdict
    columns["reason"] = np.array(told.reasons, object)
    return pd.DataFrame(columns)


def result_columns(state_dim: int, obs_dim: int) -> list[tuple[str, str]]:
    """Names and Spark's types of what `results_of` adds."""
    sizes = (("mean", state_dim), ("std", state_dim), ("pit", obs_dim), ("residual", obs_dim))
    numbers = [(f"{name}_{i}", "double") for name, size in sizes for i in range(size)]
    return [("t", "bigint"), ("log_score", "double"), *numbers, ("verdict", "string"), ("reason", "string")]
