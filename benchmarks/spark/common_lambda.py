"""A common λ on Spark from a thousand short streams, against one machine's, on fresh data.

    .venv-spark/bin/python -m benchmarks.spark.common_lambda

The model is stochastic volatility, whose posterior is not exact, learned with the default settings. Streams have 100
rows each. One machine reads ticks of 64 rows. On Spark a micro-batch is a tick, and costs a second, whatever it holds:
so it reads larger ones, as a fleet would. Both are judged by the mean log score of 20 fresh streams of 200 rows, beside
the λ before any row. The difference of the two, stream by stream, has a standard error.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import backstream as bs
from backstream.engine.spark.recipe import Recipe, learned_alone
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words
from benchmarks.spark.cluster import clean_up, session

RESULTS = Path(__file__).parents[1] / "results" / "spark_common_lambda.json"
STREAMS, LENGTH, TICK = 1000, 100, 64
MICRO_BATCHES = (400, 100)
FRESH_STREAMS, FRESH_LENGTH = 40, 200


def model() -> bs.StochasticVolatility:
    return bs.StochasticVolatility(*(np.full(2, value) for value in (0.0, 0.95, 0.5)))


def simulated(count: int, length: int, seed: int) -> np.ndarray:
    """[stream, row, column]"""
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: model().simulate(length, key=key)[1]))(keys))


def on_one_machine(recipe: Recipe, ys: np.ndarray) -> Any:
    """Streams take turns; a tick has a row of each of 64 of them."""
    panel = Panel(recipe.learner, recipe.q, key=recipe.key, common=True, lanes=TICK)
    state = panel.begin(panel.open(STREAMS), np.arange(STREAMS), [words(f"s{i}") for i in range(STREAMS)])
    row = np.arange(STREAMS * LENGTH)
    ticks = row // STREAMS * -(-STREAMS // TICK) + row % STREAMS // TICK
    state, _ = panel.read(state, row % STREAMS, ticks, ys.swapaxes(0, 1).reshape(len(row), -1))
    return state.common.average, int(state.common.t)


def on_spark(spark: Any, folder: Path, ys: np.ndarray, micro_batches: int) -> Any:
    """The same rows in the same order, in so many micro-batches."""
    source, out = folder / f"in-{micro_batches}", folder / f"out-{micro_batches}"
    source.mkdir()
    order = [(t, i) for t in range(LENGTH) for i in range(STREAMS)]
    size = len(order) // micro_batches
    for number in range(micro_batches):
        lines = [
            json.dumps({"id": f"s{i}", "at": t, "y0": float(ys[i, t, 0]), "y1": float(ys[i, t, 1])})
            for t, i in order[number * size : (number + 1) * size]
        ]
        file = source / f"{number:05d}.json"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (1000 + number, 1000 + number))
    reader = spark.readStream.schema("id string, at int, y0 double, y1 double").option("maxFilesPerTrigger", 1)
    columns = bs.Columns(time="at", observed=("y0", "y1"))
    options: dict[str, Any] = {"columns": columns, "buckets": 2, "out": str(out)}
    begun = time.monotonic()
    bs.spark.learn(model(), reader.json(str(source)), "id", **options, availableNow=True).awaitTermination()
    return bs.spark.learned(model(), str(out)).family, round((time.monotonic() - begun) / micro_batches, 2)


def scores(recipe: Recipe, q: Any, fresh: np.ndarray) -> np.ndarray:
    """The mean log score of each fresh stream, with λ held."""
    still = learned_alone(model(), bs.Settings(learn=False), None, recipe.precision).learner

    def one(ys: Any, key: Any) -> Any:
        return still.scan(still.init(q, key=key), ys)[1].log_score

    return np.stack([np.asarray(one(ys, jax.random.key(i))).mean() for i, ys in enumerate(fresh)])


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    recipe = learned_alone(model(), bs.Settings(), None, "float64", common=True)
    ys, fresh = simulated(STREAMS, LENGTH, 0), simulated(FRESH_STREAMS, FRESH_LENGTH, 1)
    alone, steps = on_one_machine(recipe, ys)
    reference, before = scores(recipe, alone, fresh), scores(recipe, recipe.q, fresh)
    found: dict[str, Any] = {
        "settings": {"streams": STREAMS, "rows": LENGTH, "fresh_streams": FRESH_STREAMS, "fresh_rows": FRESH_LENGTH},
        "before": {"log_score": round(float(before.mean()), 5)} | apart(before, reference),
        "one machine": {"log_score": round(float(reference.mean()), 5), "steps": steps},
    }
    try:
        spark = session(partitions=1, executors=1)
        spark.sparkContext.setLogLevel("ERROR")
        for micro_batches in MICRO_BATCHES:
            q, seconds = on_spark(spark, folder, ys, micro_batches)
            told = scores(recipe, q, fresh)
            found[f"{micro_batches} micro-batches"] = {
                "log_score": round(float(told.mean()), 5),
                "steps": micro_batches,
                "seconds_of_a_micro_batch": seconds,
            } | apart(told, reference)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        clean_up()
    print(json.dumps(found, indent=1))


def apart(told: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """From one machine's, stream by stream: the mean difference and its standard error."""
    difference = told - reference
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return {"above_one_machine": round(float(difference.mean()), 6), "standard_error": round(float(error), 6)}


if __name__ == "__main__":
    sys.exit(main())
