"""Sources: every kind gives the same rows, from any position; what is refused is named by file, row and column."""

import json
import os
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstream.data.columns import Columns
from backstream.data.lines import chunks, followed
from backstream.data.sources import open_source, read_all
from backstream.errors import InputError, RunError

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
    for last_time, passed in ((None, 0), ("8", 2)):
        (batch,) = open_source(path, columns).batches(last_time)
        assert batch.first == 0
        np.testing.assert_array_equal(batch.ys, ROWS)
        np.testing.assert_array_equal(batch.inputs, np.array([[0, passed], [1, 1], [2, 2.5], [3, 6.5]]))
        assert [float(time) for time in batch.times] == [10, 11, 13.5, 20]


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
    found = chunks(reader, "pipe", stopped=lambda: False, poll=0.01)
    os.write(writer, b"a\nb\nhal")
    assert next(found) == [b"a", b"b"]
    threading.Timer(0.1, lambda: (os.write(writer, b"f\nend"), os.close(writer))).start()
    assert list(found) == [[b"half"], [b"end"]]
    os.close(reader)


def test_a_stopped_reader_of_a_pipe_leaves_whole_lines():
    """Half a line has been read when it is stopped: the rest is read too, and the next line is for the next process."""
    reader, writer = os.pipe()
    stop = []
    found = chunks(reader, "pipe", stopped=lambda: bool(stop), poll=0.01)
    os.write(writer, b"a\nhal")
    assert next(found) == [b"a"]
    stop.append(True)
    os.write(writer, b"f\nnext\n")
    assert list(found) == [[b"half"]] and os.read(reader, 99) == b"next\n"
    os.close(reader)
    os.close(writer)


def test_closed_standard_input_is_named(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="Standard input is closed"):
        open_source("-")


def test_a_followed_file_that_is_replaced_by_a_pipe_is_named(tmp_path):
    """To open the pipe would be to wait without end."""
    path = tmp_path / "log.csv"
    path.write_text("y\n1\n")
    found = followed(path, os.open(path, os.O_RDONLY), stopped=lambda: False, poll=0.01)
    assert next(found) == [b"y", b"1"]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match="was replaced by something that is no file"):
        next(found)


@pytest.mark.parametrize(
    ("content", "said"), [("y\n", "has become shorter"), ("y\n7\n8\n9\n", "was emptied and written again")]
)
def test_a_followed_file_that_is_emptied_is_named(tmp_path, content, said):
    """Also where it has grown again, beyond where it was, before anybody looked."""
    path = tmp_path / "log.csv"
    path.write_text("y\n1\n2\n")
    found = followed(path, os.open(path, os.O_RDONLY), stopped=lambda: False, poll=0.01)
    assert next(found) == [b"y", b"1", b"2"]
    path.write_text(content)
    with pytest.raises(RunError, match=said):
        next(found)


def test_a_log_that_is_rotated_is_followed(tmp_path):
    """What is written to the old file after it was renamed is read, a last line without its newline too; then the new
    file, with a header of its own or without one. Line numbers are those of the new file."""
    path, rows, stop = tmp_path / "log.csv", [], []
    path.write_text("y\n1\n2\n")
    batches = open_source(path, follow=True, stopped=lambda: bool(stop)).batches()
    rows += next(batches).ys.ravel().tolist()
    path.rename(tmp_path / "log.csv.1")
    with open(tmp_path / "log.csv.1", "a") as old:
        old.write("3\n4")
    for content in ("y\n5\n6\n", "7\n8\noops\n"):
        incoming = tmp_path / "new"
        incoming.write_text(content)
        begins = len(rows)
        incoming.rename(path)
        while len(rows) < begins + (4 if content[0] == "y" else 2):
            batch = next(batches)
            rows += batch.ys.ravel().tolist()
            if batch.new_file:
                assert batch.first in (4, 6)
    assert rows == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(RunError, match=r"row 9 \(line 3\), column 'y' holds 'oops'"):
        next(batches)


def test_the_first_rows_need_not_be_whole(tmp_path):
    """Damaged rows before the first good one, as a fleet may have them; and JSON objects of which the first does not
    have all columns."""
    path = tmp_path / "obs.jsonl"
    path.write_text('oops\n{"k": "a"}\n{"k": "a", "y": 2}\n')
    (batch,) = open_source(path, Columns(("y",), key="k")).batches()
    assert list(batch.problems) == [0] and batch.keys == [None, "a", "a"]
    np.testing.assert_array_equal(batch.ys, [[np.nan], [np.nan], [2]])
    path.write_text("oops\n" * 3)
    with pytest.raises(RunError, match="line 1, is not JSON"):
        open_source(path, Columns(("y",), key="k"))


def test_a_header_of_many_columns_takes_no_time(tmp_path):
    """100 000 of them: a comparison of each with each would take minutes."""
    path, count = tmp_path / "wide.csv", 100_000
    path.write_text(",".join(f"y{i}" for i in range(count)) + "\n" + ",".join(["1"] * count) + "\n")
    began = time.process_time()
    source = open_source(path)
    open_source(path, Columns(observed=source.columns.observed))
    assert len(source.columns.observed) == count and time.process_time() - began < 10
    with pytest.raises(InputError, match=r"has no column 'z'; it has: y0, .* and 99980 more"):
        open_source(path, Columns(observed=("z",)))


def test_a_label_that_no_file_can_hold_is_a_problem_of_its_row(tmp_path):
    """Half of a pair of characters: in a time the row of a single stream counts as missing, in a key it belongs to no
    stream, in the name of a column it is refused."""
    path = tmp_path / "obs.jsonl"
    path.write_text('{"at": "a", "y": 1}\n{"at": "\\ud800", "y": 2}\n{"at": "c", "y": 3}\n')
    for columns in (Columns(("y",), time="at"), Columns(("y",), key="at")):
        (batch,) = open_source(path, columns).batches()
        assert (batch.times or batch.keys) == ["a", None, "c"] and list(batch.problems) == [1]
        assert r"row 2 (line 2), column 'at' holds '\ud800', which is not valid text" in batch.problems[1].reason
        assert batch.problems[1].content == r'{"at": "\ud800", "y": 2}'
        np.testing.assert_array_equal(batch.ys, [[1], [np.nan], [3]])
    path.write_text('{"\\ud800": 1}\n')
    with pytest.raises(InputError, match=r"a column whose name is not valid text: '\\ud800'"):
        open_source(path)
