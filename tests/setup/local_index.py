"""A package index in a folder, with wheels that hold nothing, for tests of the set-up without a network."""

import hashlib
import zipfile
from pathlib import Path

BACKEND = """\
import shutil

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copy("{wheel}", wheel_directory)
    return "{name}"
"""


class LocalIndex:
    """Packages to choose from, and projects with a lock that choose among them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.wheels: dict[str, Path] = {}

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def add(self, name: str, version: str, *metadata: str) -> None:
        """Publishes a release. `metadata` are further lines, such as "Requires-Dist: other"."""
        path = write_wheel(self.folder / name, name, version, *metadata)
        self.wheels[f"{name}=={version}"] = path
        links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in sorted(path.parent.glob("*.whl")))
        (path.parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")

    def project(self, root: Path, *locked: str) -> Path:
        """A project whose lock lists these releases with their hashes; one that is not in the index gets another's."""
        root.mkdir()
        lines = (f"{release} --hash=sha256:{self._hash(release)}\n" for release in locked)
        (root / "requirements.lock").write_text("".join(lines))
        wheel = write_wheel(root, "project", "1.0")
        (root / "backend.py").write_text(BACKEND.format(wheel=wheel, name=wheel.name))
        (root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        return root

    def _hash(self, release: str) -> str:
        wheel = self.wheels.get(release)
        return hashlib.sha256(wheel.read_bytes() if wheel else b"").hexdigest()


def write_wheel(folder: Path, name: str, version: str, *metadata: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        "METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata, ""]),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{name}-{version}.dist-info/{file}", text)
    return path
