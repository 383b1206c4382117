"""How a stream is getting on, on a terminal or in a notebook."""

import math
import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import Progress as Display
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from .streaming import Progress


class ProgressLine:
    """A line with what matters: observations read and per second, ELBO per step, effective sample size.

    Nothing is shown where nobody would see it: it goes to stderr, if that is a terminal, or to a notebook's cell.
    """

    def __init__(self, shown: bool = True):
        console = Console(file=None if Console().is_jupyter else sys.stderr)
        self._display = Display(
            SpinnerColumn(),
            TextColumn("{task.fields[position]:>9,} read"),
            TextColumn("{task.fields[speed]:>7} obs/s"),
            TextColumn("ELBO/step {task.fields[elbo]:>8}"),
            TextColumn("ESS {task.fields[ess]:>6}"),
            TimeElapsedColumn(),
            console=console,
            disable=not shown or not (console.is_terminal or console.is_jupyter),
            transient=True,
        )
        self._task = self._display.add_task("", total=None, position=0, speed="…", elbo="…", ess="…")
        self._begun = time.monotonic()
        self._read = 0

    def __enter__(self) -> "ProgressLine":
        self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._display.stop()

    def update(self, progress: Progress) -> None:
        self._read += len(progress.rows.mean)
        fields: dict[str, Any] = {"speed": f"{self._read / max(time.monotonic() - self._begun, 1e-9):,.0f}"}
        for report in progress.reports[-1:]:
            fields["elbo"] = f"{report.average_elbo:.2f}"
            fields["ess"] = "–" if math.isnan(report.ess) else f"{report.ess:.1f}"
        self._display.update(self._task, position=progress.position, **fields)

    def say(self, sentence: str) -> None:
        """A line that stays, above."""
        self._display.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
