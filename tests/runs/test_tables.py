"""Tables that people open: nothing in them is computed by a spreadsheet or obeyed by a terminal, unless asked for."""

import csv

import pyarrow as pa
import pytest

from backstream.runs.tables import write_result

ODD = ["=cmd|' /C calc'!A0", "@sum(1)", "+c", "-d", "\tx", "\x1b]0;title\x07", "-1.5", "2024-01-01", None, "plain"]
HARMLESS = [
    "'=cmd|' /C calc'!A0",
    "'@sum(1)",
    "'+c",
    "'-d",
    "'\tx",
    r"\x1b]0;title\x07",
    "-1.5",
    "2024-01-01",
    "",
    "plain",
]


@pytest.mark.parametrize(
    ("raw", "expected"), [(False, HARMLESS), (True, ["" if cell is None else cell for cell in ODD])]
)
def test_formulas_and_escape_sequences_in_csv(tmp_path, raw, expected):
    table = pa.table({"key": pa.array(ODD, pa.string()), "=1+1_mean": [-0.5] * len(ODD)})
    write_result(table, tmp_path / "out.csv", "", raw)
    with open(tmp_path / "out.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["key", "=1+1_mean" if raw else "'=1+1_mean"]
    assert [row[0] for row in rows] == expected
    assert {row[1] for row in rows} == {"-0.5"}
