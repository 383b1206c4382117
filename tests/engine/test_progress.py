"""The progress line: on a terminal, in a notebook's cell, and nowhere else."""

import sys
from types import ModuleType

import numpy as np
import pytest
import rich.console

from backstream.engine.progress import ProgressLine
from backstream.engine.results import Filtered, Progress
from backstream.learning import Report


def told(ess):
    """Two pieces of 256 rows, the second with a report."""
    report = Report(512, -1.0, -1.1, 0.01, -1.25, ess, 0.5, 0.0, ())
    nothing = np.full((256, 1), np.nan)
    rows = Filtered(
        0, None, np.zeros((256, 1)), np.ones((256, 1)), np.zeros(256, bool), nothing[:, 0], nothing, nothing
    )
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


@pytest.mark.parametrize(("ess", "said"), [(31.24, "ESS 31.2"), (float("nan"), "ESS none")])
def test_in_a_notebook_a_line_is_brought_up_to_date(monkeypatch, capsys, ess, said):
    kernel = Kernel(monkeypatch)
    with ProgressLine() as line:
        for piece in told(ess):
            line.update(piece)
        line.say("After 512 rows: a warning.")
    assert kernel.shown[0] == "0 read   … obs/s   ELBO/step …   ESS …"
    assert kernel.shown[-1].startswith("512 read   ") and kernel.shown[-1].endswith(f"ELBO/step -1.25   {said}")
    assert "…" not in kernel.shown[-1]
    assert capsys.readouterr().out == "After 512 rows: a warning.\n"


def test_nothing_is_shown_where_nobody_would_see_it(monkeypatch, capsys):
    with ProgressLine() as line:  # under pytest, stderr is no terminal
        for piece in told(2.0):
            line.update(piece)
    assert capsys.readouterr() == ("", "")
    kernel = Kernel(monkeypatch)
    with ProgressLine(shown=False) as line:
        for piece in told(2.0):
            line.update(piece)
    assert kernel.shown == [] and capsys.readouterr() == ("", "")
