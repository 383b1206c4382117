"""What goes wrong with rows and states is set aside with a reason, and the rest goes on; silent streams end."""

import time

import numpy as np

import backstream as bs
from backstream.engine.spark.recipe import learned_alone
from small_fleet import COLUMNS, DATA, MODEL, NAMES, alone, between, finish, source, write

FILTERING = bs.Settings(learn=False)


def test_a_damaged_state_and_rows_of_another_schema_are_set_aside(spark, tmp_path, monkeypatch):
    """After the first micro-batch one stream's state is damaged; in the second a line is cut off, a number is
    an object, a number is infinite and a time is missing. All have reasons, the damaged stream begins anew in the
    third, and the other streams are as they would be alone."""
    from backstream.engine.spark import processor
    from vandal import Vandal

    wrong = [
        '{"sensor_id": "a", "at"',
        {"sensor_id": "b", "at": 1, "y": {"value": 1.0}},
        '{"sensor_id": "c", "at": 1, "y": 1e999}',
        {"sensor_id": "d", "y": 1.0},
    ]
    where = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(first, rows):
        write(tmp_path / "in", first, rows)
        frame = source(spark, tmp_path / "in", more=", _corrupt_record string")
        options = {"columns": COLUMNS, "settings": FILTERING, "buckets": 1, "keep": ["_corrupt_record"]}
        results = bs.spark.stream(MODEL, frame, "sensor_id", **options)
        finish(lambda: bs.spark.write(results, *where, availableNow=True))

    monkeypatch.setattr(processor, "BucketProcessor", Vandal)
    run(0, between(0, 1))
    monkeypatch.undo()
    write(tmp_path / "in", 2, between(2, 3))
    run(1, between(1, 2) + wrong)

    found = spark.read.parquet(where[0]).toPandas()
    assert len(found) == 3 * len(NAMES) + len(wrong)
    rejected = found[found.verdict == "rejected"]
    damaged = rejected[rejected.reason.str.startswith("The state of the stream is damaged")]
    assert len(damaged) == 1
    assert sorted(rejected.drop(damaged.index).reason) == [
        "Column 'at', which gives the order, is empty.",
        "The observation in column 0 is infinite: inf.",
        "The row is of another schema.",
        "The row is of another schema.",
    ]
    recipe = learned_alone(MODEL, FILTERING, None, "float64")
    for name in NAMES:
        mine = found[(found.sensor_id == name) & (found.verdict == "ok")].sort_values("at")
        rows = [0, 2] if name == damaged.sensor_id.item() else [0, 1, 2]
        assert list(mine["at"]) == rows
        ys = DATA[name][[2]] if len(rows) == 2 else DATA[name][:3]
        np.testing.assert_allclose(mine.mean_0.iloc[-1], alone(name, ys, recipe).mean[-1, 0], rtol=1e-9, atol=1e-9)


def test_silent_streams_end_though_no_row_of_their_bucket_comes(spark, tmp_path):
    write(tmp_path / "in", 0, between(0, 1))
    frame = source(spark, tmp_path / "in")
    options = {"columns": COLUMNS, "settings": FILTERING, "buckets": 1, "forget_after": 3.0}
    results = bs.spark.stream(MODEL, frame, "sensor_id", **options)
    where = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    query = bs.spark.write(results, *where, processingTime="500 milliseconds")

    def wait_until(holds):
        begun = time.monotonic()
        while not holds():
            assert query.isActive and time.monotonic() - begun < 120, query.exception()
            time.sleep(0.3)

    def states():
        """What is kept, by the latest micro-batch: a block for each bucket, and its timer."""
        operators = query.lastProgress["stateOperators"] if query.lastProgress else []
        return operators[0]["numRowsTotal"] if operators else None

    def written():
        return spark.read.schema("t bigint").parquet(where[0]).count() if (tmp_path / "out").exists() else 0

    try:
        wait_until(lambda: written() == len(NAMES))
        wait_until(lambda: states() == 0)
        write(tmp_path / "in", 1, between(1, 2))
        wait_until(lambda: written() == 2 * len(NAMES))
    finally:
        query.stop()
    assert set(spark.read.parquet(where[0]).toPandas().t) == {1}
