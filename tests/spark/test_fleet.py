"""A fleet on Spark gives what its streams give alone: own λ, a λ that is held, and one that is learned from all."""

import jax
import numpy as np
import pytest

import backstream as bs
from backstream.engine.spark.recipe import learned_alone
from backstream.learning import Panel
from backstream.learning.multistream.fleet import words
from small_fleet import COLUMNS, DATA, MODEL, NAMES, ROWS, alone, between, finish, source, write


def test_own_lambdas_survive_a_restart_and_rows_that_cannot_be_used(spark, tmp_path):
    """Three micro-batches, the query stopped after two: every row once, with the numbers of its stream alone. A text in
    the place of a number and a row without a key are set aside with a reason."""
    wrong = [{"sensor_id": "a", "at": 2, "y": "abc"}, {"at": 3, "y": "1.0"}]
    write(tmp_path / "in", 0, between(0, 2))
    write(tmp_path / "in", 1, between(2, 3) + wrong)
    for last in range(2):
        frame = source(spark, tmp_path / "in", "string")
        results = bs.spark.stream(MODEL, frame, "sensor_id", columns=COLUMNS, buckets=2)
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
    static = spark.read.schema("sensor_id string, at int, y double").json(str(tmp_path / "in"))
    held = bs.spark.stream(learned, static, "sensor_id", columns=COLUMNS, buckets=2).toPandas().sort_values("at")
    for name in NAMES:
        expected = bs.filter(learned.model, learned.family, DATA[name][:3])
        mine = held[held.sensor_id == name]
        np.testing.assert_allclose(mine.mean_0, np.asarray(expected.mean)[:, 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [(bs.Columns(), "keep the order"), (bs.Columns(time="at", observed=("z",)), "no column 'z'")],
)
def test_columns_that_do_not_fit_are_refused(spark, columns, sentence):
    frame = spark.createDataFrame([("a", 0, 1.0)], "sensor_id string, at int, y double")
    with pytest.raises(bs.InputError, match=sentence):
        bs.spark.stream(MODEL, frame, "sensor_id", columns=columns)
