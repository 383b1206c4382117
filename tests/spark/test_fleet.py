"""A fleet on Spark gives what its streams give alone: own λ, a λ that is held, and one that is learned from all."""

import json
import os

import jax
import numpy as np
import pytest

import backstream as bs
from backstream.engine.spark.recipe import learned_alone
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words

NAMES = "abcde"
ROWS = 6
MODEL = bs.StochasticVolatility(*(np.full(1, value) for value in (0.0, 0.95, 0.3)))
DATA = {name: np.random.default_rng(i).normal(size=(ROWS, 1)) for i, name in enumerate(NAMES)}
COLUMNS = bs.Columns(time="at")
CHOSEN = bs.Columns(time="at", observed=("y",))
SECONDS = 600


def write(path, number, rows):
    """A file of rows: its number is its place in the order in which Spark reads files."""
    path.mkdir(exist_ok=True)
    file = path / f"{number}.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(file, (1000 + number, 1000 + number))


def between(first, end):
    return [{"sensor_id": name, "at": t, "y": float(DATA[name][t, 0])} for t in range(first, end) for name in NAMES]


def source(spark, path, kind="double"):
    reader = spark.readStream.schema(f"sensor_id string, at int, y {kind}").option("maxFilesPerTrigger", 1)
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


def test_own_lambdas_survive_a_restart_and_rows_that_cannot_be_used(spark, tmp_path):
    """Three micro-batches, the query stopped after two: every row once, with the numbers of its stream alone. A text in
    the place of a number and a row without a key are set aside with a reason."""
    wrong = [{"sensor_id": "a", "at": 2, "y": "abc"}, {"at": 3, "y": "1.0"}]
    write(tmp_path / "in", 0, between(0, 2))
    write(tmp_path / "in", 1, between(2, 3) + wrong)
    for last in range(2):
        frame = source(spark, tmp_path / "in", "string")
        results = bs.spark.stream(MODEL, frame, "sensor_id", columns=CHOSEN, buckets=2)
        where = str(tmp_path / "out"), str(tmp_path / "checkpoint")
        finish(lambda results=results, where=where: bs.spark.write(results, *where, availableNow=True))
        if not last:
            write(tmp_path / "in", 2, between(3, ROWS))
    found = spark.read.parquet(str(tmp_path / "out")).toPandas()
    assert len(found) == ROWS * len(NAMES) + len(wrong)
    rejected = found[found.verdict == "rejected"].sort_values("at")
    assert list(rejected.reason) == ["Column 'y' holds abc, which is no number.", "The row names no stream."]
    recipe = learned_alone(MODEL, bs.Settings(), None, "float64")
    for name in NAMES:
        mine = found[(found.sensor_id == name) & (found.verdict == "ok")].sort_values("at")
        expected = alone(name, DATA[name], recipe)
        assert list(mine.t) == list(range(1, ROWS + 1))
        for column in ("mean", "std", "pit", "residual"):
            np.testing.assert_allclose(mine[f"{column}_0"], getattr(expected, column)[:, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mine.log_score, expected.log_score, rtol=1e-9, atol=1e-9)


def test_a_static_frame_is_filtered_and_smoothed_under_a_lambda_that_is_held(spark, tmp_path):
    write(tmp_path / "in", 0, between(0, ROWS))
    frame = spark.read.schema("sensor_id string, at int, y double").json(str(tmp_path / "in"))
    settings = bs.Settings(learn=False)
    found = bs.spark.smooth(MODEL, frame, "sensor_id", columns=COLUMNS, settings=settings, buckets=2).toPandas()
    q = learned_alone(MODEL, settings, None, "float64").q
    for name in NAMES:
        mine = found[found.sensor_id == name].sort_values("at")
        filtered, smoothed = bs.filter(MODEL, q, DATA[name]), bs.smooth(MODEL, q, DATA[name], key=jax.random.key(0))
        np.testing.assert_allclose(mine.mean_0, np.asarray(filtered.mean)[:, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mine.smoothed_mean_0, np.asarray(smoothed.mean)[:, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mine.smoothed_std_0, np.asarray(smoothed.std)[:, 0], rtol=1e-9, atol=1e-9)


def test_a_common_lambda_is_that_of_one_machine(spark, tmp_path):
    """A micro-batch is a tick. What was learned is then held by another query."""
    for t in range(3):
        write(tmp_path / "in", t, between(t, t + 1))
    out = str(tmp_path / "out")
    frame = source(spark, tmp_path / "in")
    options = {"out": out, "columns": COLUMNS, "buckets": 2}
    finish(lambda: bs.spark.learn(MODEL, frame, "sensor_id", **options, availableNow=True))
    found = spark.read.parquet(f"{out}/results").toPandas().sort_values(["at", "sensor_id"])
    recipe = learned_alone(MODEL, bs.Settings(), None, "float64", common=True)
    panel = Panel(recipe.learner, recipe.q, key=recipe.key, common=True, lanes=4)
    state = panel.begin(panel.open(8), range(5), [words(name) for name in NAMES])
    ys = np.stack([DATA[name][t] for t in range(3) for name in NAMES])
    state, infos = panel.read(state, np.tile(np.arange(5), 3), np.repeat(np.arange(3), 5), ys)
    np.testing.assert_allclose(found.mean_0, infos.mean[:, 0], rtol=1e-9, atol=1e-9)
    learned = bs.spark.learned(MODEL, out)
    moved = 0.0
    for one, other, start in zip(
        *(jax.tree.leaves(q) for q in (learned.family, state.common.average, recipe.q)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        moved = max(moved, float(np.abs(one - start).max()))
    assert moved > 1e-4


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [(bs.Columns(), "keep the order"), (bs.Columns(time="at", observed=("z",)), "no column 'z'")],
)
def test_columns_that_do_not_fit_are_refused(spark, columns, sentence):
    frame = spark.createDataFrame([("a", 0, 1.0)], "sensor_id string, at int, y double")
    with pytest.raises(bs.InputError, match=sentence):
        bs.spark.stream(MODEL, frame, "sensor_id", columns=columns)
