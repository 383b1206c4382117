"""Sources: every kind gives the same rows, from any position; what is refused is named by file, row and column."""

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstream.io.config import Columns
from backstream.io.errors import InputError, RunError
from backstream.io.lines import chunks
from backstream.io.sources import open_source, read_all

CSV = "at,name,y1,y2,u\n10,a,1.5,-2,0\n11,b,,3e2,1\n\n13.5,c,NaN,NA,2\n20,d,null,4,3\n"
ROWS = np.array([[1.5, -2], [np.nan, 300], [np.nan, np.nan], [np.nan, 4]])


def write(folder, kind):
    path = folder / f"obs.{kind}"
    table = {
        "at": [10, 11, 13.5, 20],
        "name": list("abcd"),
        "y1": [1.5, None, None, None],
        "y2": [-2, 300, None, 4],
        "u": [0, 1, 2, 3],
    }
    if kind == "csv":
        path.write_text(CSV)
    elif kind == "parquet":
        pq.write_table(pa.table(table), path)
    else:
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        path.write_text(
            "".join(json.dumps({k: v for k, v in row.items() if v is not None or k == "y1"}) + "\n" for row in rows)
        )
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_kind_gives_the_same_rows(tmp_path, kind):
    path = write(tmp_path, kind)
    columns = Columns(observed=("y1", "y2"), time="at", inputs=("u",), elapsed=True)
    for skip in range(4):
        source = open_source(path, columns)
        batch = next(source.batches(skip, last_time=None if skip == 0 else ["10", "11", "13.5"][skip - 1]))
        assert batch.first == skip
        np.testing.assert_array_equal(batch.ys, ROWS[skip:])
        np.testing.assert_array_equal(batch.inputs, np.array([[0, 0], [1, 1], [2, 2.5], [3, 6.5]])[skip:])
        assert [float(time) for time in batch.times] == [10, 11, 13.5, 20][skip:]
    assert list(open_source(path, columns).batches(4, "20")) == []
    with pytest.raises(InputError, match="has 4 rows, but the run has already read 5"):
        list(open_source(path, columns).batches(5, "20"))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_by_default_every_numeric_column_is_observed(tmp_path, kind):
    assert open_source(write(tmp_path, kind), Columns(time="at")).columns.observed == ("y1", "y2", "u")
    with pytest.raises(InputError, match=r"no column 'y3'; it has: at, name, y1, y2, u\."):
        open_source(write(tmp_path, kind), Columns(observed=("y3",)))


def test_arrays_and_tables():
    np.testing.assert_array_equal(read_all(open_source(ROWS)).ys, ROWS)
    np.testing.assert_array_equal(
        read_all(open_source(pa.table({"a": [1, None], "b": ["x", "y"]}))).ys, [[1], [np.nan]]
    )
    with pytest.raises(InputError, match=r"shape \[T, dy\], not \(4,\)"):
        open_source(np.zeros(4))


BAD = {
    "y\n1\nabc\n": r"row 2 \(line 3\), column 'y' holds 'abc', which is not a number",
    "y\n1\n1_000\n": r"row 2 \(line 3\), column 'y' holds '1_000', which is not a number",
    "y\n1\n-inf\n": r"row 2 \(line 3\), column 'y' holds '-inf', which is infinite",
    "y\n1\n1e39\n": r"row 2 \(line 3\), column 'y' holds '1e39', which is infinite or too large",
    "x,y\n1,2\n1\n": r"line 3, has 1 cells, but the header has 2",
    'x,y\n1,2\n"1,2\n': r"line 3, cannot be read",
    '{"y": 1}\n{"y": true}\n': r"row 2 \(line 2\), column 'y' holds True, which is not a number",
    '{"y": 1}\n{"y": [1]}\n': r"row 2 \(line 2\), column 'y' holds \[1\], which is not a number",
    '{"y": 1}\n{"y": 1' + "0" * 400 + "}\n": r"row 2 \(line 2\), column 'y' holds .*, which is infinite",
    '{"y": 1}\n[1]\n': r"line 2, is not an object",
    '{"y": 1}\n{"y": \n': r"line 2, is not JSON",
    '{"y": 1}\n' + '{"y": ' + "[" * 100_000 + "\n": r"line 2, is not JSON",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_refused_is_named_once_the_rows_before_have_been_given(tmp_path, text):
    (tmp_path / "obs").write_text(text)
    batches = open_source(tmp_path / "obs", Columns(observed=("y",))).batches()
    assert next(batches).ys.shape == (1, 1)
    with pytest.raises(RunError, match=rf"{tmp_path / 'obs'}, {BAD[text]}"):
        next(batches)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"x,y\n", "is empty"),
        (b"1,2\n3,4\n", "its first line must hold the names"),
        (b"x,x\n3,4\n", "two columns named 'x'"),
        (b"PAR1 not parquet", "not a Parquet file"),
        (b"name\nann\n", "no numeric column"),
    ],
)
def test_sources_that_cannot_be_used(tmp_path, content, said):
    (tmp_path / "obs").write_bytes(content)
    with pytest.raises(InputError, match=said):
        open_source(tmp_path / "obs")
    with pytest.raises(RunError, match="line 2, is not UTF-8"):
        (tmp_path / "obs").write_bytes(b"y\n\xff\xfe\n")
        open_source(tmp_path / "obs")


def test_time_that_goes_back_and_inputs_that_are_missing(tmp_path):
    path = tmp_path / "obs.csv"
    path.write_text("at,y,u\n2024-01-02,1,1\n2024-01-01,2,1\n")
    batches = open_source(path, Columns(("y",), "at", elapsed=True)).batches()
    assert next(batches).inputs.tolist() == [[0.0]]
    with pytest.raises(RunError, match=r"row 2 \(line 3\), column 'at' goes back in time"):
        next(batches)
    path.write_text("at,y,u\n1,1,1\n2,2,\n")
    batches = open_source(path, Columns(("y",), inputs=("u",))).batches()
    assert next(batches).inputs.tolist() == [[1.0]]
    with pytest.raises(RunError, match=r"row 2 \(line 3\), column 'u' is empty, but an input must be known"):
        next(batches)


def test_lines_come_as_soon_as_they_are_whole():
    """From a pipe: what is there is given at once, half a line waits, and the last needs no newline."""
    reader, writer = os.pipe()
    found = chunks(reader, "pipe", follow=False, stopped=lambda: False, poll=0.01)
    os.write(writer, b"a\nb\nhal")
    assert next(found) == [b"a", b"b"]
    threading.Timer(0.1, lambda: (os.write(writer, b"f\nend"), os.close(writer))).start()
    assert list(found) == [[b"half"], [b"end"]]
    os.close(reader)


def test_a_followed_file_that_shrinks_is_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("y\n1\n2\n")
    descriptor = os.open(path, os.O_RDONLY)
    found = chunks(descriptor, str(path), follow=True, stopped=lambda: False, poll=0.01)
    assert next(found) == [b"y", b"1", b"2"]
    path.write_text("y\n")
    with pytest.raises(RunError, match="has become shorter"):
        next(found)
    os.close(descriptor)
