"""The progress line: on a terminal, in a notebook's cell, and nowhere else."""

import sys
from types import ModuleType

import numpy as np
import pytest
import rich.console

from backstream.engine.progress import ProgressLine
from backstream.engine.results import Filtered, Progress
from backstream.learning import Report, Verdict


def pieces():
    """Two pieces of 256 rows, the second with a report."""
    report = Report(512, -1.0, -1.1, 0.01, -1.25, 31.2, 0.5, 0.0, ())
    nothing = np.full((256, 1), np.nan)
    rows = Filtered(0, None, nothing, nothing, np.zeros(256, bool), nothing[:, 0], nothing, nothing, nothing)
    return [Progress(256, rows, []), Progress(512, rows, [report])]


class Kernel:
    """What every notebook's kernel has: cells that are displayed once and then updated."""

    def __init__(self, monkeypatch):
        self.shown = []
        module = ModuleType("IPython.display")
        module.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)

    def display(self, data, raw, display_id):
        assert raw and display_id
        self.shown.append(data["text/plain"])
        return self

    def update(self, data, raw):
        self.shown.append(data["text/plain"])


@pytest.mark.parametrize(
    ("rows", "whole", "left"), [(None, True, ""), (1024, True, "   2 s left"), (37_120, True, "   2 min 23 s left")]
)
def test_in_a_notebook_a_line_is_brought_up_to_date(monkeypatch, capsys, rows, whole, left):
    """At 256 rows per second, after 512 rows."""
    kernel, clock = Kernel(monkeypatch), iter([10.0, 11.0])
    monkeypatch.setattr("backstream.engine.progress.time.monotonic", lambda: next(clock))
    good = Verdict("good", ())
    with ProgressLine(True, rows, whole) as line:
        for piece in pieces():
            line.update(piece, lambda: good)
        line.say("After 512 rows: a warning.")
    assert kernel.shown[0] == "compiling (about 20 s the first time)" and kernel.shown[1] == "256 rows"
    assert kernel.shown[-1] == f"512 rows   256 rows/s{left}   so far: good"
    assert capsys.readouterr().out == "After 512 rows: a warning.\n"


def test_a_resumed_run_with_new_rows_ends_after_them(monkeypatch):
    kernel, clock = Kernel(monkeypatch), iter([10.0, 11.0])
    monkeypatch.setattr("backstream.engine.progress.time.monotonic", lambda: next(clock))
    first, second = (piece._replace(position=piece.position + 10_000) for piece in pieces())
    with ProgressLine(True, 1024, whole=False) as line:
        line.update(first)
        line.update(second)
    assert kernel.shown[-1] == "10,512 rows   256 rows/s   2 s left"


def test_nothing_is_shown_where_nobody_would_see_it(monkeypatch, capsys):
    def never():
        raise AssertionError("nobody sees the verdict")

    with ProgressLine() as line:  # under pytest, stderr is no terminal
        for piece in pieces():
            line.update(piece, never)
    assert capsys.readouterr() == ("", "")
    kernel = Kernel(monkeypatch)
    with ProgressLine(shown=False) as line:
        for piece in pieces():
            line.update(piece, never)
    assert kernel.shown == [] and capsys.readouterr() == ("", "")
