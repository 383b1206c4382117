"""A short run of `tests.soak.state_machine`."""

from tests.soak.state_machine import COUNTS, explore


def test_nothing_is_lost_and_nothing_doubled():
    """A hundred steps, always the same ones, with most kinds of faults among them."""
    COUNTS.clear()
    explore(number=2, examples=10, steps=10)
    assert COUNTS["life"] > 40 and COUNTS["rotation"] and COUNTS["model raises"]
    assert any(name.startswith(("kill", "tear", "power")) for name in COUNTS)
    assert len(COUNTS) > 15, COUNTS
