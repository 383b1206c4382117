"""`backstream spark`: a fleet beyond one machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .failures import plainly
from .generated import Group, generated
from .options import ModelName, SetOption, parameters


@dataclass(frozen=True)
class Request:
    """What the command is asked for."""

    key: str
    """The column that names the stream of each row."""
    time: str
    """The column that orders the rows of a stream."""
    out: Annotated[str, typer.Option("--out", "-o")]
    """A directory for the results and the checkpoint of the query."""
    schema: str | None = None
    """The schema of the files, as in 'id string, at timestamp, y double'. Default: inferred."""
    format: Literal["csv", "json", "parquet"] = "parquet"
    """The format of the files."""
    columns: tuple[str, ...] = ()
    """The observed columns, as y1,y2. Default: all numeric columns."""
    inputs: tuple[str, ...] = ()
    """The columns that are inputs of the model."""
    share: Literal["own", "common", "none"] = "own"
    """What is learned: a posterior for each stream, one for all streams, or nothing (the posterior uses the model
    alone)."""
    held: Path | None = None
    """A run directory whose posterior and model are used. Nothing is learned."""
    batch: bool = False
    """Read all files once, and smooth each stream."""
    follow: bool = False
    """Continue with new files until stopped."""
    buckets: int = 64
    """Groups of streams whose state is kept together."""
    forget_after: float = 0.0
    """Seconds after which a silent stream ends. 0: never."""
    set_: SetOption = None


@plainly
@generated(request=Group(Request, "Options"))
def spark(
    model: ModelName,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A directory of files that all machines see, or a URI.")
    ],
    request: dict[str, Any],
) -> None:
    """Filter, learn from or smooth a fleet on Spark. Spark's own settings come from spark-submit or spark-defaults.

    Example: backstream spark chaotic-rnn /data/plant --set dim=2 --key sensor_id --time at --out /data/results

    Example: backstream spark chaotic-rnn /data/plant --key id --time at --batch --share none --out /data/out
    """
    from backstream.engine.spark import WHAT_TO_INSTALL
    from backstream.errors import InputError

    try:
        import pyspark.sql  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(WHAT_TO_INSTALL) from error
    from backstream.cli import jax_setup

    jax_setup.start("float32")
    import backstream as bs
    from backstream.runs.model_registry import find

    asked = Request(**request)
    if asked.held is not None and asked.share != "own":
        raise InputError("--held and --share exclude each other: what is held is not learned.")
    if asked.batch and (asked.follow or asked.share == "common"):
        raise InputError("--batch reads what is there once: leave --follow and --share common out.")
    if asked.forget_after and (not asked.follow or asked.share == "common"):
        raise InputError("--forget-after is for a query that runs on: it needs --follow, and not --share common.")
    found, _ = find(model, parameters(asked.set_))
    fleet: Any = found if asked.held is None else bs.load(asked.held, found)
    session = pyspark.sql.SparkSession.builder.appName("backstream").getOrCreate()
    _query(fleet, _frame(session, source, asked), asked)
    session.stop()
    print(f"Results are in {asked.out}/results.")


def _query(fleet: Any, frame: Any, asked: Request) -> None:
    """Runs what was asked for until it ends."""
    import backstream as bs

    chosen = bs.Columns(tuple(asked.columns), asked.time, tuple(asked.inputs))
    settings = None if asked.held is not None else bs.Settings(learn=asked.share != "none")
    options: dict[str, Any] = {"columns": chosen, "settings": settings, "buckets": asked.buckets}
    trigger: dict[str, Any] = {} if asked.follow else {"availableNow": True}
    if asked.batch:
        bs.spark.smooth(fleet, frame, asked.key, **options).write.mode("overwrite").parquet(f"{asked.out}/results")
    elif asked.share == "common":
        bs.spark.learn(fleet, frame, asked.key, out=asked.out, **options, **trigger).awaitTermination()
    else:
        results = bs.spark.stream(fleet, frame, asked.key, **options, forget_after=asked.forget_after)
        bs.spark.write(results, f"{asked.out}/results", f"{asked.out}/checkpoint", **trigger).awaitTermination()


def _frame(session: Any, source: str, asked: Request) -> Any:
    """The files of a directory, as a static DataFrame or as a stream. Lines of another schema are rows too, and are
    set aside with a reason."""
    from pyspark.sql.types import StructType  # pyright: ignore[reportMissingImports]

    from backstream.engine.spark.frames import CORRUPT

    options = {"header": "true"} if asked.format == "csv" else {}
    if asked.schema is None:
        schema = session.read.format(asked.format).options(inferSchema="true", **options).load(source).schema
    else:
        schema = StructType.fromDDL(asked.schema)
    if asked.format != "parquet" and CORRUPT not in schema.names:
        schema = schema.add(CORRUPT, "string")
    reader = session.read if asked.batch else session.readStream
    return reader.format(asked.format).options(**options).schema(schema).load(source)
