"""Which small errors the tests notice: `make mutants`, or `python -m tools.mutants NAME ...` for some of them.

Each mutant is one error in `estimators/`, `families/` or `learning/` that changes results. It is made in a copy of the
package, and the tests that should notice are run against it: it is killed where they fail. Every one must have tests
that pass without it. `--out FILE` writes what is found as it goes, and goes on with a file that is there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tools.mutants import estimators, families, learning
from tools.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
SECONDS = 900
"""After which a mutant counts as killed: it made the tests hang."""
LEAST = 0.9
"""The share that must be killed."""
MUTANTS = (*estimators.MUTANTS, *families.MUTANTS, *learning.MUTANTS)


def fail(source: Path, tests: tuple[str, ...]) -> bool:
    """Whether some of the tests fail with the package in a folder."""
    paths = os.pathsep.join([str(source), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "NPROC": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    if ended.returncode not in (0, 1):
        raise SystemExit(f"The tests {', '.join(tests)} could not be run: {ended.stdout.decode()[-2000:]}")
    return ended.returncode == 1


def is_killed(source: Path, mutant: Mutant) -> bool:
    file = source / "backstream" / mutant.file
    text = file.read_text()
    try:
        file.write_text(text.replace(mutant.before, mutant.after))
        return fail(source, mutant.tests)
    finally:
        file.write_text(text)


def check_texts(mutants: list[Mutant]) -> None:
    for mutant in mutants:
        if (ROOT / "src" / "backstream" / mutant.file).read_text().count(mutant.before) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.before!r} is not once in {mutant.file}.")


def run(mutants: list[Mutant], asked: argparse.Namespace, found: dict[str, bool]) -> None:
    """Adds whether each is killed to what was found. Every worker has a copy of the package of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for i in range(asked.workers):
            copies.put(Path(shutil.copytree(ROOT / "src", Path(folder) / str(i))))

        def one(mutant: Mutant) -> None:
            source = copies.get()
            try:
                found[mutant.name] = is_killed(source, mutant)
            finally:
                copies.put(source)
            print(f"{'killed  ' if found[mutant.name] else 'SURVIVED'} {mutant.name}", flush=True)
            if asked.out is not None:
                asked.out.write_text(json.dumps(summary(found), indent=1, ensure_ascii=False) + "\n")

        if not asked.without_control:
            source = copies.get()
            if fail(source, tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))):
                raise SystemExit("Some of the tests fail without any mutant, or take too long.")
            copies.put(source)
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(one, mutants))


def summary(killed: dict[str, bool]) -> dict[str, object]:
    """As plain JSON, of those that were tried."""
    mutants = [mutant for mutant in MUTANTS if mutant.name in killed]
    parts = Counter(mutant.file.split("/")[0] for mutant in mutants)
    noticed = Counter(mutant.file.split("/")[0] for mutant in mutants if killed[mutant.name])
    return {
        "command": "make mutants",
        "mutants": len(mutants),
        "killed": sum(killed.values()),
        "by_part": {part: {"mutants": count, "killed": noticed[part]} for part, count in parts.items()},
        "survivors": {mutant.name: mutant.excuse for mutant in mutants if not killed[mutant.name]},
        "not_run": [mutant.name for mutant in MUTANTS if mutant.name not in killed],
        "found": {mutant.name: killed[mutant.name] for mutant in mutants},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="Of mutants. Default: all.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="Where to write. Default: nowhere.")
    parser.add_argument("--without-control", action="store_true", help="Where the tests are known to pass.")
    asked = parser.parse_args()
    killed: dict[str, bool] = {}
    if asked.out is not None and asked.out.exists():
        killed = json.loads(asked.out.read_text())["found"]
    wanted = [mutant for name in asked.names for mutant in MUTANTS if mutant.name == name] or list(MUTANTS)
    check_texts(wanted)
    run([mutant for mutant in wanted if mutant.name not in killed], asked, killed)
    print(f"{sum(killed.values())} of {len(killed)} killed: {sum(killed.values()) / len(killed):.0%}")
    if sum(killed.values()) < LEAST * len(killed):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
