"""Makes an environment and installs Backstream with what requirements.lock pins: python3 tools/install.py .venv

The lock is a complete list. It is installed as one (`--no-deps`), so nothing is resolved and no new release of a
package can break it; `pip check` then confirms that nothing is missing. uv is used where it is found, because it is
faster; the result is the same.

This file uses only the standard library and the syntax of Python 3.6: an older Python gets a sentence, not a traceback.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
LEAST_FREE = 20_000_000
"""Bytes. Where less is free, a full disk is the cause, even if the message about it was lost."""

OLD_PYTHON = "Backstream needs Python {oldest} or newer and this is Python {version}: {another}."
FULL_DISK = "The disk is full: free 3 GB in {folder}, and some in {temporary} or set TMPDIR, then run make again."
NO_VENV = (
    "This Python cannot make environments: install the missing module, on Debian and Ubuntu with "
    "`apt install python{minor}-venv`, or {another}."
)
NO_NETWORK = (
    "The package index cannot be reached: check the network, the proxy, and the index in `pip config list`, "
    "then run make again."
)
NO_WHEEL = "The package index has no wheel of a locked package for Python {version} on this machine: {another}."
ANOTHER = "choose another Python, for example with `make demo PYTHON=python3.12`"

CAUSES = (
    (FULL_DISK, ("No space left on device", "Disk quota exceeded", "No usable temporary directory")),
    (NO_VENV, ("No module named venv", "ensurepip")),
    (NO_NETWORK, ("NewConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "Max retries exceeded")),
    (NO_WHEEL, ("No matching distribution found",)),
)
"""What to do, and which words of a failed command call for it. The first that applies is taken."""


class SetupError(Exception):
    """A stage has failed. `known` says whether its message names the cause and what to do about it."""

    def __init__(self, message: str, known: bool):
        super().__init__(message)
        self.known = known


def main(environment: Path, root: Path = ROOT) -> None:
    """An environment that works is kept. One that is missing, broken, too old or cannot be updated is made anew."""
    kept = works(environment)
    if not kept:
        make_environment(environment)
    try:
        install(environment, root)
    except SetupError as error:
        if error.known or not kept:
            raise
        make_environment(environment)
        install(environment, root)


def works(environment: Path) -> bool:
    """Whether the environment has pip and a Python that is new enough."""
    code = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    try:
        return subprocess.run([python(environment), "-I", "-c", code], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def make_environment(environment: Path) -> None:
    """Replaces what is there by an empty environment."""
    if sys.version_info < OLDEST:
        raise SetupError(filled(OLD_PYTHON, environment), known=True)
    command = [sys.executable, "-m", "venv", "--clear", str(environment)]
    stage(f"Making {environment} with Python {dotted(sys.version_info[:3])}", command, environment)


def install(environment: Path, root: Path) -> None:
    """Installs the lock and the project in `root`, and checks that nothing is missing."""
    pip = [python(environment), "-I", "-m", "pip", "--disable-pip-version-check"]
    install_lock(environment, pip, root / "requirements.lock")
    project = ["install", "--no-deps", "--no-build-isolation", "--editable", str(root)]
    stage("Installing backstream", [*pip, *project], environment)
    stage("Checking that nothing is missing", [*pip, "check"], environment)


def install_lock(environment: Path, pip: list, lock: Path) -> None:
    """Installs exactly what the lock lists, from wheels: nothing is resolved and nothing is built."""
    listed = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--python", python(environment), "--compile-bytecode", *listed]
        try:
            return stage("Installing the locked packages with uv", command, environment)
        except SetupError:
            pass  # It may be too old, or know less of the network than pip does.
    return stage("Installing the locked packages with pip", [*pip, "install", *listed], environment)


def stage(title: str, command: list, environment: Path) -> None:
    """Runs a command. One line says what it does and how long it took; its output is shown only if it fails."""
    print(f"{title} ... ", end="", flush=True)
    start = time.monotonic()
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = f"{time.monotonic() - start:.0f} s"
    if ended.returncode == 0:
        print(seconds)
        return
    print(f"failed after {seconds}", flush=True)
    output = ended.stdout.decode("utf-8", "replace")
    advice = what_to_do(output, environment)
    raise SetupError(advice or f"{output}\nThe set-up stopped at: {title}. The messages above say why.", bool(advice))


def what_to_do(output: str, environment: Path) -> str:
    """A sentence, or nothing if the cause is not known."""
    if shutil.disk_usage(str(environment.resolve().parent)).free < LEAST_FREE:
        return filled(FULL_DISK, environment)
    for advice, signs in CAUSES:
        for line in output.splitlines():
            if any(sign in line for sign in signs):
                return f"    {line.strip()}\n{filled(advice, environment)}"
    return ""


def filled(advice: str, environment: Path) -> str:
    return advice.format(
        oldest=dotted(OLDEST),
        version=dotted(sys.version_info[:3]),
        minor=dotted(sys.version_info[:2]),
        another=ANOTHER,
        folder=environment.resolve().parent,
        temporary=os.environ.get("TMPDIR", "/tmp"),
    )


def dotted(version: tuple) -> str:
    return ".".join(map(str, version))


def python(environment: Path) -> str:
    return str(environment / "bin" / "python")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
