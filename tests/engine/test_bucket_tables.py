"""Rows on their way to a worker of Spark and back, as Arrow tables. Neither Spark nor Java is needed here."""

import numpy as np
import pyarrow as pa

from backstream.engine.spark import tables
from backstream.engine.spark.tables import BUCKET, KEY, PACKED, PROBLEM, TIME, as_pandas, in_order, packed, unpacked


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


def test_texts_are_objects_and_whole_numbers_stay_exact_beside_missing_ones():
    """Spark cannot convert pandas' own texts in several chunks, and a float has no room for a time in nanoseconds."""
    large = 1_763_480_000_123_456_789
    table = pa.concat_tables(
        [pa.table({"id": ["a"], "at": [large]}), pa.table({"id": ["b"], "at": pa.nulls(1, pa.int64())})]
    )
    found = as_pandas(table)
    assert found["id"].dtype == object and found["at"].tolist() == [large, None]
