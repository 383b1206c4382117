"""Several processes that work on one run, on one machine or on many, by JAX's own distributed runtime.

Every process runs the same command on the same source, keeps the streams that live on its devices, and agrees with the
others at every piece. The first writes the results; checkpoints are written and read by all.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from jax.sharding import Mesh

from backstream.learning import Report
from backstream.learning.mesh import PARTICLES, STREAMS

from .checkpoints import Checkpoint, Checkpoints
from .config import Config
from .errors import InputError
from .runs import CHECKPOINTS, of_run


def join(coordinator: str | None, count: int | None, index: int | None, timeout: int, lost: str) -> Callable[[], None]:
    """Waits until all processes are there; returns what to call before they part. What is None is found out from the
    environment, as JAX does it. `lost` is what to say if the first of them goes away in between."""
    later = timeout + 60  # JAX would end the process without a word that helps
    relay = Relay(coordinator, lost) if coordinator is not None and index else None
    late = f"Not all of the {count} processes were at {coordinator} within {timeout} s: start them at the same time."
    watchdog = Watchdog(timeout, late, code=2)
    watchdog.feed()
    try:
        jax.distributed.initialize(
            coordinator if relay is None else relay.address,
            count,
            index,
            initialization_timeout=later,
            heartbeat_timeout_seconds=later,
            shutdown_timeout_seconds=later,
            coordinator_bind_address=coordinator,
        )
    except (ValueError, TypeError) as error:
        raise InputError(
            "--hosts needs to know the others: give --coordinator HOST:PORT, --process-count and --process-index, or "
            f"run under a launcher that JAX knows. ({error})"
        ) from None
    except RuntimeError as error:
        raise InputError(f"The processes at {coordinator} could not be joined: {_first_line(error)}") from None
    finally:
        watchdog.rest()
    if relay is None:
        return lambda: None
    relay.watch()
    return relay.rest


class Relay:
    """The way to the first process, which coordinates the others, by a port of this one.

    When the first is killed JAX aborts the others, with a stack trace. Here its end is heard before JAX hears of it.
    """

    def __init__(self, coordinator: str, lost: str):
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"--coordinator takes HOST:PORT, not {coordinator!r}.")
        self._there, self._lost, self._watching = (host.strip("[]"), int(port)), lost, False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def watch(self) -> None:
        self._watching = True

    def rest(self) -> None:
        self._watching = False

    def _serve(self) -> None:
        while True:
            near, _ = self._server.accept()
            try:
                far = socket.create_connection(self._there)
            except OSError:  # it is not there yet: JAX will try again
                near.close()
                continue
            for way in ((near, far), (far, near)):
                way[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(*way, way[0] is far), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_far: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        if is_far and self._watching:
            leave(self._lost)
        for end in (source, target):
            end.close()


def build_mesh(particle_devices: int = 1) -> Mesh:
    """All devices of all hosts: `particle_devices` of them for one stream, the streams over the rest."""
    devices = jax.devices()
    if particle_devices < 1 or len(devices) % particle_devices:
        raise InputError(
            f"{len(devices)} devices cannot be divided into groups of {particle_devices}: --particle-devices must "
            "divide their number."
        )
    return Mesh(np.asarray(devices).reshape(-1, particle_devices), (STREAMS, PARTICLES))


def check_agreement(config: Config) -> None:
    """Raises InputError where another process was started with other settings."""
    from hashlib import sha256

    from jax.experimental import multihost_utils

    mine = np.frombuffer(sha256(config.text().encode()).digest(), np.uint8)
    everyone = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, len(mine))
    for index, other in enumerate(everyone):
        if (other != everyone[0]).any():
            raise InputError(f"Process {index} was started with other settings than process 0: give all the same.")


def agreed(asked: Callable[[], bool]) -> Callable[[], bool]:
    """Whether any process was asked to stop: the same answer in all of them, who must all ask."""

    def any_asked() -> bool:
        from jax.experimental import multihost_utils

        return bool(np.asarray(multihost_utils.process_allgather(np.asarray(asked()))).any())

    return any_asked


class Assistant:
    """What the other processes have in place of a `RunWriter`: they help to write and read checkpoints."""

    def __init__(self, path: Path, config: Config):
        self.path, self._config = path, config
        self._checkpoints = Checkpoints(path / CHECKPOINTS, config.saving.keep)

    def resume(self, like: Callable[[dict[str, Any]], Any], warn: Callable[[str], None]) -> Checkpoint | None:
        return self._checkpoints.newest(of_run(self.path, self._config, like), warn)

    def add(self, rows: pa.Table, reports: list[Report]) -> None:
        """The first process writes the results."""

    def commit(self, position: int, tree: Any, record: dict[str, Any]) -> None:
        self._checkpoints.save(position, tree, record)

    def close(self) -> None:
        """There is nothing to close."""


class Watchdog:
    """Ends this process when it has waited too long for another: nothing else would.

    A host that is killed breaks its connections, which is heard at once; one that loses its power does not.
    """

    def __init__(self, seconds: float, reason: str, code: int = 1):
        self._seconds, self._reason, self._code, self._timer = seconds, reason, code, None

    def feed(self) -> None:
        """There is progress: the time starts anew."""
        self.rest()
        self._timer = threading.Timer(self._seconds, leave, (self._reason, self._code))
        self._timer.daemon = True
        self._timer.start()

    def rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def is_lost(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is that of a connection to another process."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def leave(reason: str, code: int = 1) -> None:
    """Ends at once: at an ordinary end JAX would wait for processes that may be gone."""
    sys.stdout.flush()
    sys.stderr.write(f"backstream: {reason}\n")
    sys.stderr.flush()
    os._exit(code)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
