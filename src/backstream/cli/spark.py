"""`backstream spark`: a fleet beyond one machine."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .failures import plainly
from .options import ModelName, SetOption, names, parameters


@plainly
def spark(
    model: ModelName,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A directory of files that all machines see, or a URI.")
    ],
    key: Annotated[str, typer.Option(help="The column that names the stream of each row.")],
    time: Annotated[str, typer.Option(help="The column that orders the rows of a stream.")],
    out: Annotated[str, typer.Option("--out", "-o", help="A directory for results and the query's checkpoint.")],
    schema: Annotated[
        str | None, typer.Option(help="Of the files, as in 'id string, at timestamp, y double'. Default: inferred.")
    ] = None,
    format: Annotated[Literal["csv", "json", "parquet"], typer.Option("--format", help="Of the files.")] = "parquet",
    columns: Annotated[str | None, typer.Option(help="Observed columns, as y1,y2. Default: all numeric ones.")] = None,
    input_columns: Annotated[str | None, typer.Option("--inputs", help="Columns that are inputs of the model.")] = None,
    share: Annotated[
        Literal["own", "common", "none"],
        typer.Option(help="Learn a λ for each stream, one for all, or none: the posterior reads the model alone."),
    ] = "own",
    held: Annotated[
        Path | None, typer.Option(help="A run directory whose λ and model are held. Nothing is learned.")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="Read all files once, and smooth each stream.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new files until stopped.")] = False,
    buckets: Annotated[int, typer.Option(help="Groups of streams whose state is kept together.")] = 64,
    forget_after: Annotated[float, typer.Option(help="Seconds after which a silent stream ends. 0: never.")] = 0.0,
    set_: SetOption = None,
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

    if held is not None and share != "own":
        raise InputError("--held and --share exclude each other: what is held is not learned.")
    if batch and (follow or share == "common"):
        raise InputError("--batch reads what is there once: leave --follow and --share common out.")
    found, _ = find(model, parameters(set_))
    fleet: Any = found if held is None else bs.load(held, found)
    session = pyspark.sql.SparkSession.builder.appName("backstream").getOrCreate()
    chosen = bs.Columns(tuple(names(columns) or ()), time, tuple(names(input_columns) or ()))
    settings = None if held is not None else bs.Settings(learn=share != "none")
    asked: dict[str, Any] = {"columns": chosen, "settings": settings, "buckets": buckets}
    frame = _frame(session, source, format, schema, batch)
    trigger: dict[str, Any] = {} if follow else {"availableNow": True}
    if batch:
        bs.spark.smooth(fleet, frame, key, **asked).write.mode("overwrite").parquet(f"{out}/results")
    elif share == "common":
        bs.spark.learn(fleet, frame, key, out=out, **asked, **trigger).awaitTermination()
    else:
        results = bs.spark.stream(fleet, frame, key, **asked, forget_after=forget_after)
        bs.spark.write(results, f"{out}/results", f"{out}/checkpoint", **trigger).awaitTermination()
    session.stop()
    print(f"Results are in {out}/results.")


def _frame(session: Any, source: str, format: str, schema: str | None, batch: bool) -> Any:
    """The files of a directory, as a static DataFrame or as a stream."""
    options = {"header": "true"} if format == "csv" else {}
    if schema is None:
        schema = session.read.format(format).options(inferSchema="true", **options).load(source).schema
    reader = session.read if batch else session.readStream
    return reader.format(format).options(**options).schema(schema).load(source)
