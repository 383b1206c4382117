"""Five streams of six rows, as files that Spark reads one by one, and what each stream gives alone."""

import json
import os

import jax
import numpy as np

import backstream as bs
from backstream.learning.multistream.fleet import words

NAMES = "abcde"
ROWS = 6
MODEL = bs.StochasticVolatility(*(np.full(1, value) for value in (0.0, 0.95, 0.3)))
DATA = {name: np.random.default_rng(i).normal(size=(ROWS, 1)) for i, name in enumerate(NAMES)}
COLUMNS = bs.Columns(time="at", observed=("y",))
SECONDS = 600


def write(path, number, rows):
    """A file of rows, or of lines as they are: its number is its place in the order in which Spark reads files."""
    path.mkdir(exist_ok=True)
    file = path / f"{number}.json"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    os.utime(file, (1000 + number, 1000 + number))


def between(first, end):
    return [{"sensor_id": name, "at": t, "y": float(DATA[name][t, 0])} for t in range(first, end) for name in NAMES]


def source(spark, path, kind="double", more=""):
    reader = spark.readStream.schema(f"sensor_id string, at int, y {kind}{more}").option("maxFilesPerTrigger", 1)
    return reader.json(str(path))


def finish(start):
    """Runs a query to its end. On a busy machine a Python worker may take longer to start than the 10 s that Spark
    waits; the query then goes on from its checkpoint."""
    for attempt in range(6):
        try:
            assert start().awaitTermination(SECONDS), "The query did not end in time."
            return
        except Exception as error:
            if "failed to connect back" not in str(error) or attempt == 5:
                raise


def alone(name, ys, recipe):
    key = jax.random.fold_in(jax.random.fold_in(recipe.key, words(name)[0]), words(name)[1])
    return recipe.learner.scan(recipe.learner.init(recipe.q, key=key), ys)[1]
