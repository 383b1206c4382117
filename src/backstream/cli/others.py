"""The other processes of a run on several hosts, as one of them sees them."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from .failures import told

LINGER = 1.0
"""Seconds that the first process stays after the others have gone."""
SAVED = "What was saved up to the last checkpoint can be continued with --resume."
GONE = f"Another host went away, or cannot be reached. {SAVED}"


@dataclass
class Others:
    """What the command line says of them. Without --hosts there are none, and everything is as it would be alone."""

    wanted: bool
    coordinator: str | None
    count: int | None
    index: int | None
    timeout: int
    particle_devices: int
    _watchdog: Any = field(default=None, init=False)

    def check(self, source: str, key: str | None, follow: bool) -> None:
        """Raises InputError for what several processes cannot do."""
        from backstream.io.errors import InputError

        if self.particle_devices > 1 and key is None:
            raise InputError("--particle-devices needs --key: one large stream is a fleet of one.")
        if not self.wanted:
            return
        if key is None:
            raise InputError("--hosts divides streams over processes: name the column of the stream with --key.")
        if source == "-" or follow:
            raise InputError("With --hosts every process reads the same file: it cannot be standard input or --follow.")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Joins the others for a while. An error here ends this process at once, and them soon after."""
        if not self.wanted:
            yield
            return
        from backstream.io import checkpoints, hosts

        # What the collectives have to say about themselves goes to stdout, where results are expected.
        sys.stdout.flush()
        sys.stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        try:
            part = hosts.join(self.coordinator, self.count, self.index, self.timeout, GONE)
            self._watchdog = hosts.Watchdog(self.timeout, f"No answer from another host for {self.timeout} s. {SAVED}")
            self.progress()
            yield
            checkpoints.wait_for_all("the end")
            part()
            self._watchdog.rest()
        except Exception as error:
            if hosts.is_lost(error):
                hosts.leave(GONE)
            sentence, code = told(error)
            sys.stdout.flush()
            print(f"backstream: {sentence}", file=sys.stderr, flush=True)
            os._exit(code)

    def end(self, code: int) -> None:
        """Ends the command. Among several processes the first goes last, and none by way of JAX's own shutdown: whoever
        finds the first gone before its farewell was answered would be aborted."""
        if not self.wanted:
            if code:
                raise typer.Exit(code)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self.is_first():
            time.sleep(LINGER)
        os._exit(code)

    def progress(self) -> None:
        """Has been made."""
        if self._watchdog is not None:
            self._watchdog.feed()

    def is_first(self) -> bool:
        if not self.wanted:
            return True
        import jax

        return jax.process_index() == 0

    def first(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """What is said once, and not by everyone."""
        return say if self.is_first() else lambda sentence: None

    def mesh(self) -> Any:
        from backstream.io.hosts import build_mesh

        return build_mesh(self.particle_devices)

    def agree(self, config: Any, stopped: Callable[[], bool]) -> Callable[[], bool]:
        """Makes sure that all have the same settings; whether to stop is then asked of all."""
        if not self.wanted:
            return stopped
        from backstream.io.hosts import agreed, check_agreement

        check_agreement(config)
        return agreed(stopped)

    def writer(self, path: Path, config: Any) -> Any:
        from backstream.io.hosts import Assistant
        from backstream.io.runs import RunWriter

        return RunWriter(path, config) if self.is_first() else Assistant(path, config)

    @staticmethod
    def never() -> bool:
        return False
