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

from .frames import for_workers, kept_columns, resolved
from .recipe import Recipe, held, learned_alone
from .tables import BUCKET, result_columns

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
}
"""For `spark-submit --conf`: the first is needed by every query, the others let it survive storms of lost machines."""


def stream(
    model: StateSpaceModel | Result,
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
            elsewhere (`bs.load("run/")`): its λ and θ are held, and nothing is learned.
        df: A streaming DataFrame, or a static one.
        key: The column that names the stream of each row.
        columns: Which other columns are what. Within a micro-batch the rows of a stream are read in the order of the
            column `time`: a time, or the offset of a Kafka record.
        settings: What is learned, and how. `Settings(learn=False)` only filters.
        keep: Further columns that stand beside the results.
        buckets: Into how many groups the keys are hashed. A group's state is read and written as a whole.
        forget_after: Seconds without a row after which a stream ends; 0 for never.

    Returns:
        A DataFrame with the key, the time, the columns kept and for each row `t` (how many rows of the stream have been
        read), `mean_i` and `std_i` of the state, `log_score`, `pit_j` and `residual_j` of the prediction, `verdict`
        (ok, missing, refused or rejected) and the `reason` why a row was set aside.

    Raises:
        InputError: Where the model, the columns and the settings do not fit together.
    """
    plan = _plan(model, df, _columns(columns, key), settings, keep)
    rows = for_workers(df, plan.columns, plan.kept, _at_least_one("buckets", buckets))
    job = plan.job(forget_after=round(1000 * forget_after))
    schema = plan.schema(df)
    if not df.isStreaming:
        from .batch import filtered_rows

        return rows.groupBy(BUCKET).applyInPandas(filtered_rows(job, plan.kept), schema)
    from .processor import BucketProcessor

    df.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    processor = BucketProcessor(job, plan.kept)
    times = "ProcessingTime" if forget_after else "None"
    return rows.groupBy(BUCKET).transformWithStateInPandas(processor, schema, "Append", times)


def smooth(
    model: StateSpaceModel | Result,
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
    function = smoothed_rows(plan.job(), plan.kept)
    return rows.groupBy(BUCKET).applyInPandas(function, plan.schema(df, more))


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
        columns = [(name, given[name]) for name in self.kept] + result_columns(q.state_dim, q.obs_dim) + [*more]
        return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def _plan(
    model: StateSpaceModel | Result, df: Any, columns: Columns, settings: Settings | None, keep: Sequence[str]
) -> _Plan:
    learned = model.learned if isinstance(model, Result) else None
    columns = resolved(df, columns, keep)
    p = model if isinstance(model, StateSpaceModel) else model.model
    precision: Precision = "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    chosen = settings or (model.config.learning if isinstance(model, Result) else Settings())
    check_fit(p, Config(precision=precision, learning=chosen, columns=columns))
    u = np.zeros(len(columns.inputs), precision) if columns.inputs else None
    if learned is None:
        return _Plan(learned_alone(p, chosen, u, precision), columns, keep)
    if settings is not None:
        raise InputError("What was learned elsewhere is held: leave the settings out.")
    if learned.state is None:
        raise InputError("Each stream of this run has its own λ: deploy a run with one λ, or start from the model.")
    return _Plan(held(p, learned.q, chosen, u, precision), columns, keep)


def _columns(columns: Columns | None, key: str | None) -> Columns:
    columns = columns or Columns()
    return columns if key is None else replace(columns, key=key)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, not {value}.")
    return value
