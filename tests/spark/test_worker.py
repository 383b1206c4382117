"""What a worker does beside the rows of a bucket. pyspark is needed here, but no Java."""

import gc

import numpy as np
import pyarrow as pa
import pytest

import backstream as bs
from backstream.engine.spark import worker
from backstream.engine.spark.recipe import learned_alone
from backstream.engine.spark.tables import BUCKET, KEY, PACKED, PROBLEM, TIME, packed
from small_fleet import DATA, MODEL, NAMES

pytest.importorskip("pyspark.sql", reason="pyspark is not installed: make test-spark installs it.")


class State:
    """A state of Spark's, without Spark."""

    content = None

    def get(self):
        return self.content

    def update(self, content):
        self.content = content


@pytest.fixture
def collector():
    """As it was before the test."""
    worker.spare_the_collector.cache_clear()
    yield
    gc.unfreeze()


def rows():
    columns = {
        BUCKET: np.zeros(len(NAMES), np.int32),
        KEY: list(NAMES),
        PROBLEM: pa.nulls(len(NAMES), pa.string()),
        "y0": [DATA[name][0, 0] for name in NAMES],
        TIME: np.zeros(len(NAMES), np.int64),
    }
    return pa.table(columns)


def job():
    recipe = learned_alone(MODEL, bs.Settings(learn=False), None, "float64")
    return worker.sealed("float64", recipe, observed=1, inputs=0)


def test_what_stays_is_left_out_of_the_collections_after_each_task(collector):
    from backstream.engine.spark.processor import BucketProcessor

    processor = BucketProcessor(job(), [])
    processor._state = State()
    blocks = pa.Table.from_batches(packed(iter(rows().to_batches()))).to_pandas()
    assert blocks.columns.tolist() == [BUCKET, PACKED] and gc.get_freeze_count() == 0
    (results,) = processor.handleInputRows((0,), iter([blocks]), None)
    assert len(results) == len(NAMES) and gc.get_freeze_count() > 100_000


@pytest.mark.parametrize("function", ["filtered_rows", "smoothed_rows"])
def test_so_it_is_where_a_static_frame_is_read(collector, function):
    from backstream.engine.spark import batch

    assert gc.get_freeze_count() == 0
    assert len(getattr(batch, function)(job(), [], rows())) == len(NAMES)
    assert gc.get_freeze_count() > 100_000
