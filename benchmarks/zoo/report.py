"""The zoo's page and picture, from the committed results."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.harness import table
from benchmarks.zoo import catalogue, methods
from benchmarks.zoo.comparison import RESULTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "zoo.md", DOCS / "images" / "zoo.png"
MARKERS = {"ekf": ("o", "tab:orange"), "ukf": ("^", "tab:green"), "guided": ("D", "tab:blue")}
WIDEST_RATIO = 5.0
"""Errors above it are drawn at the edge."""

Parts = dict[str, Any]
"""The results of one model by seed."""


def render(results: Path = RESULTS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Writes the generated parts of the page between its marks, and the picture."""
    models = json.loads(results.read_text())["models"]
    single, several = (
        {name: models[name] for name in names if name in models}
        for names in (catalogue.SINGLE_MODE, catalogue.SEVERAL_MODES)
    )
    text = page.read_text()
    for mark, made in {
        "errors": errors(single),
        "several modes": errors(several),
        "scores": log_scores(single | several),
        "references": references(single | several),
        "learned": learned(single | several),
        "times": times(single),
    }.items():
        begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{made}{end}{rest.split(end, 1)[1]}"
    page.write_text(text)
    draw(single, picture)


def values(parts: Parts, method: str, *keys: str | int) -> list[float]:
    """A number of a method over the seeds, where it is there."""
    found = []
    for part in parts.values():
        value = part["methods"].get(method)
        for key in keys:
            value = value[key] if isinstance(value, list) else (value or {}).get(key)
        found += [] if value is None else [value]
    return found


def status(parts: Parts, method: str) -> str:
    """What is said where a method has no numbers."""
    first = next(iter(parts.values()))["methods"].get(method, {})
    return "no mean" if "not_applicable" in first else "not finite" if "not_finite" in first else ""


def worst(parts: Parts, method: str, *keys: str | int) -> float | None:
    """The largest over the seeds."""
    found = values(parts, method, *keys)
    return max(found) if found else None


def errors(models: dict[str, Parts]) -> str:
    """Filtering and smoothing error as multiples of the reference's, the worst of the seeds."""

    def cell(parts, method):
        pair = [worst(parts, method, kind, "ratio") for kind in ("filtering", "smoothing")]
        if None not in pair:
            return " / ".join(f"{value:.2f}" for value in pair)
        pair = [worst(parts, method, "rmse", place) for place in (0, 1)]
        return status(parts, method) if None in pair else "({:.3f} / {:.3f})".format(*pair)

    def raw(parts):
        found = [part["raw"] for part in parts.values() if "raw" in part]
        return "{:.2f} / {:.2f}".format(*map(max, zip(*found, strict=True))) if found else ""

    rows = []
    for name, parts in models.items():
        first, case = parts["0"], catalogue.find(name)
        head = [f"{case.field}: {case.about}", str(first["states"]), str(first["columns"])]
        rows.append([*head, raw(parts), *(cell(parts, method) for method in methods.UNLEARNED)])
    return table(["model", "states", "columns", "observation", *methods.UNLEARNED], rows)


def log_scores(models: dict[str, Parts]) -> str:
    """Nats per column below the reference's log score, and what the 90 % bands cover."""

    def score(parts, method):
        found = values(parts, method, "log_score", "difference")
        return f"{min(found):+.4f}" if found else status(parts, method)

    def bands(found):
        return " / ".join(f"{min(kind):.0%} to {max(kind):.0%}" for kind in zip(*found, strict=True)) if found else ""

    rows = []
    for name, parts in models.items():
        covered = [part["reference"]["coverage"] for part in parts.values() if "reference" in part]
        own = [[values(parts, method, "coverage", place) for place in (0, 1)] for method in methods.UNLEARNED]
        cells = [bands(list(zip(*pair, strict=True))) for pair in own]
        rows.append([name, *(score(parts, method) for method in methods.UNLEARNED), bands(covered), *cells])
    header = [f"{method}: log score" for method in methods.UNLEARNED]
    return table(["model", *header, "reference: bands", *(f"{method}: bands" for method in methods.UNLEARNED)], rows)


def learned(models: dict[str, Parts]) -> str:
    """What learning changed: errors as multiples of the unlearned ones, and log scores and bands less theirs."""

    def span(found, form):
        return f"{min(found):{form}} to {max(found):{form}}"

    rows = []
    for name, parts in models.items():
        pairs = [
            (part["methods"]["guided"], part["methods"]["learned"])
            for part in parts.values()
            if "learned" in part["methods"]
        ]
        if not pairs:
            continue
        errors = [[after["rmse"][k] / before["rmse"][k] for before, after in pairs] for k in (0, 1)]
        columns = parts["0"]["columns"]
        gains = [(after["mean_log_score"] - before["mean_log_score"]) / columns for before, after in pairs]
        bands = [[100 * (after["coverage"][k] - before["coverage"][k]) for before, after in pairs] for k in (0, 1)]
        rows.append(
            [
                name,
                *(span(found, ".4f") for found in errors),
                span(gains, "+.5f"),
                *(span(found, "+.1f") for found in bands),
            ]
        )
    header = ["model", "filtering error", "smoothing error", "log score", "filtering bands", "smoothing bands"]
    return table(header, rows)


def references(models: dict[str, Parts]) -> str:
    """What each reference is, its errors, and how far they moved when the effort was doubled."""
    rows = []
    for name, parts in models.items():
        found = [part for part in parts.values() if "reference" in part]
        if not found:
            rows.append([name, "none", "", "", "", ""])
            continue
        pairs = [(part["reference"], part["reference_half"]) for part in found if "reference_half" in part]
        moved = ["exact"] * 3
        if pairs:
            ratios = [max(abs(full["rmse"][k] / half["rmse"][k] - 1) for full, half in pairs) for k in (0, 1)]
            score = max(abs(full["mean_log_score"] - half["mean_log_score"]) for full, half in pairs)
            moved = [*(f"{100 * value:.2f} %" for value in ratios), f"{score:.4f}"]
        mean = [sum(part["reference"]["rmse"][k] for part in found) / len(found) for k in (0, 1)]
        rows.append([name, max((part["effort"] for part in found), key=len), "{:.3f} / {:.3f}".format(*mean), *moved])
    header = ["model", "reference", "error: filtering / smoothing", "moved: filtering", "smoothing", "log score"]
    return table(header, rows)


def times(models: dict[str, Parts]) -> str:
    """Microseconds a row and seconds to compile, the smallest of the seeds."""

    def cell(parts, method):
        row, compiling = values(parts, method, "microseconds"), values(parts, method, "compile_seconds")
        return f"{min(row):.1f}; {max(compiling):.1f}" if row else status(parts, method)

    rows = [[name, *(cell(parts, method) for method in methods.UNLEARNED)] for name, parts in models.items()]
    return table(["model", *(f"{method}: µs a row; s to compile" for method in methods.UNLEARNED)], rows)


def draw(models: dict[str, Parts], path: Path) -> None:
    """Errors and log scores of all methods, a line for each model with a reference."""
    models = {name: parts for name, parts in models.items() if "reference" in parts["0"]}
    figure, axes = plt.subplots(1, 3, figsize=(11, 0.28 * len(models) + 1.6), sharey=True, layout="constrained")
    for place, parts in enumerate(models.values()):
        for axis, kind in zip(axes, ("filtering", "smoothing"), strict=False):
            for method, (marker, color) in MARKERS.items():
                for value in values(parts, method, kind, "ratio"):
                    axis.plot(min(value, WIDEST_RATIO), place, marker, color=color, alpha=0.6, markersize=5)
        for method, (marker, color) in MARKERS.items():
            for value in values(parts, method, "log_score", "difference"):
                axes[2].plot(max(-value, 1e-5), place, marker, color=color, alpha=0.6, markersize=5)
    for axis, title in zip(axes, ("filtering error ÷ reference", "smoothing error ÷ reference"), strict=False):
        _ratio_axis(axis, title)
    axes[2].set(xscale="log", title="nats per column below the reference", xlim=(0.8e-5, 20))
    axes[2].axvline(0.005, color="gray", linewidth=0.8)
    axes[0].set_yticks(range(len(models)), list(models))
    axes[0].invert_yaxis()
    for axis in axes:
        axis.grid(axis="y", color="0.9")
        axis.set_axisbelow(True)
    for method, (marker, color) in MARKERS.items():
        if any(values(parts, method, "filtering", "ratio") for parts in models.values()):
            axes[2].plot([], [], marker, color=color, label=method)
    axes[2].legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _ratio_axis(axis: Axes, title: str) -> None:
    axis.set(xscale="log", title=title, xlim=(0.93, 1.05 * WIDEST_RATIO))
    axis.set_xticks([1, 1.5, 2, 3, WIDEST_RATIO], ["1", "1.5", "2", "3", "≥ 5"])
    axis.minorticks_off()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.axvline(1.03, color="gray", linewidth=0.8)
