"""The page about learning a model: its tables and its picture, from the results."""

import json
import math
import os
from pathlib import Path
from typing import Any

from benchmarks.harness import table
from benchmarks.theta.cases import CASES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "learning-models.md", DOCS / "images" / "learning-theta.png"
DRAWN = {"volatility": "far"}
"""The start whose history is kept and drawn."""
PYDPF = "0.0044", "0.040", "0.027"
"""What its repository publishes for the same model."""
TRUTHS = {"mu": -1.0, "phi": 0.97, "sigma": 0.2}


def rounded(value: Any) -> Any:
    """Four digits are enough, and what is not a number is null."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value


def render(results: Path) -> None:
    content = json.loads(results.read_text())
    _put("streams", _streams(content["streams"]))
    _put("jumps", _jumps(content["jumps"]))
    _put("coverage", _coverage(content["coverage"]))
    _put("published", _published(content.get("published", {})))
    _draw(content["streams"])


def _streams(streams: dict[str, Any]) -> str:
    rows = []
    for name, case in CASES.items():
        seeds = list(streams.get(name, {}).values())
        for start in case.starts if seeds else ():
            runs = [seed[start] for seed in seeds]
            worst = {key: max(run[key] for run in runs) for key in ("below_truth", "z", "microseconds")}
            offline = max(seed["offline"]["below_truth"] for seed in seeds)
            errors = [run["errors_to_offline"] for run in runs]
            filtering = max(run["filter_microseconds"] for run in runs)
            rows.append(
                [
                    f"{name}, {start}",
                    f"{worst['below_truth']:.5f}",
                    f"{offline:.5f}",
                    f"{worst['z']:.2f}",
                    f"{min(errors):.2f} to {max(errors):.2f}",
                    f"{worst['microseconds']:.0f}",
                    f"{filtering:.0f}",
                ]
            )
    header = ["model, start", "loss", "loss, offline", "z", "standard errors to offline", "µs a row", "filter alone"]
    return table(header, rows)


def _jumps(jumps: dict[str, dict[str, list[float]]]) -> str:
    header = ["model", "restart, the default", "horizon of 500 rows"]
    return table(header, [[name, *(f"{max(ways[way]):.4f}" for way in ways)] for name, ways in jumps.items()])


def _published(published: dict[str, dict[str, list[float]]]) -> str:
    errors = list(published.get("volatility", {}).values())
    means = [f"{sum(column) / len(column):.4f}" for column in zip(*errors, strict=True)]
    return table(["mean absolute error", "α", "β", "σ"], [["learned online", *means], ["PyDPF", *PYDPF]])


def _coverage(coverage: dict[str, dict[str, float]]) -> str:
    return table(
        ["model", "90 % intervals that hold the truth"], [[k, f"{100 * v['share']:.0f} %"] for k, v in coverage.items()]
    )


def _put(name: str, text: str) -> None:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")


def _draw(streams: dict[str, Any]) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    from backstream import plots

    told = [seed[DRAWN["volatility"]] for seed in streams.get("volatility", {}).values()]
    told = [run for run in told if "history" in run]
    if not told:
        return
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained")
    rows, values, errors = zip(*told[0]["history"], strict=True)
    for k, (place, name) in enumerate(zip(axes, told[0]["names"], strict=True)):
        own = [[math.nan if line[k] is None else line[k] for line in lines] for lines in (values, errors)]
        plots.parameter(place, rows, *own, name, TRUTHS[name])
    plots.save(figure, PICTURE, "benchmarks/results/learning_theta.json")
