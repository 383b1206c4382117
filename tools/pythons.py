"""The Pythons of this machine: those on PATH, those of pyenv, and the one that runs this."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DESCRIBE = """
import json, sys
try:
    import ensurepip, venv
    pip = ensurepip.version()
except ImportError:
    pip = ""
print(json.dumps([sys.version_info[:3], sys.executable, pip, sys.prefix == sys.base_prefix]))
"""


class Python(NamedTuple):
    """`pip` is the version that comes with it; empty if it cannot make environments."""

    version: tuple[int, ...]
    executable: Path
    pip: str

    def __str__(self) -> str:
        return "Python " + ".".join(map(str, self.version))


def find_pythons() -> list[Python]:
    """One Python of each version from 3.6 on, the oldest first; virtual environments are left out."""
    found: dict[tuple[int, ...], Python] = {}
    for candidate in _candidates():
        python = _describe(candidate)
        if python and python.version >= (3, 6):
            found.setdefault(python.version, python)
    return [found[version] for version in sorted(found)]


def _candidates() -> list[Path]:
    folders = [Path(sys.base_prefix) / "bin", *map(Path, os.get_exec_path())]
    try:
        root = subprocess.check_output(["pyenv", "root"], text=True).strip()
        folders += Path(root).glob("versions/*/bin")
    except (OSError, subprocess.CalledProcessError):
        pass  # no pyenv
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    return [file for file in files if re.fullmatch(r"python3(\.\d+)?", file.name)]


def _describe(candidate: Path) -> Python | None:
    """None for what does not run, such as pyenv's placeholder for a version that is not chosen."""
    try:
        printed = subprocess.check_output([candidate, "-I", "-c", DESCRIBE], stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    version, executable, pip, is_base = json.loads(printed)
    return Python(tuple(version), Path(executable), pip) if is_base else None
