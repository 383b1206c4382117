"""Everything that is read from outside, fed with what no program would have written.

    python -m tests.soak.fuzz_readers

100 000 cases: valid CSV, JSON Lines, Parquet, TOML, metrics and checkpoints, with bytes flipped, cut out, repeated,
swapped and put in. Each must end, within bounded time, in a result of the right shape or in an error of ours that names
the file.
"""

import io
import itertools
import json
import math
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstream.data.columns import Columns
from backstream.data.sources import open_source
from backstream.errors import InputError, RunError
from backstream.learning import Report, Settings
from backstream.runs.checkpoints import ABOUT, SUMS, Checkpoints, _sums
from backstream.runs.config import Config, merge, read_tables
from backstream.runs.logs import encode_report
from backstream.runs.store import METRICS, read_reports
from benchmarks.harness import Results, console

RESULTS = Path(__file__).parent / "results" / "fuzz_readers.json"
SETTINGS = {
    "csv": 40_000,
    "jsonl": 30_000,
    "toml": 20_000,
    "metrics": 5_000,
    "checkpoint": 4_000,
    "parquet": 1_000,
    "chunks": 10,
    "seed": 0,
}
SECONDS = 10
"""What no case may take."""
TOKENS = (
    *(b",", b"\n", b"\r\n", b'"', b"'", b"\x00", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b":", b"="),
    *(b"NaN", b"null", b"inf", b"-inf", b"1e999", b"-0", b"1_0", b"0x1", b"true", b"1e-400", b"9" * 400, b"2024-13-45"),
    *("é".encode(), "١٢".encode(), "\u2028".encode(), b"[" * 50, b"[learning]\n", b"__proto__", b"../../etc/passwd"),
)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """A few changes at random places."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        start, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        match int(rng.integers(7)):
            case 0 if data:
                data[min(start, len(data) - 1)] ^= 1 << int(rng.integers(8))
            case 1:
                data[start:start] = TOKENS[rng.integers(len(TOKENS))]
            case 2:
                del data[start : min(end, start + 8)]
            case 3:
                data[start:start] = data[start : min(end, start + 40)]
            case 4:
                data[start : start + 3] = rng.bytes(int(rng.integers(4)))
            case 5:
                data[start:end] = data[start:end][::-1] if end - start < 20 else TOKENS[rng.integers(len(TOKENS))]
            case _ if rng.random() < 0.3:
                del data[start:]
    return bytes(data)


# ---- the readers -----------------------------------------------------------------------------------------------------
COLUMNS = (
    Columns(),
    Columns(observed=("y",)),
    Columns(observed=("y", "z"), time="at"),
    Columns(observed=("z",), time="at", inputs=("y",), elapsed=True),
)


def table(path: Path, rng: np.random.Generator) -> bool:
    columns = COLUMNS[rng.integers(len(COLUMNS))]
    source, rows = open_source(path, columns), 0
    for batch in source.batches():
        assert batch.first == rows and batch.ys.shape == (len(batch.ys), len(source.columns.observed))
        assert len(batch.ys) and not np.isinf(batch.ys).any() and np.nanmax(np.abs(batch.ys), initial=0) < 3.5e38
        width = len(columns.inputs) + columns.elapsed
        assert (batch.inputs is None) == (width == 0)
        assert batch.inputs is None or (
            batch.inputs.shape == (len(batch.ys), width) and not np.isnan(batch.inputs).any()
        )
        assert (batch.times is None) == (columns.time is None)
        assert batch.times is None or len(batch.times) == len(batch.ys)
        rows += len(batch.ys)
    return rows > 0


def settings(path: Path, rng: np.random.Generator) -> bool:
    config = merge(Config(), read_tables(path))
    assert isinstance(config, Config) and math.isfinite(config.learning.gamma)
    return True


def metrics(path: Path, rng: np.random.Generator) -> bool:
    for report in read_reports(path.parent):
        assert isinstance(report, Report) and type(report.t) is int
        assert all(isinstance(value, float) for value in (report.elbo, report.ess, report.refused))
        assert all(isinstance(warning, str) for warning in report.warnings)
        assert isinstance(report.stream, str | None) and isinstance(report.row, int | None)
    return True


LIKE = {"count": 3, "values": np.arange(6, dtype="float32").reshape(2, 3), "empty": np.zeros((0, 2), "float32")}


def checkpoint(path: Path, rng: np.random.Generator) -> bool:
    """What is damaged below the sums meets no reader. What we write ourselves is tried with right sums, too."""
    folder = path.parent / "checkpoints" / f"{7:012d}"
    if rng.random() < 0.5 and path.name == ABOUT:
        (folder / SUMS).write_text("".join(f"{value}  {name}\n" for name, value in _sums(folder).items()))
    found = Checkpoints(path.parent / "checkpoints").load(7, LIKE)
    assert found.tree["values"].shape == (2, 3) and (np.asarray(found.tree["values"]) == LIKE["values"]).all()
    return True


def seeds(folder: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Names and valid contents."""
    rows = [{"at": f"2024-01-{i + 1:02d}", "y": i / 7, "z": None if i % 3 else -i, "name": "a"} for i in range(6)]
    csv = "at,y,z,name\n" + "".join(f"{r['at']},{r['y']},{'' if r['z'] is None else r['z']},a b\n" for r in rows)
    quoted = 'y,"z"\n1,"2"\n"3",\n'
    jsonl = "".join(json.dumps(row) + "\n" for row in rows)
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    config = Config(learning=Settings(), columns=Columns(("y",), "at", ("u",), True)).text()
    report = Report(500, -1.0, -1.1, 0.01, -1.2, float("nan"), 0.5, 0.0, ("careful",))
    Checkpoints(folder / "whole").save(7, LIKE, {"time": None})
    whole = folder / "whole" / f"{7:012d}"
    files = [
        (str(Path("checkpoints") / whole.name / file.relative_to(whole)), file.read_bytes())
        for file in sorted(whole.rglob("*"))
        if file.is_file()
    ]
    return {
        "csv": [("obs.csv", csv.encode()), ("obs", quoted.encode())],
        "jsonl": [("obs.jsonl", jsonl.encode()), ("obs", jsonl.encode())],
        "toml": [("some.toml", config.encode()), ("some.toml", b"[learning]\nlag = 3\n[columns]\nobserved = ['y']\n")],
        "metrics": [(METRICS, 3 * encode_report(report))],
        "checkpoint": files,
        "parquet": [("obs.parquet", buffer.getvalue())],
    }


READERS: dict[str, Callable[[Path, np.random.Generator], bool]] = {
    "csv": table,
    "jsonl": table,
    "toml": settings,
    "metrics": metrics,
    "checkpoint": checkpoint,
    "parquet": table,
}


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError("a case took too long")


def fuzz(kind: str, cases: int, seed: int, folder: Path) -> dict[str, Any]:
    """What became of so many cases; `failures` are those that ended in anything but a result or an error of ours."""
    rng = np.random.default_rng([seed, *kind.encode()])
    choices = seeds(folder)[kind]
    counts, failures, slowest = {"read": 0, "refused": 0}, [], 0.0
    before = signal.signal(signal.SIGALRM, _too_long)
    for number in range(cases):
        name, content = choices[rng.integers(len(choices))]
        path, bad = folder / name, mutated(content, rng)
        if kind == "checkpoint":
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            shutil.copytree(folder / "whole", folder / "checkpoints")
        path.write_bytes(bad)
        began = time.perf_counter()
        signal.alarm(SECONDS)
        try:
            READERS[kind](path if kind != "checkpoint" else folder / Path(name).name, rng)
            counts["read"] += 1
        except (InputError, RunError) as error:
            named = str(folder) in str(error)
            counts["refused"] += 1
            if not named:
                failures.append(f"{number}: does not name the file: {error}")
        except Exception as error:
            failures.append(f"{number}: {type(error).__name__}: {error}; {bad[:200]!r}")
        finally:
            signal.alarm(0)
        slowest = max(slowest, time.perf_counter() - began)
    signal.signal(signal.SIGALRM, before)
    return {"cases": cases, **counts, "slowest_ms": round(1e3 * slowest, 1), "failures": failures[:20]}


def main() -> None:
    results = Results(RESULTS, "python -m tests.soak.fuzz_readers", SETTINGS)
    for chunk, kind in itertools.product(range(SETTINGS["chunks"]), READERS):
        with tempfile.TemporaryDirectory() as folder:
            case = kind, SETTINGS[kind] // SETTINGS["chunks"], SETTINGS["seed"] + chunk, Path(folder)
            console.print(results.run(f"{kind}, {chunk}", lambda case=case: fuzz(*case)))


if __name__ == "__main__":
    main()
