"""Rows on their way to a worker of Spark and back, as Arrow tables. Neither Spark nor Java is needed here."""

import numpy as np
import pyarrow as pa

from backstream.engine.spark import tables
from backstream.engine.spark.tables import (
    BUCKET,
    KEY,
    MISSING,
    OK,
    PACKED,
    PROBLEM,
    REFUSED,
    REJECTED,
    TIME,
    BucketRows,
    Told,
    as_pandas,
    in_order,
    packed,
    results_of,
    unpacked,
)
from backstream.families import Guided
from backstream.learning.records import blank_infos
from linear_gaussian import model


def given(order):
    """Eight rows of two buckets, in some order; two differ in nothing but their keys."""
    rows = {
        BUCKET: [0, 1, 0, 1, 0, 0, 1, 0],
        KEY: ["a", "b", "c", "d", "e", "f", "g", None],
        PROBLEM: [None] * 7 + ["bad"],
        TIME: [3, 1, 2, 2, 1, 1, 1, None],
        "y0": [0.5, 1.0, 2.0, 2.0, None, None, 0.0, 1.0],
    }
    types = [pa.int32(), pa.string(), pa.string(), pa.int64(), pa.float64()]
    columns = {name: pa.array(values, kind) for (name, values), kind in zip(rows.items(), types, strict=True)}
    return pa.table(columns).take(order)


def test_blocks_hold_the_rows_of_their_bucket_whatever_the_order_in_which_they_come(monkeypatch):
    monkeypatch.setattr(tables, "MOST_PACKED", 4)
    for seed in range(20):
        batches = given(np.random.default_rng(seed).permutation(8)).to_batches(max_chunksize=3)
        blocks = pa.Table.from_batches(packed(iter(batches))).to_pylist()
        assert len(blocks) > 2  # several blocks for a bucket
        for bucket, names in ((0, ["e", "f", "c", "a", None]), (1, ["g", "b", "d"])):
            found = in_order(unpacked(block[PACKED] for block in blocks if block[BUCKET] == bucket))
            assert found[KEY].to_pylist() == names


def test_each_row_has_a_verdict_and_a_row_that_was_set_aside_has_a_reason_and_no_count():
    rows = BucketRows(
        ["a", "b", "c", "d"], np.array([[1.0, 2.0], [np.nan, 2.0], [np.nan, np.nan], [1.0, 2.0]]), None, []
    )
    infos = blank_infos(4, Guided.from_model(model()), np.float64)
    infos = infos._replace(t=np.array([4, 4, 4, 0]), refused=np.array([False, True, False, False]))
    table = results_of(pa.table({"kept0": ["a", "b", "c", "d"]}), ["id"], rows, Told(infos, [None, None, None, "bad"]))
    assert table["verdict"].to_pylist() == [OK, REFUSED, MISSING, REJECTED]
    assert table["reason"].to_pylist() == [None, None, None, "bad"]
    assert table["t"].to_pylist() == [5, 5, 5, 0] and table["id"].to_pylist() == ["a", "b", "c", "d"]


def test_texts_are_objects_and_whole_numbers_stay_exact_beside_missing_ones():
    """Spark cannot convert pandas' own texts in several chunks, and a float has no room for a time in nanoseconds."""
    large = 1_763_480_000_123_456_789
    table = pa.concat_tables(
        [pa.table({"id": ["a"], "at": [large]}), pa.table({"id": ["b"], "at": pa.nulls(1, pa.int64())})]
    )
    found = as_pandas(table)
    assert found["id"].dtype == object and found["at"].tolist() == [large, None]
