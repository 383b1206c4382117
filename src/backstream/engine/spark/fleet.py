"""A fleet on Spark: a DataFrame of rows in, a DataFrame of results out, and a query that writes them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from backstream.data.columns import Columns
from backstream.engine.preparation import check_fit
from backstream.engine.result import Result
from backstream.errors import InputError
from backstream.learning import Settings
from backstream.models import StateSpaceModel
from backstream.runs.config import Config, Precision

from .bucket import Bucket
from .frames import for_workers, kept_columns, packed_for_workers, resolved
from .recipe import Held, Recipe, held, learned_alone
from .tables import BUCKET, SUMS, result_columns

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
}
"""For `spark-submit --conf`: the first is needed by every query, the others let it survive storms of lost machines."""


def stream(
    model: StateSpaceModel | Result | Held,
    df: Any,
    key: str | None = None,
    *,
    columns: Columns | None = None,
    settings: Settings | None = None,
    keep: Sequence[str] = (),
    buckets: int = 64,
    forget_after: float = 0.0,
) -> Any:
    """The posterior of every stream at each row, as it was known when the row was read.

    Args:
        model: The model: each stream then learns a λ of its own, unless `settings` say otherwise. Or what was learned
            elsewhere (`bs.load("run/")`, `bs.spark.learned(...)`): its λ and θ are held, and nothing is learned.
        df: A streaming DataFrame, or a static one.
        key: The column that names the stream of each row.
        columns: Which other columns are what. Within a micro-batch the rows of a stream are read in the order of the
            column `time`: a time, or the offset of a Kafka record.
        settings: What is learned, and how. `Settings(learn=False)` only filters.
        keep: Further columns to copy to the results.
        buckets: Into how many groups the keys are hashed. A group's state is read and written as a whole.
        forget_after: Seconds without a row after which a stream of a streaming DataFrame ends; 0 for never. Spark then
            has a micro-batch at each trigger, with rows or without, so that a query with `availableNow` would not end.

    Returns:
        A DataFrame with the key, the time, the columns kept and for each row `t` (how many rows of the stream have been
        read), `mean_i` and `std_i` of the state, `log_score`, `pit_j`, `residual_j` and `crps_j` against the
        prediction, `verdict` (ok, missing, refused or rejected) and the `reason` why a row was set aside.

    Raises:
        InputError: Where the model, the columns and the settings do not fit together.
    """
    plan = _plan(model, df, _columns(columns, key), settings, keep)
    buckets = _at_least_one("buckets", buckets)
    job = plan.job(forget_after=round(1000 * forget_after))
    schema = plan.schema(df)
    if not df.isStreaming:
        from .batch import filtered_rows

        kept, rows = plan.kept, for_workers(df, plan.columns, plan.kept, buckets)
        return rows.groupBy(BUCKET).applyInArrow(lambda part: filtered_rows(job, kept, part), schema)
    from .processor import BucketProcessor

    rows = packed_for_workers(df, plan.columns, plan.kept, buckets)
    df.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    processor = BucketProcessor(job, plan.kept)
    times = "ProcessingTime" if forget_after else "None"
    return rows.groupBy(BUCKET).transformWithStateInPandas(processor, schema, "Append", times)


def smooth(
    model: StateSpaceModel | Result | Held,
    df: Any,
    key: str | None = None,
    *,
    columns: Columns | None = None,
    settings: Settings | None = None,
    keep: Sequence[str] = (),
    buckets: int = 64,
) -> Any:
    """For a static DataFrame: what `stream` gives, and `smoothed_mean_i` and `smoothed_std_i`, the state at each row
    given all rows of its stream, under what was learned from them. The arguments are those of `stream`."""
    if df.isStreaming:
        raise InputError("Smoothing needs all rows of a stream: give a static DataFrame.")
    from .batch import smoothed_rows

    plan = _plan(model, df, _columns(columns, key), settings, keep)
    rows = for_workers(df, plan.columns, plan.kept, _at_least_one("buckets", buckets))
    more = [(f"smoothed_{name}_{i}", "double") for name in ("mean", "std") for i in range(plan.recipe.q.state_dim)]
    job, kept = plan.job(), plan.kept
    return rows.groupBy(BUCKET).applyInArrow(lambda part: smoothed_rows(job, kept, part), plan.schema(df, more))


def write(results: Any, out: str, checkpoint: str, **trigger: Any) -> Any:
    """Starts a query that writes results as Parquet, a directory for each micro-batch: `out/batch=12/`.

    A micro-batch that is repeated after a failure replaces its directory, so that every row is there exactly once.

    Args:
        results: What `stream` returned for a streaming DataFrame.
        out: A directory that all machines see, as an absolute path or a URI.
        checkpoint: The query's checkpoint, another such directory. A query that is started again goes on from there.
        trigger: As Spark's `DataStreamWriter.trigger` takes it: `processingTime="10 seconds"`, or `availableNow=True`.

    Returns:
        Spark's `StreamingQuery`.
    """

    def save(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{out.rstrip('/')}/batch={number}")

    writer = results.writeStream.foreachBatch(save).option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


def learn(
    model: StateSpaceModel,
    df: Any,
    key: str | None = None,
    *,
    out: str,
    columns: Columns | None = None,
    settings: Settings | None = None,
    buckets: int = 64,
    **trigger: Any,
) -> Any:
    """Starts a query that learns one λ (and θ) from all streams, a step for each micro-batch, and writes results.

    A micro-batch is one tick: all its rows are read under one λ, which then moves along their mean gradient.

    Args:
        model: The model.
        df: A streaming DataFrame.
        key: The column that names the stream of each row.
        out: A directory that all machines see, as an absolute path or a URI. It holds `results/batch=n/`,
            `lambda/n.bin` and the query's checkpoint, from which it goes on when it is started again.
        columns: As for `stream`.
        settings: What is learned, and how.
        buckets: As for `stream`.
        trigger: As for `write`.

    Returns:
        Spark's `StreamingQuery`. What it has learned is opened by `learned`.
    """
    from . import common
    from .processor import CommonProcessor

    if not df.isStreaming:
        raise InputError("A common λ is learned from a streaming DataFrame: of files, for instance, with availableNow.")
    plan = _plan(model, df, _columns(columns, key), settings, (), common=True)
    rows = packed_for_workers(df, plan.columns, plan.kept, _at_least_one("buckets", buckets))
    out, bucket = out.rstrip("/"), Bucket(plan.recipe)
    versions = f"{out}/lambda"
    if not common.versions(versions):
        common.save(versions, 0, bucket.common)
    df.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    processor = CommonProcessor(plan.job(), plan.kept, versions)
    schema = plan.schema(df, [(BUCKET, "int"), (SUMS, "binary")])
    results = rows.groupBy(BUCKET).transformWithStateInPandas(processor, schema, "Append", "None")

    def save(batch: Any, number: int) -> None:
        batch.persist()  # what is computed twice would be counted twice
        try:
            told = batch.where(batch[SUMS].isNull()).drop(BUCKET, SUMS)
            told.write.mode("overwrite").parquet(f"{out}/results/batch={number}")
            sums = batch.where(batch[SUMS].isNotNull()).select(BUCKET, SUMS).collect()
            parts = [bytes(row[SUMS]) for row in sorted(sums, key=lambda row: row[BUCKET])]
            common.advance(versions, number, bucket, parts)
        finally:
            batch.unpersist()

    writer = results.writeStream.foreachBatch(save).option("checkpointLocation", f"{out}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


def learned(model: StateSpaceModel, out: str, columns: Columns | None = None, settings: Settings | None = None) -> Held:
    """The λ and the model that a query of `learn` has reached, to be held by `stream`.

    Args:
        model: The model that the query began with.
        out: The query's directory.
        columns: As the query had them: how many inputs there are counts.
        settings: Those of the query.
    """
    from . import common

    bucket = Bucket(_recipe(model, settings or Settings(), columns or Columns(), common=True))
    found = common.versions(f"{out.rstrip('/')}/lambda")
    if not found:
        raise InputError(f"{out} holds no λ: nothing has been learned there.")
    state = common.load(f"{out.rstrip('/')}/lambda", found[-1], bucket.common)
    return Held(bucket.panel.learner.current_model(state), state.average)


# ---- what is to be done ----------------------------------------------------------------------------------------------
class _Plan:
    """A recipe with the columns that it reads."""

    def __init__(self, recipe: Recipe, columns: Columns, keep: Sequence[str]):
        self.recipe, self.columns = recipe, columns
        self.kept = kept_columns(columns, keep)

    def job(self, **rest: Any) -> Any:
        from .worker import sealed

        sizes = {"observed": len(self.columns.observed), "inputs": len(self.columns.inputs)}
        return sealed(self.recipe.precision, self.recipe, **sizes, **rest)

    def schema(self, df: Any, more: Sequence[tuple[str, str]] = ()) -> str:
        """Of the results, as Spark reads it."""
        given = {field.name: field.dataType.simpleString() for field in df.schema.fields}
        q = self.recipe.q
        made = [*result_columns(q.state_dim, q.obs_dim), *more]
        for name in self.kept:
            if name in dict(made):
                raise InputError(f"The results have a column {name!r} of their own: rename that of the DataFrame.")
        columns = [(name, given[name]) for name in self.kept] + made
        return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def _plan(
    model: StateSpaceModel | Result | Held,
    df: Any,
    columns: Columns,
    settings: Settings | None,
    keep: Sequence[str],
    common: bool = False,
) -> _Plan:
    columns = resolved(df, columns, keep)
    if isinstance(model, StateSpaceModel):
        _check(model, columns)
        return _Plan(_recipe(model, settings or Settings(), columns, common), columns, keep)
    if settings is not None:
        raise InputError("What was learned elsewhere is held: leave the settings out.")
    if isinstance(model, Result) and model.learned.state is None:
        raise InputError("Each stream of this run has its own λ: deploy a run with one λ, or start from the model.")
    _check(model.model, columns)
    return _Plan(held(model.model, model.family, _no_inputs(columns), _precision()), columns, keep)


def _recipe(model: StateSpaceModel, settings: Settings, columns: Columns, common: bool) -> Recipe:
    return learned_alone(model, settings, _no_inputs(columns), _precision(), common)


def _check(model: StateSpaceModel, columns: Columns) -> None:
    check_fit(model, Config(precision=_precision(), columns=columns))


def _precision() -> Precision:
    return "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]


def _no_inputs(columns: Columns) -> np.ndarray | None:
    """The posterior reads the model before it has any row: with inputs of zero, where it takes any."""
    return np.zeros(len(columns.inputs), _precision()) if columns.inputs else None


def _columns(columns: Columns | None, key: str | None) -> Columns:
    columns = columns or Columns()
    return columns if key is None else replace(columns, key=key)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, not {value}.")
    return value
