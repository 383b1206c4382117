"""Errors of the command line: one sentence on stderr and an exit code for scripts. --debug shows the traceback."""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import typer

from backstream._terminal import visible

DEBUG = "BACKSTREAM_DEBUG"
FAILURE, USAGE, NOT_USABLE, INTERRUPTED = 1, 2, 3, 128 + signal.SIGINT
"""NOT_USABLE: the command worked, but the verdict on the result is "failed"."""


def plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Prints the errors of a command as sentences. Exit code 2: invalid request, 1: other errors, 130: Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        before, sys.unraisablehook = sys.unraisablehook, _unraised
        try:
            return command(*args, **options)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            silence_stdout()
            end("The program that reads standard output has closed it.", FAILURE)
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            sentence, code = describe_error(error)
            end(sentence, code)
        finally:
            sys.unraisablehook = before

    return wrapped


def _unraised(what: Any) -> None:
    """Ctrl-C in a place from which Python lets no error out, as in the callbacks of its collector: Python would print
    a traceback and go on."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(what)


def end(sentence: str, code: int) -> None:
    print(f"backstream: {visible(sentence)}", file=sys.stderr)
    raise typer.Exit(code)


def silence_stdout() -> None:
    """After its reader has closed it: Python would report that again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe_error(error: Exception) -> tuple[str, int]:
    """An error as a sentence, and its exit code."""
    from backstream.errors import InputError, RunError

    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text, USAGE
    if isinstance(error, RunError):
        return text, FAILURE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'A file'} cannot be used: {error.strerror}.", FAILURE
    return f"{type(error).__name__}: {text} (Add --debug for the traceback.)", FAILURE


class Stop:
    """Ctrl-C, the signal that asks a process to end, and that of a terminal that is closed: noticed at once, handled
    between two pieces of work."""

    def __init__(self):
        self.signal = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, self._hear)

    def requested(self) -> bool:
        return self.signal != 0

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal:  # a second time: at once
            raise KeyboardInterrupt
        self.signal = number
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, b"\nStopping after the current rows. Press Ctrl-C again to stop at once.\n")

    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0
