"""Writes what the benchmarks measured into the documentation.

    python -m benchmarks.report

The tables between the marks of docs/performance.md, docs/trust.md and docs/scale.md come from
benchmarks/results/*.json; a test checks that they are up to date.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import MISSING, table
from benchmarks.pages import Sections, draw, read_parts, write
from benchmarks.runner import result
from benchmarks.spark import report as spark

RESULTS = Path(__file__).parent / "results"
BENCHES = ("speed", "gradients", "learning")


def parts(name: str) -> dict[str, Any]:
    return read_parts(RESULTS / f"{name}.json")


def bench(name: str) -> str:
    """What a bench has measured, and its picture."""
    chosen, path = result(f"benchmarks.{name}"), RESULTS / f"{name}.json"
    return "\n" + chosen.markdown(json.loads(path.read_text())) + f"\n![{chosen.TITLE}](images/{name}.png)\n"


def fleet() -> str:
    """What was measured of many streams; a part that has not been run is left out."""
    found = parts("fleet")
    speed, text = found.get("throughput"), ""
    if speed is not None:
        rows = [
            ["together, ticks of 10 000 rows", f"{speed['together']:,}", ""],
            [
                "one at a time: a call of `learner.step` for each row as it comes",
                f"{speed['one_at_a_time']:.0f}",
                f"÷ {speed['ratio']:.0f}",
            ],
            [
                "one stream alone, its rows in blocks (`learner.scan`): only where they are all there already",
                f"{speed['one_stream_in_blocks']:,}",
                f"÷ {speed['ratio_to_blocks']:.1f}",
            ],
        ]
        text += "\n" + table(["10 000 streams, one common λ", "observations per second", ""], rows)
    rows = [
        [
            f"{part['streams']:,}, {'own' if name.endswith('own') else 'common'} λ",
            f"{part['bytes_per_stream']:,.0f}",
            f"{part['predicted']:,}",
        ]
        for name, part in found.items()
        if name.startswith("memory")
    ]
    text += "\n" + table(["streams", "bytes kept for each", "by the formula"], rows)
    for part in (part for name, part in found.items() if name.startswith("peak")):
        text += f"\nA process with {part['streams']:,} streams, each of which has read two rows, takes "
        text += f"{part['peak_gib']:.2f} GiB at its peak, JAX and all compiled programs included.\n"
    rows = [[name.removeprefix("work, "), f"{value:.1f}"] for name, value in found.items() if name.startswith("work")]
    if rows:
        text += "\n" + table(["common λ, ticks of all streams", "microseconds for one observation"], rows)
    return text


def short_streams() -> str:
    found, rows = parts("fleet"), []
    names = {"before": "before", "one long stream": "one long", "short streams": "1 000 short", "limit": "limit"}
    for seed in (part.removeprefix("short streams, seed ") for part in found if part.startswith("short streams")):
        cells = [found.get(f"{name}, seed {seed}") for name in names]
        rows.append(
            [seed] + [MISSING if one is None else f"{one['smoothing']:.4f} / {one['filtering']:.4f}" for one in cells]
        )
    return table(["seed: smoothing / filtering", *names.values()], rows)


SECTIONS: dict[str, Sections] = {
    "performance.md": {"speed": partial(bench, "speed")},
    "trust.md": {name: partial(bench, name) for name in ("gradients", "learning")},
    "scale.md": {"fleet": fleet, "short streams": short_streams, **spark.SECTIONS},
}


def main() -> None:
    write(SECTIONS)
    for name in BENCHES:
        draw(f"benchmarks.{name}", RESULTS / f"{name}.json", f"images/{name}.png")


if __name__ == "__main__":
    main()
