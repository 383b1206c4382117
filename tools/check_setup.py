"""Installs Backstream in each way that a user can, on every Python of this machine: make test-setup

- From the lock, by `tools/install.py`, with pip and with uv, on each Python; one that is too old has to say so.
- From the built wheel with `all`, with the newest and with the lowest versions that pyproject.toml allows; then a
  short stream.
- From the built wheel without extras: the library learns in memory, and the command says what to install.

A check is not repeated while what it depends on is unchanged since it passed. That is noted in `backstream/setup` in
the user's cache folder; remove it to repeat everything. The package index must be reachable.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.install import NO_VENV, OLD_PYTHON, OLDEST, dotted
from tools.pythons import Python, find_pythons

ROOT = Path(__file__).parents[1]
LOCK, PYPROJECT, INSTALLER = ROOT / "requirements.lock", ROOT / "pyproject.toml", ROOT / "tools" / "install.py"
VERSION = ROOT / "src" / "backstream" / "_version.py"
SOURCES = [PYPROJECT, *sorted(ROOT.glob("src/**/*.py"))]
PASSED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backstream" / "setup"
UV = Path(sys.executable).with_name("uv")
SECONDS = 1200
"""What no single command may take."""
ROWS = 200
BARE = """
import jax, backstream as bs
model = bs.LinearGaussian.random(1, 1, key=jax.random.key(0))
ys = model.simulate(50, key=jax.random.key(1))[1]
result = bs.learn(model, ys)
assert result.filtered.mean.shape == result.smooth(ys).mean.shape == (50, 1)
assert result.forecast(3).states.mean.shape == (3, 1)
"""


class CheckError(Exception):
    """A check has failed."""


class Check(NamedTuple):
    name: str
    run: Callable[[Path], None]
    """Takes an empty folder to work in."""
    inputs: list[Path | str]
    """What it depends on."""

    def key(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes())
        for item in self.inputs:
            digest.update(item.read_bytes() if isinstance(item, Path) else item.encode())
        return digest.hexdigest()


def main() -> int:
    try:
        return 0 if all([passes(check) for check in checks(find_pythons())]) else 1
    except CheckError as error:
        print(error, file=sys.stderr)
        return 1


def passes(check: Check) -> bool:
    key, note = check.key(), PASSED / check.name.replace(" ", "-")
    if note.exists() and note.read_text() == key:
        print(f"{check.name}: unchanged since it passed")
        return True
    print(f"{check.name} ... ", end="", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backstream-setup-") as folder:
        try:
            check.run(Path(folder))
        except CheckError as error:
            print(f"failed after {time.monotonic() - start:.0f} s\n{error}", flush=True)
            return False
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(key)
    return True


def checks(pythons: list[Python]) -> Iterator[Check]:
    able = [python for python in pythons if python.version >= OLDEST and python.pip]
    for python in pythons:
        own = [INSTALLER, str(python), python.pip]
        if python.version < OLDEST:
            sentence = OLD_PYTHON.split("{")[0]
            yield Check(f"{python} is too old", partial(refuses, python, sentence), own)
        elif not python.pip:
            sentence = NO_VENV.split(":")[0]
            yield Check(f"{python} has no venv", partial(refuses, python, sentence), own)
        else:
            lock = [*own, LOCK, PYPROJECT]
            yield Check(f"{python} lock with pip {python.pip}", partial(locked, python, "pip"), lock)
            yield Check(f"{python} lock with uv", partial(locked, python, "uv"), [*lock, *SOURCES])

    for python, resolution, install in ((able[-1], "highest", newest), (able[0], "lowest-direct", lowest)):
        chosen = [str(python), python.pip, resolved(python, resolution), *SOURCES]
        name = f"{python} wheel with the {install.__name__} versions"
        yield Check(name, partial(installed_wheel, python, install), chosen)
    yield Check(f"{able[-1]} wheel without extras", partial(bare_wheel, able[-1]), [str(able[-1]), *SOURCES])


def bare_wheel(python: Python, folder: Path) -> None:
    """Without extras the library can learn, filter and forecast in memory; what needs more says what to install."""
    run(UV, "build", "--wheel", "--python", sys.executable, "--out-dir", folder / "dist", ROOT)
    [wheel] = (folder / "dist").glob("*.whl")
    environment = folder / "environment"
    run(python.executable, "-m", "venv", environment)
    run(environment / "bin" / "python", "-I", "-m", "pip", "install", wheel)
    run(environment / "bin" / "python", "-I", "-c", BARE)
    ended = subprocess.run([environment / "bin" / "backstream"], capture_output=True, text=True, timeout=SECONDS)
    if ended.returncode != 2 or "pip install 'backstream[cli]'" not in ended.stderr:
        raise CheckError(f"Exit code {ended.returncode}, and not what to install: {ended.stderr}")


def refuses(python: Python, sentence: str, folder: Path) -> None:
    """The set-up ends with the sentence."""
    command = [str(python.executable), str(INSTALLER), str(folder / "environment")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    *_, last = ["", *ended.stderr.splitlines()]
    if ended.returncode != 1 or not last.startswith(sentence):
        raise CheckError(f"Exit code {ended.returncode}, and not the sentence: {ended.stdout}{ended.stderr}")


def locked(python: Python, tool: str, folder: Path, root: Path = ROOT) -> None:
    """What `make` installs, with pip or with uv, is complete and can be used."""
    environment = folder / "environment"
    path = [place for place in os.get_exec_path() if not (Path(place) / "uv").exists()]
    path = os.pathsep.join([str(UV.parent), *path] if tool == "uv" else path)
    printed = run(python.executable, root / "tools" / "install.py", environment, PATH=path)
    if not re.search(rf"with {tool} \.\.\. \d+ s\n", printed):
        raise CheckError(f"{tool} was not used:\n{printed}")
    run(environment / "bin" / "python", "-I", "-m", "pip", "check")
    can_be_used(environment)


def installed_wheel(python: Python, install: Callable[[Python, Path, Path], None], folder: Path) -> None:
    """The built wheel in an empty environment can be used, and learns from a short stream."""
    run(UV, "build", "--python", sys.executable, "--out-dir", folder / "dist", ROOT)
    [wheel] = (folder / "dist").glob("*.whl")
    environment = folder / "environment"
    install(python, environment, wheel)
    can_be_used(environment)
    short_stream(environment / "bin" / "backstream", folder)


def newest(python: Python, environment: Path, wheel: Path) -> None:
    run(python.executable, "-m", "venv", environment)
    run(environment / "bin" / "python", "-I", "-m", "pip", "install", f"{wheel}[all]")


def lowest(python: Python, environment: Path, wheel: Path) -> None:
    """For uv the wheel is the direct requirement, what it needs is not: so that is listed first, from its source."""
    run(UV, "venv", "--python", python.executable, environment)
    listed = environment / "lowest.txt"
    listed.write_text(resolved(python, "lowest-direct"))
    options = ["--python", environment / "bin" / "python", "--compile-bytecode"]
    run(UV, "pip", "install", *options, "--requirement", listed)
    run(UV, "pip", "install", *options, "--no-deps", wheel)


def resolved(python: Python, resolution: str) -> str:
    """The versions that are taken today for pyproject.toml."""
    options = ["--python-version", dotted(python.version), "--resolution", resolution, "--no-header", "--quiet"]
    return run(UV, "pip", "compile", PYPROJECT, "--extra", "all", *options)


def can_be_used(environment: Path) -> None:
    run(environment / "bin" / "python", "-I", "-c", "from backstream import *")
    version = run(environment / "bin" / "backstream", "--version").strip()
    expected = "backstream {}".format(*re.findall(r'__version__ = "(.+)"', VERSION.read_text()))
    if version != expected:
        raise CheckError(f"{version!r} is not {expected!r}.")


def short_stream(backstream: Path, folder: Path) -> None:
    run(backstream, "simulate", "chaotic-rnn", "-n", ROWS, "--set", "dim=2", "-o", "rows.csv", cwd=folder)
    printed = run(backstream, "stream", "chaotic-rnn", "rows.csv", "--set", "dim=2", "--out", "run", cwd=folder)
    if printed.count("\n") != ROWS:
        raise CheckError(f"{ROWS} rows give {ROWS} lines, not these:\n{printed}")
    run(backstream, "smooth", "run", "rows.csv", cwd=folder)
    run(backstream, "plot", "run", "-o", "picture.png", cwd=folder)
    if not (folder / "picture.png").exists():
        raise CheckError("There is no picture.")


def run(*command: object, cwd: Path | None = None, **variables: str) -> str:
    """What a command prints.

    Raises:
        CheckError: if it fails.
    """
    words = [str(word) for word in command]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(
        words,
        cwd=cwd,
        env={**clean, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if ended.returncode:
        raise CheckError(f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
