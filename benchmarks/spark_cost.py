"""What a worker on Spark does for a row, and what it keeps for a stream, against `Panel` in the same process.

    python -m benchmarks.spark_cost

Processor seconds of one process, without Spark's own. Rows come as Arrow tables, as Spark delivers them, and the
state of every bucket goes through bytes in each micro-batch. The models are those of benchmarks/spark/throughput.py.
"""

import json
import time
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa

import backstream as bs
from backstream.engine.spark.bucket import Bucket
from backstream.engine.spark.recipe import Recipe, learned_alone
from backstream.engine.spark.tables import KEY, PROBLEM, TIME, in_order, kept_column, results_of, rows_of
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words
from benchmarks.spark.throughput import MODELS

RESULTS = Path(__file__).parent / "results" / "spark_cost.json"
KEYS, BUCKETS, ROWS, BATCHES = 2000, 4, 10, 2
"""Streams, their buckets, rows of a stream in a micro-batch, and micro-batches that are timed."""


def table(ys: np.ndarray, first: int) -> pa.Table:
    """All rows of some streams, [stream, row, column], as Spark would deliver them: in any order."""
    streams, rows, _ = ys.shape
    names = [f"sensor-{first + i}" for i in range(streams)]
    columns = {KEY: np.repeat(names, rows), TIME: np.tile(np.arange(rows), streams)}
    columns |= {f"y{j}": ys[:, :, j].reshape(-1).astype(float) for j in range(ys.shape[2])}
    columns |= {kept_column(0): columns[KEY], kept_column(1): columns[TIME]}
    given = pa.table(columns).append_column(PROBLEM, pa.nulls(streams * rows, pa.string()))
    return given.take(np.random.default_rng(0).permutation(streams * rows))


def panel_seconds(recipe: Recipe, data: np.ndarray) -> float:
    panel = Panel(recipe.learner, recipe.q, key=recipe.key, common=recipe.sharing != "own", lanes=256)
    state = panel.begin(panel.open(KEYS), np.arange(KEYS), [words(f"sensor-{i}") for i in range(KEYS)])
    slots, ticks = np.tile(np.arange(KEYS), ROWS), np.repeat(np.arange(ROWS), KEYS)
    spent = []
    for batch in data:
        begun = time.process_time()
        state, _ = panel.read(state, slots, ticks, batch.swapaxes(0, 1).reshape(KEYS * ROWS, -1))
        spent.append(time.process_time() - begun)
    return sum(spent[1:])


def bucket_seconds(recipe: Recipe, data: np.ndarray) -> tuple[float, float]:
    """Processor seconds, and bytes of state for a stream."""
    bucket, contents, spent = Bucket(recipe), [None] * BUCKETS, []
    size = KEYS // BUCKETS
    for batch in data:
        parts = [table(batch[k * size : (k + 1) * size], k * size) for k in range(BUCKETS)]
        begun = time.process_time()
        for k, part in enumerate(parts):
            ordered = in_order(part)
            rows = rows_of(ordered, data.shape[-1], 0)
            contents[k], told, _ = bucket.advance(contents[k], rows)
            results_of(ordered, ["id", "at"], rows, told)
        spent.append(time.process_time() - begun)
    return sum(spent[1:]), sum(len(content or b"") for content in contents) / KEYS


def simulated(model: bs.StateSpaceModel) -> np.ndarray:
    """[batch, stream, row, column]"""
    simulate = jax.jit(jax.vmap(lambda key: model.simulate((1 + BATCHES) * ROWS, key=key)[1]))
    ys = np.asarray(simulate(jax.random.split(jax.random.key(1), KEYS)))
    return ys.reshape(KEYS, 1 + BATCHES, ROWS, -1).swapaxes(0, 1)


def main() -> None:
    settings = {"keys": KEYS, "buckets": BUCKETS, "rows_of_a_key": ROWS, "micro_batches": BATCHES}
    found: dict = {"settings": settings | {"jax": jax.__version__}}
    count = KEYS * ROWS * BATCHES
    asked = [("exact", "own"), ("exact", "held"), ("learned", "own"), ("learned", "held")]
    for name, sharing in asked:
        model = MODELS[name]()
        recipe, data = learned_alone(model, bs.Settings(learn=sharing == "own"), None, "float32"), simulated(model)
        panel, (bucket, size) = panel_seconds(recipe, data), bucket_seconds(recipe, data)
        found[f"{name}, {sharing}"] = {
            "panel_microseconds_per_row": round(1e6 * panel / count, 2),
            "worker_microseconds_per_row": round(1e6 * bucket / count, 2),
            "ratio": round(panel / bucket, 3),
            "bytes_per_key": round(size, 1),
        }
        print(name, sharing, json.dumps(found[f"{name}, {sharing}"]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
