"""Writes what the studies found into the documentation.

    python -m studies.report

The tables between the marks of docs/choosing.md and docs/reproduction.md come from studies/results/*.json; a test
checks that they are up to date.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import first_within, table
from benchmarks.pages import Sections, read_parts, write

RESULTS = Path(__file__).parent / "results"
CASES = {
    "d=5": "Chaotic RNN, d = 5",
    "d=10": "Chaotic RNN, d = 10",
    "d=20": "Chaotic RNN, d = 20",
    "linear": "Linear-Gaussian, d = 10",
    "slow": "Slowly mixing linear-Gaussian, A = 0.999",
}


def parts(name: str) -> dict[str, Any]:
    return read_parts(RESULTS / f"{name}.json")


def above(row: dict[str, Any], limit: dict[str, float]) -> list[str]:
    return [f"{100 * (row[name] / limit[name] - 1):+.1f} %" for name in ("smoothing", "filtering")]


def recursion_or_window() -> str:
    found, text = parts("recursion_or_window"), ""
    for case, title in CASES.items():
        limit, rows = found.get(f"{case}, limit"), []
        if limit is None:
            continue
        for name, curve in found.items():
            if not name.startswith(f"{case}, ") or name.endswith(", limit"):
                continue
            last, reached = curve[-1], first_within(curve, limit)
            elbo = [f"{last['fresh_elbo'] - limit['fresh_elbo']:+.4f}"] if "fresh_elbo" in limit else []
            within = "–" if reached is None else f"{reached['observations']:,} in {reached['seconds']:.0f} s"
            milliseconds = 1e3 * last["seconds"] / last["observations"]
            cost = f"{last['observations']:,}", f"{milliseconds:.2f}"
            rows.append([name.removeprefix(f"{case}, "), *cost, *above(last, limit), *elbo, within])
        best = f"smoothing {limit['smoothing']:.4f}, filtering {limit['filtering']:.4f}"
        raw = f"; raw observation {limit['raw']:.4f}" if "raw" in limit else ""
        header = ["learner", "read", "ms", "smoothing", "filtering"]
        header += (["ELBO per step"] if "fresh_elbo" in limit else []) + ["within 5 %, and stays"]
        text += f"\n**{title}** (limit: {best}{raw})\n\n" + table(header, rows)
    return text


def slow_stream() -> str:
    found, gaps = parts("slow_stream"), {}
    for name, part in found.items():
        gaps.setdefault(name.rpartition(", seed ")[0], []).append(1e6 * part["gap"])
    rows = [[name, f"{np.median(each):.2g}", f"{min(each):.2g}", f"{max(each):.2g}"] for name, each in gaps.items()]
    return "\n" + table(["learner", "median", "best seed", "worst seed"], rows)


def model() -> str:
    found = parts("learn_model")
    rows = []
    for name, part in found.items():
        real, imaginary = part["eigenvalues"][0]
        autocovariances = ", ".join(f"{value[0][0]:.2f}" for value in part["autocovariances"])
        rows.append([name, f"{part['log_likelihood']:.4f}", f"{real:.3f} ± {imaginary:.3f}i", autocovariances])
    return table(["", "nats per step, fresh data", "eigenvalues of A", "autocovariances of y₁ at lags 0–3"], rows)


SECTIONS: dict[str, Sections] = {
    "choosing.md": {"recursion or window": recursion_or_window, "slow stream": slow_stream},
    "reproduction.md": {"model": model},
}


if __name__ == "__main__":
    write(SECTIONS)
