"""The installed command, run as a user would: another process, real files and pipes, and never for ever."""

import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np

BACKSTREAM = str(Path(sys.executable).with_name("backstream"))
MODEL = ("chaotic-rnn", "--set", "dim=1")
SMALL = ("--lag", "4", "--trajectories", "2", "--width", "4", "--monitor-every", "20", "--checkpoint-every", "30")
SECONDS = 240
"""What no single command may take."""


def environment():
    """Compiled programs are shared by all tests, and kept for the next time."""
    cache = Path(__file__).parents[1] / ".pytest_cache" / "jax"
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "COLUMNS": "200",
    }


def run(*arguments, check=0, before=(), **options):
    """A command's output, once it has ended with the exit code that was expected."""
    ended = subprocess.run(
        [*before, BACKSTREAM, *map(str, arguments)],
        capture_output="stdout" not in options,
        stderr=subprocess.PIPE if "stdout" in options else None,
        text=True,
        timeout=SECONDS,
        env=environment(),
        check=False,
        **options,
    )
    assert ended.returncode == check, (ended.returncode, ended.stdout, ended.stderr)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


class Ended(NamedTuple):
    """What a command has said."""

    stdout: str
    stderr: str


def here(*arguments, check=0, stdout=None):
    """The same in this process, where everything is imported and most programs are compiled: for what does not depend
    on a process of its own. Standard input is not at hand."""
    from backstream.cli import app

    out, err, code = io.StringIO(), io.StringIO(), 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    precise = jax.config.jax_enable_x64
    with (
        mock.patch.dict(os.environ, environment()),
        contextlib.redirect_stdout(stdout or out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        finally:
            jax.config.update("jax_enable_x64", precise)
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert code == check, (code, out.getvalue(), err.getvalue())
    return Ended(out.getvalue(), err.getvalue())


class Running:
    """A command under way, with pipes at both ends."""

    def __init__(self, *arguments):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [BACKSTREAM, *map(str, arguments)], stdin=pipe, stdout=pipe, stderr=pipe, env=environment()
        )
        self._unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def feed(self, text):
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def line(self, seconds=SECONDS):
        """The next line of stdout; None if none comes in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._unread:
            wait = end - time.monotonic()
            if wait <= 0 or not select.select([self.process.stdout], [], [], wait)[0]:
                return None
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, ("stdout ended", self.process.communicate(timeout=SECONDS))
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def end(self, check):
        """What was said on stderr, once the command has ended."""
        _, stderr = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == check, (self.process.returncode, stderr.decode())
        assert b"Traceback" not in stderr, stderr.decode()
        return stderr.decode()


def csv_lines(n, seed=0):
    """A header, then a slow wave in noise, with a few empty cells; each with its newline."""
    rng = np.random.default_rng(seed)
    ys = np.sin(np.arange(n) / 20) + 0.1 * rng.normal(size=n)
    rows = ["" if i % 37 == 5 else f"{y:.6f}" for i, y in enumerate(ys)]
    return ["at,y\n"] + [f"2024-01-01T00:{i // 60:02d}:{i % 60:02d},{row}\n" for i, row in enumerate(rows)]


def contents(path):
    """All that a run must have in common with one that was never stopped: name and bytes."""
    files = [path / "config.toml", path / "metrics.jsonl", *sorted((path / "filtered").iterdir())]
    return {file.name: file.read_bytes() for file in files}
