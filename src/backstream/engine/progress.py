"""How a stream is getting on, on a terminal or in a notebook."""

import math
import sys
import time
from types import TracebackType
from typing import Any

from backstream._terminal import visible
from backstream.learning import Report

from .results import Progress


def effective_samples(report: Report) -> str:
    """The effective sample size in a window of the stream. Trajectories are not weighted, so that they have none."""
    return "none" if math.isnan(report.ess) else f"{report.ess:.1f}"


class ProgressLine:
    """A line with what matters: observations read and per second, ELBO per step, effective sample size.

    Nothing is shown where nobody would see it: it goes to stderr, if that is a terminal, or to a notebook's cell.
    """

    def __init__(self, shown: bool = True):
        self._display = _display(shown)
        self._begun: float | None = None
        self._read = 0

    def __enter__(self) -> "ProgressLine":
        self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._display.stop()

    def update(self, progress: Progress) -> None:
        fields: dict[str, Any] = {}
        if self._begun is None:  # compilation, which comes before the first rows, is not counted
            self._begun = time.monotonic()
        else:
            self._read += len(progress.rows.mean)
            fields["speed"] = f"{self._read / max(time.monotonic() - self._begun, 1e-9):,.0f}"
        for report in progress.reports[-1:]:
            fields["elbo"] = f"{report.average_elbo:.2f}"
            fields["ess"] = effective_samples(report)
        self._display.update(position=progress.position, **fields)

    def say(self, sentence: str) -> None:
        """A line that stays, above."""
        self._display.say(visible(sentence))


START: dict[str, Any] = {"position": 0, "speed": "…", "elbo": "…", "ess": "…"}


def _display(shown: bool) -> "_Terminal | _Cell | _Nothing":
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # an extra
        return _Nothing()
    return _Cell() if shown and Console().is_jupyter else _Terminal(shown)


class _Nothing:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def update(self, **fields: Any) -> None:
        pass

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)


class _Terminal:
    def __init__(self, shown: bool):
        from rich.console import Console
        from rich.progress import Progress as Display
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(file=sys.stderr, force_jupyter=False)
        self._display = Display(
            SpinnerColumn(),
            TextColumn("{task.fields[position]:>9,} read"),
            TextColumn("{task.fields[speed]:>7} obs/s"),
            TextColumn("ELBO/step {task.fields[elbo]:>8}"),
            TextColumn("ESS {task.fields[ess]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        self._task = self._display.add_task("", total=None, **START)

    def start(self) -> None:
        self._display.start()

    def stop(self) -> None:
        self._display.stop()

    def update(self, **fields: Any) -> None:
        self._display.update(self._task, **fields)

    def say(self, sentence: str) -> None:
        self._display.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class _Cell:
    """A line in the output of a notebook's cell. Rich would need ipywidgets for it; what every kernel has is enough."""

    def __init__(self):
        self._fields, self._handle = dict(START), None

    def start(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # there is one in every kernel

        self._handle = display(self._line(), raw=True, display_id=True)

    def stop(self) -> None:
        self.update()

    def update(self, **fields: Any) -> None:
        self._fields |= fields
        if self._handle is not None:
            self._handle.update(self._line(), raw=True)

    def say(self, sentence: str) -> None:
        print(sentence)

    def _line(self) -> dict[str, str]:
        text = "{position:,} read   {speed} obs/s   ELBO/step {elbo}   ESS {ess}"
        return {"text/plain": text.format(**self._fields)}
