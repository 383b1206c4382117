"""What the documentation says of the cost of a row is what was measured."""

from benchmarks import rows
from benchmarks.pages import filled


def test_the_page_has_the_committed_numbers():
    page = rows.PAGE.read_text()
    assert "<!-- rows: begin -->\n\n|" in page
    assert filled(page, rows.SECTIONS) == page
