"""How a stream is getting on, on a terminal or in a notebook."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from backstream._terminal import visible
from backstream.learning import Verdict

from .results import Progress

COMPILING = "compiling (about 20 s the first time)"
"""Before the first rows. Programs are kept on disk, so that later runs of the command line wait for a second or two."""


class ProgressLine:
    """One line: rows read, rows per second, the time left if the number of rows is known, and the verdict so far.

    It is written to stderr, if that is a terminal, or to the cell of a notebook, and nowhere else.

    Args:
        shown: Whether to show it at all.
        rows: The number of rows of the source, if known.
        whole: Whether the source starts with the first row of the run, also if the run is resumed.
    """

    def __init__(self, shown: bool = True, rows: int | None = None, whole: bool = True):
        self._display = _display(shown)
        self._rows, self._whole = rows, whole
        self._begun: float | None = None
        self._end: int | None = None
        self._read = 0
        self._verdict = ""

    def __enter__(self) -> "ProgressLine":
        self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._display.stop()

    def update(self, progress: Progress, verdict: Callable[[], Verdict | None] = lambda: None) -> None:
        """After a piece of the stream. `verdict` is called if the line is shown and the piece has a report."""
        if progress.reports and self._display.shown:
            found = verdict()
            self._verdict = "" if found is None else f"   so far: {found.kind}"
        self._display.update(f"{progress.position:,} rows{self._speed(progress)}{self._verdict}")

    def _speed(self, progress: Progress) -> str:
        """Rows per second and the time left, without the time of compiling, which comes before the first rows."""
        now, count = time.monotonic(), len(progress.rows.mean)
        if self._begun is None:
            start = 0 if self._whole else progress.position - count
            self._begun, self._end = now, None if self._rows is None else start + self._rows
            return ""
        self._read += count
        rate = self._read / max(now - self._begun, 1e-9)
        left = "" if self._end is None else f"   {_duration((self._end - progress.position) / rate)} left"
        return f"   {rate:,.0f} rows/s{left}"

    def say(self, sentence: str) -> None:
        """A line that stays, above."""
        self._display.say(visible(sentence))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _display(shown: bool) -> "_Terminal | _Cell | _Nothing":
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # an extra
        return _Nothing()
    return _Cell() if shown and Console().is_jupyter else _Terminal(shown)


class _Nothing:
    shown = False

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def update(self, text: str) -> None:
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
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        self.shown = shown and console.is_terminal
        self._task = self._display.add_task(COMPILING, total=None)

    def start(self) -> None:
        self._display.start()

    def stop(self) -> None:
        self._display.stop()

    def update(self, text: str) -> None:
        self._display.update(self._task, description=text)

    def say(self, sentence: str) -> None:
        self._display.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class _Cell:
    """A line in the output of a notebook's cell. Rich would need ipywidgets for it; what every kernel has is enough."""

    shown = True

    def __init__(self):
        self._handle = None

    def start(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # there is one in every kernel

        self._handle = display({"text/plain": COMPILING}, raw=True, display_id=True)

    def stop(self) -> None:
        pass

    def update(self, text: str) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)

    def say(self, sentence: str) -> None:
        print(sentence)
