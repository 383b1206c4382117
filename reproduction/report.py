"""Writes what was reproduced of the paper into the documentation.

    python -m reproduction.report

The tables between the marks of docs/reproduction.md come from reproduction/results/*.json; a test checks that they
are up to date.
"""

import json
from functools import partial
from pathlib import Path

from benchmarks.harness import MISSING, over_seeds, table
from benchmarks.pages import Sections, draw, read_parts, write
from benchmarks.runner import result

RESULTS = Path(__file__).parent / "results"
NETWORKS = Path(__file__).parents[1] / "benchmarks" / "results" / "networks.json"
"""With the default posterior on the sequences on which Table 3 is judged."""
NAMES = ("fig1", "fig2", "table1", "fig3", "table2", "table3", "ablations")


def reproduced(name: str) -> str:
    """The section of a result: what has been run of it so far, and its picture."""
    chosen, path = result(f"reproduction.{name}"), RESULTS / f"{name}.json"
    text = f"\n## {chosen.TITLE}\n\n{chosen.ABOUT}\n\n`backstream reproduce {name}`\n\n"
    if not path.exists():
        return text + f"{MISSING.capitalize()}.\n"
    return text + chosen.markdown(json.loads(path.read_text())) + f"\n![{chosen.TITLE}]({picture(name)})\n"


def summary() -> str:
    """What the paper has, what our defaults give, and the best possible, in one table."""

    def mean(name: str, part: str, *keys: str, factor: float = 1.0, digits: int = 2) -> str:
        path = RESULTS / f"{name}.json"
        values = over_seeds(read_parts(path), part, *keys) if path.exists() else []
        return f"{factor * sum(values) / len(values):.{digits}f}" if values else MISSING

    def per_step(part: str) -> str:
        return " / ".join(mean("table2", part, error, factor=100) for error in ("one_step", "filtering"))

    def stream(part: str, *place: str) -> str:
        return " / ".join(mean("table3", part, *place, error, digits=4) for error in ("smoothing", "filtering"))

    def reads_the_model() -> str:
        sequences = json.loads(NETWORKS.read_text())["networks"]["10"].values()
        errors = [part["guided"]["delta"] for part in sequences]
        filtering, smoothing = (sum(each) / len(each) for each in zip(*errors, strict=True))
        return f"{smoothing:.4f} / {filtering:.4f}"

    rows = [
        ["Table 1, score: smoothing RMSE × 10⁻²", "13.5", mean("table1", "score, ours", "smoothing", factor=100)],
        ["Table 1, trajectories", "11.9", mean("table1", "trajectories, ours", "smoothing", factor=100)],
        ["Table 2, score: one-step / filtering RMSE × 10⁻²", "8.9 / 10.3", per_step("score")],
        ["Table 2, regression", "9.2 / 10.3", per_step("regression")],
        ["Table 3: smoothing / filtering RMSE, fresh", "0.278 / 0.305", stream("default", "end")],
        ["Table 3, the default of version 0.2, nothing learned", "0.278 / 0.305", reads_the_model()],
        ["Fig. 1, score: nats per step below the optimum", "", mean("fig1", "score, ours", "gap", digits=4)],
    ]
    limits = [
        mean("table1", "limit", "smoothing", factor=100),
        mean("table1", "limit", "smoothing", factor=100),
        per_step("limit"),
        per_step("limit"),
        stream("limit"),
        stream("limit"),
        "0",
    ]
    rows = [[*row, limit] for row, limit in zip(rows, limits, strict=True)]
    return "\n" + table(["result", "paper", "ours", "limit"], rows)


def picture(name: str) -> str:
    return f"images/reproduction/{name}.png"


SECTIONS: dict[str, Sections] = {
    "reproduction.md": {"summary": summary} | {name: partial(reproduced, name) for name in NAMES},
}


def main() -> None:
    write(SECTIONS)
    for name in NAMES:
        draw(f"reproduction.{name}", RESULTS / f"{name}.json", picture(name))


if __name__ == "__main__":
    main()
