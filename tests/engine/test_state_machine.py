"""A short run of `tests.soak.state_machine`."""

from tests.soak.state_machine import COUNTS, explore


def test_nothing_is_lost_and_nothing_doubled():
    """A few hundred steps, always the same ones."""
    COUNTS.clear()
    explore(12, 10, derandomize=True)
    assert COUNTS["life"] > 50 and COUNTS["rotation"] and COUNTS["model raises"] and COUNTS["damaged row"]
    assert any(name.startswith(("kill", "tear", "power")) for name in COUNTS)
