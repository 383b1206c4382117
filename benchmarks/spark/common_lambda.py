"""A common posterior on Spark from a thousand short streams, against one machine's, on fresh data.

    .venv-spark/bin/python -m benchmarks.spark.common_lambda

Stochastic volatility that starts from wrong parameters; λ and θ are common and learned with the default settings from
1 000 streams of 100 rows. One machine reads ticks of 64 rows. On Spark a micro-batch is a tick, and it costs a second
whatever it holds, so it has a row of every stream, as that of a fleet would. Both are judged by the mean log score of
fresh streams with what was learned held, beside the start and the true parameters. The difference from one machine,
stream by stream, has a standard error.
"""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import backstream as bs
from backstream.engine.spark.recipe import Held, Recipe, learned_alone
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words
from benchmarks.spark.cluster import clean_up, session

RESULTS = Path(__file__).parents[1] / "results" / "spark_common_lambda.json"
STREAMS, LENGTH, TICK = 1000, 100, 64
FRESH_STREAMS, FRESH_LENGTH = 200, 200
SETTINGS = bs.Settings(learn_model=True)


def volatility(mu: float, phi: float, sigma: float) -> bs.StochasticVolatility:
    return bs.StochasticVolatility(*(np.full(1, value) for value in (mu, phi, sigma)))


TRUTH, START = (0.5, 0.95, 0.4), (0.0, 0.8, 0.8)


def simulated(count: int, length: int, seed: int) -> np.ndarray:
    """[stream, row, column]"""
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: volatility(*TRUTH).simulate(length, key=key)[1]))(keys))


def on_one_machine(recipe: Recipe, ys: np.ndarray) -> tuple[Held, int]:
    """Streams take turns; a tick has a row of each of 64 of them."""
    panel = Panel(recipe.learner, recipe.q, key=recipe.key, common=True, lanes=TICK)
    state = panel.begin(panel.open(STREAMS), np.arange(STREAMS), [words(f"s{i}") for i in range(STREAMS)])
    row = np.arange(STREAMS * LENGTH)
    ticks = row // STREAMS * -(-STREAMS // TICK) + row % STREAMS // TICK
    state, _ = panel.read(state, row % STREAMS, ticks, ys.swapaxes(0, 1).reshape(len(row), -1))
    assert state.common is not None
    return Held(recipe.learner.current_model(state.common), state.common.average), int(state.common.t)


def on_spark(folder: Path, ys: np.ndarray) -> tuple[Held, float]:
    """The same rows; a micro-batch has a row of every stream."""
    (folder / "in").mkdir()
    for t in range(LENGTH):
        lines = [json.dumps({"id": f"s{i}", "at": t, "y": float(ys[i, t, 0])}) for i in range(STREAMS)]
        file = folder / "in" / f"{t:03d}.json"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (1000 + t, 1000 + t))
    spark = session(partitions=1, executors=1)
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema("id string, at int, y double").option("maxFilesPerTrigger", 1)
    columns, out = bs.Columns(time="at", observed=("y",)), str(folder / "out")
    options: dict[str, Any] = {"columns": columns, "settings": SETTINGS, "buckets": 2, "out": out}
    begun, frame = time.monotonic(), reader.json(str(folder / "in"))
    bs.spark.learn(volatility(*START), frame, "id", **options, availableNow=True).awaitTermination()
    seconds = (time.monotonic() - begun) / LENGTH
    spark.stop()
    return bs.spark.learned(volatility(*START), out, columns, SETTINGS), round(seconds, 2)


def scores(p: Any, q: Any, fresh: np.ndarray) -> np.ndarray:
    """The mean log score of each fresh stream, with everything held."""
    still = learned_alone(p, bs.Settings(learn=False), None, "float64").learner
    told = [still.scan(still.init(q, key=jax.random.key(i)), ys)[1].log_score for i, ys in enumerate(fresh)]
    return np.stack([np.asarray(log_score).mean() for log_score in told])


def apart(told: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """From one machine's, stream by stream: the mean difference and its standard error."""
    difference = told - reference
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return {
        "log_score": round(float(told.mean()), 5),
        "above_one_machine": round(float(difference.mean()), 5),
        "standard_error": round(float(error), 5),
    }


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    folder = Path(tempfile.mkdtemp(prefix="backstream-spark-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    recipe = learned_alone(volatility(*START), SETTINGS, None, "float64", common=True)
    ys, fresh = simulated(STREAMS, LENGTH, 0), simulated(FRESH_STREAMS, FRESH_LENGTH, 1)
    alone, steps = on_one_machine(recipe, ys)
    reference = scores(*alone, fresh)
    found: dict[str, Any] = {
        "settings": {"streams": STREAMS, "rows": LENGTH, "fresh_streams": FRESH_STREAMS, "fresh_rows": FRESH_LENGTH},
        "start": apart(scores(volatility(*START), recipe.q, fresh), reference),
        "truth": apart(scores(volatility(*TRUTH), recipe.q, fresh), reference),
        "one machine": apart(reference, reference) | {"steps": steps, "theta": theta(alone.model)},
    }
    try:
        learned, seconds = on_spark(folder, ys)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        clean_up()
    found["spark"] = apart(scores(*learned, fresh), reference) | {"steps": LENGTH, "theta": theta(learned.model)}
    found["spark"]["seconds_of_a_micro_batch"] = seconds
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def theta(p: Any) -> list[float]:
    return [round(float(np.asarray(leaf)[0]), 3) for leaf in (p.mu, p.phi, p.sigma)]


if __name__ == "__main__":
    main()
