"""Killed, damaged, out of space: a stream that is resumed ends with the bytes of one that was never stopped.

    python -m tests.soak.crashes

The command line in a process of its own is killed (kill -9) at random moments and resumed; before some of the resumes
the newest checkpoint is damaged at a random byte, or cut off there. Another run is given a disk that is too small, and
more room later; a third has its directory made read-only, and writable again later. Results, metrics and the state of
the learner must equal those of an uninterrupted run, byte for byte.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backstream.runs.atomic_files import INCOMING
from backstream.runs.checkpoints import Checkpoints
from benchmarks.harness import Results, console

RESULTS = Path(__file__).parent / "results" / "crashes.json"
SETTINGS = {"rows": 2000, "kills": 50, "damage_every": 5, "seed": 0}
LEARNING = ("--set", "dim=1", "--lag", "4", "--trajectories", "2", "--width", "4", "--monitor-every", "20")
EVERY = 30
SECONDS = 600
"""What no single command may take."""


class Stream:
    """A source, and runs that read it with the same settings."""

    def __init__(self, folder: Path, rows: int, environment: Mapping[str, str] = os.environ):
        self.folder, self.rows, self.source = folder, rows, folder / "obs.csv"
        self.environment = {**environment, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        self.environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "programs"))
        rng = np.random.default_rng(0)
        ys = np.sin(np.arange(rows) / 20) + 0.1 * rng.normal(size=rows)
        cells = ["" if i % 37 == 5 else f"{y:.6f}" for i, y in enumerate(ys)]
        self.source.write_text("y\n" + "".join(f"{cell}\n" for cell in cells))

    def command(self, path: Path) -> list[str]:
        start = [sys.executable, "-c", "from backstream.cli import main; main()"]
        options = *LEARNING, "--checkpoint-every", str(EVERY), "--out", str(path), "--resume", "--print"
        return [*start, "stream", "chaotic-rnn", str(self.source), *options]

    def finish(self, path: Path, *before: str) -> tuple[int, str]:
        """Reads to the end, if it can; the exit code and what was said on stderr."""
        command = [*before, *self.command(path)]
        ended = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=SECONDS)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.returncode, ended.stderr

    def kill(self, path: Path, row: int, wait: float) -> str:
        """Reads until a row has come out and for so many seconds longer, then kill -9. What was said on stderr."""
        pipe = subprocess.PIPE
        with subprocess.Popen(self.command(path), stdout=pipe, stderr=pipe, env=self.environment) as process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                if json.loads(line)["row"] >= row:
                    time.sleep(wait)
                    break
            process.kill()
            said = process.stderr.read().decode()
        assert "Traceback" not in said, said
        return said


def contents(path: Path) -> dict[str, Any]:
    """All that runs must have in common: names and bytes, and the digest of the learner's state."""
    files = [path / "config.toml", path / "metrics.jsonl", *sorted((path / "filtered").iterdir())]
    checkpoints = Checkpoints(path / "checkpoints")
    about = checkpoints.about(checkpoints.positions()[-1])
    return {file.name: file.read_bytes() for file in files} | {"state": (about.position, about.digest)}


def committed(path: Path) -> int:
    return max([0, *Checkpoints(path / "checkpoints").positions()])


def caught(path: Path) -> str:
    """What a killed process was in the middle of, as far as the disk tells."""
    if any(path.rglob(INCOMING + "*")):
        return "while a file or a checkpoint was being written"
    parts = [int(part.stem) for part in (path / "filtered").glob("*.parquet")]
    if parts and max(parts) >= committed(path):
        return "after results, before the checkpoint that makes them count"
    return "while reading and learning"


def damage(path: Path, rng: np.random.Generator) -> str:
    """Flips a bit of the newest checkpoint, or cuts a file of it off, at a random byte."""
    newest = Checkpoints(path / "checkpoints").path(committed(path))
    file = rng.choice(sorted(file for file in newest.rglob("*") if file.is_file() and file.stat().st_size))
    content = bytearray(file.read_bytes())
    place = int(rng.integers(len(content)))
    if rng.random() < 0.5:
        content[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        return str(newest)
    file.write_bytes(content[:place])
    return str(newest)


def killed(stream: Stream, kills: int, damage_every: int, seed: int) -> dict[str, Any]:
    """A run killed so often, against one that was not."""
    rng, path, whole = np.random.default_rng(seed), stream.folder / "killed", stream.folder / "whole"
    if not whole.exists():
        assert stream.finish(whole)[0] == 0
    moments: dict[str, int] = {}
    damaged, named = 0, 0
    expected = None
    for count in range(1, kills + 1):
        row = min(committed(path) + int(rng.integers(2 * EVERY)), stream.rows - 2 * EVERY)
        said = stream.kill(path, row, wait=float(rng.uniform(0, 0.08)))
        if expected is not None:
            damaged, named = damaged + 1, named + (f"{expected} is damaged" in said and "before it is used" in said)
            expected = None
        moment = caught(path)
        moments[moment] = moments.get(moment, 0) + 1
        if damage_every and count % damage_every == 0 and len(Checkpoints(path / "checkpoints").positions()) > 1:
            expected = damage(path, rng)
        console.print(f"kill {count}: row {row}, {moment}; {committed(path)} rows saved", style="dim")
    code, said = stream.finish(path)
    if expected is not None:
        damaged, named = damaged + 1, named + (f"{expected} is damaged" in said and "before it is used" in said)
    return {
        "rows": stream.rows,
        "kills": kills,
        "moments": moments,
        "damaged_checkpoints": damaged,
        "refused_by_name": named,
        "exit_code": code,
        "same_bytes": contents(path) == contents(whole),
    }


SMALL_DISK = """
set -e
mount -t tmpfs -o size=$1 tmpfs "$2"
shift
place=$1; shift
set +e
"$@"; echo "exit $?"
mount -o remount,size=64m "$place"
"$@"; echo "exit $?"
cp -r "$place/run" "$place.after"
"""


READ_ONLY = """
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
shift
set +e
"$@"; echo "exit $?"
"""


INSIDE = ["unshare", "--user", "--map-root-user", "--mount"]
"""Where a process may mount what nobody else sees."""


def _inside(stream: Stream, script: str, *arguments: str) -> tuple[list[int], list[str]] | None:
    """Runs a script that mounts something: the exit codes that it prints, and what the command said that it could not
    write. None where nothing can be mounted."""
    if shutil.which("unshare") is None or subprocess.run([*INSIDE, "true"], capture_output=True).returncode:
        return None
    command = [*INSIDE, "bash", "-c", script, "bash", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=stream.environment, timeout=SECONDS)
    if "mount:" in ended.stderr:
        return None
    assert "Traceback" not in ended.stderr, ended.stderr
    sentences = [line for line in ended.stderr.splitlines() if "could not be written" in line]
    codes = [int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("exit ")]
    return codes, [sentence.replace(str(stream.folder), "…") for sentence in sentences]


def read_only(stream: Stream, seed: int) -> dict[str, Any] | None:
    """A run that is killed, resumed while its directory is read-only, and resumed when it is not. None where nothing
    can be mounted."""
    path, whole = stream.folder / "readonly", stream.folder / "whole"
    if not whole.exists():
        assert stream.finish(whole)[0] == 0
    stream.kill(path, int(np.random.default_rng(seed).integers(EVERY, stream.rows - EVERY)), 0.0)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found = _inside(stream, READ_ONLY, str(path), *stream.command(path))
    if found is None:
        return None
    untouched = before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    code, said = stream.finish(path)
    assert code == 0, said
    return {
        "exit_codes": [*found[0], code],
        "sentences": found[1],
        "untouched": untouched,
        "same_bytes": contents(path) == contents(whole),
    }


def full_disk(stream: Stream, kilobytes: int) -> dict[str, Any] | None:
    """A run on a disk of so many kB, then, with more room, the rest of it. None where no disk can be mounted."""
    whole, place = stream.folder / "whole", stream.folder / f"disk{kilobytes}"
    if not whole.exists():
        assert stream.finish(whole)[0] == 0
    place.mkdir()
    found = _inside(stream, SMALL_DISK, f"{kilobytes}k", str(place), *stream.command(place / "run"))
    if found is None:
        return None
    after = place.with_name(place.name + ".after")
    return {
        "kilobytes": kilobytes,
        "exit_codes": found[0],
        "sentences": found[1],
        "same_bytes": contents(after) == contents(whole),
    }


def main() -> None:
    results = Results(RESULTS, "python -m tests.soak.crashes", SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(Path(folder), SETTINGS["rows"])
        kills = {name: SETTINGS[name] for name in ("kills", "damage_every", "seed")}
        console.print(results.run("killed", lambda: killed(stream, **kills)))
        for kilobytes in (20, 100, 200):
            found = results.run(f"disk of {kilobytes} kB", lambda size=kilobytes: full_disk(stream, size))
            console.print(found or "Skipped: this machine lets nobody mount a small disk.")
        found = results.run("read-only directory", lambda: read_only(stream, SETTINGS["seed"]))
        console.print(found or "Skipped: this machine lets nobody mount a directory.")


if __name__ == "__main__":
    main()
