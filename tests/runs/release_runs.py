"""Small runs of a release, which all later versions must be able to open.

    python -m tests.runs.release_runs

writes those of the present version, in place of the ones that are there. Do so while it is not released, whenever what
a checkpoint holds has changed; afterwards add a migration to `backstream.runs.formats` instead.
"""

import math
import shutil
from pathlib import Path

from backstream._version import __version__
from backstream.cli import app

FOLDER = Path(__file__).parent
ROWS = 24
COMMAND = ("stream", "stochastic-volatility", "obs.csv", "--columns", "y", "--time", "at")
SAVING = ("--monitor-every", "10", "--checkpoint-every", "20", "--keep", "1", "--no-print")
RUNS = {"single": (), "fleet": ("--key", "key")}


def main() -> None:
    folder = FOLDER / f"release_{__version__.replace('.', '_')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source = folder / "obs.csv"
    rows = [f"{i},{'ab'[i % 2]},{math.sin(i / 3):.3f}\n" for i in range(ROWS)]
    source.write_text("at,key,y\n" + "".join(rows))
    for name, more in RUNS.items():
        command = [str(source) if word == "obs.csv" else word for word in COMMAND]
        app([*command, *SAVING, *more, "--out", str(folder / name)], standalone_mode=False)
        (folder / name / "lock").unlink()


if __name__ == "__main__":
    main()
