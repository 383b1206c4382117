"""Whether a source is still the one that a run has read."""

import pytest

from backstream.data.identity import MARKS, Check, Prefix
from backstream.errors import InputError


def rows(count):
    return [f"{i}".encode() for i in range(count)]


def read(contents):
    prefix = Prefix()
    for row in contents:
        prefix.add(row)
    return Prefix.restored(prefix.record())


def compared(expected, contents):
    check = Check(expected, "obs.csv")
    for row in contents:
        check.add(row)
        if check.is_done():
            return
    check.require_done()


@pytest.mark.parametrize("place", [0, 700, MARKS - 1])
def test_the_first_row_that_differs_is_named(place):
    """Of a row that was changed, of rows that were inserted, and of another file altogether."""
    contents = rows(MARKS)
    expected = read(contents)
    compared(expected, [*contents, b"more"])
    for other in (
        [*contents[:place], b"x", *contents[place + 1 :]],
        [*contents[:place], *rows(100), *contents[place:]],
    ):
        if other[place] != contents[place]:
            with pytest.raises(InputError, match=rf"obs\.csv is not the source .*: row {place + 1} differs"):
                compared(expected, other)
    with pytest.raises(InputError, match="row 1 differs"):
        compared(expected, [b"other"] * MARKS)


def test_of_a_long_source_the_rows_around_the_first_that_differs_are_named():
    """1 in 1024 of them at most, here 8; what is kept does not grow with the source."""
    count = 5 * MARKS + 3
    contents = rows(count)
    expected = read(contents)
    compared(expected, contents)
    assert len(expected.marks) <= MARKS and expected.spacing == 8 and len(expected.record()["marks"]) < 20_000
    with pytest.raises(InputError, match="the first difference is in rows 5001 to 5008"):
        compared(expected, [*contents[:5001], b"x", *contents[5002:]])
    with pytest.raises(
        InputError, match=f"the first difference is in rows {count - 2} to {count}"
    ):  # after the last mark
        compared(expected, [*contents[:-1], b"x"])
    with pytest.raises(InputError, match=f"has {count - 1} rows, but the run has already read {count}"):
        compared(expected, contents[:-1])


@pytest.mark.parametrize("change", [{"spacing": 0}, {"marks": "00"}, {"count": "3"}, {"chain": 5}])
def test_a_record_that_makes_no_sense(change):
    record = read(rows(3)).record()
    with pytest.raises((ValueError, TypeError)):
        Prefix.restored(record | change)
