"""Writes what the committed results say into the documentation.

    python -m experiments.report

The tables between the marks of the pages under SECTIONS come from experiments/results/*.json and from nowhere else; a
test checks that they are up to date.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from backstream import plots

from .harness import MISSING, RESULTS, first_within, over_seeds, table
from .reproduction import NAMES, result

DOCS = Path(__file__).parents[1] / "docs"
CASES = {
    "d=5": "Chaotic RNN, d = 5",
    "d=10": "Chaotic RNN, d = 10",
    "d=20": "Chaotic RNN, d = 20",
    "linear": "Linear-Gaussian, d = 10",
    "slow": "Slowly mixing linear-Gaussian, A = 0.999",
}


def parts(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())["parts"]


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


def bench(name: str) -> str:
    """What a bench has measured, and its picture."""
    chosen, path = result(name), RESULTS / f"{name}.json"
    return "\n" + chosen.markdown(json.loads(path.read_text())) + f"\n![{chosen.TITLE}](images/{name}.png)\n"


def reproduced(name: str) -> str:
    """The section of a result: what has been run of it so far, and its picture."""
    chosen, path = result(name), RESULTS / f"{name}.json"
    text = f"\n## {chosen.TITLE}\n\n{chosen.ABOUT}\n\n`backstream reproduce {name}`\n\n"
    if not path.exists():
        return text + f"{MISSING.capitalize()}.\n"
    return text + chosen.markdown(json.loads(path.read_text())) + f"\n![{chosen.TITLE}]({picture(name)})\n"


def summary() -> str:
    """What the paper has, what this library's defaults give, and the best possible, in one table."""

    def mean(name: str, part: str, *keys: str, factor: float = 1.0, digits: int = 2) -> str:
        path = RESULTS / f"{name}.json"
        values = over_seeds(parts(name), part, *keys) if path.exists() else []
        return f"{factor * sum(values) / len(values):.{digits}f}" if values else MISSING

    def per_step(part: str) -> str:
        return " / ".join(mean("table2", part, error, factor=100) for error in ("one_step", "filtering"))

    def stream(part: str, *place: str) -> str:
        return " / ".join(mean("table3", part, *place, error, digits=4) for error in ("smoothing", "filtering"))

    rows = [
        ["Table 1, score: smoothing RMSE × 10⁻²", "13.5", mean("table1", "score, ours", "smoothing", factor=100)],
        ["Table 1, trajectories", "11.9", mean("table1", "trajectories, ours", "smoothing", factor=100)],
        ["Table 2, score: one-step / filtering RMSE × 10⁻²", "8.9 / 10.3", per_step("score")],
        ["Table 2, regression", "9.2 / 10.3", per_step("regression")],
        ["Table 3: smoothing / filtering RMSE, fresh", "0.278 / 0.305", stream("default", "end")],
        ["Fig. 1, score: nats per step below the optimum", "", mean("fig1", "score, ours", "gap", digits=4)],
    ]
    limits = [
        mean("table1", "limit", "smoothing", factor=100),
        mean("table1", "limit", "smoothing", factor=100),
        per_step("limit"),
        per_step("limit"),
        stream("limit"),
        "0",
    ]
    rows = [[*row, limit] for row, limit in zip(rows, limits, strict=True)]
    return "\n" + table(["result", "paper", "ours", "limit"], rows)


def picture(name: str) -> str:
    return f"images/reproduction/{name}.png"


def model() -> str:
    found = parts("learn_model")
    rows = []
    for name, part in found.items():
        real, imaginary = part["eigenvalues"][0]
        autocovariances = ", ".join(f"{value[0][0]:.2f}" for value in part["autocovariances"])
        rows.append([name, f"{part['log_likelihood']:.4f}", f"{real:.3f} ± {imaginary:.3f}i", autocovariances])
    return table(["", "nats per step, fresh data", "eigenvalues of A", "autocovariances of y₁ at lags 0–3"], rows)


def crashes() -> str:
    found = parts("crashes")
    killed, disks = found["killed"], [part for name, part in found.items() if name.startswith("disk") and part]
    moments = "; ".join(f"{count} {name}" for name, count in killed["moments"].items())
    text = f"{killed['kills']} times `kill -9` over {killed['rows']:,} rows: {moments}. "
    text += (
        f"Of {killed['damaged_checkpoints']} damaged checkpoints {killed['refused_by_name']} were refused by name, and "
    )
    text += f"the one before was used. Results, metrics and state {_same(killed)}.\n"
    for disk in disks:
        text += f"\nA disk of {disk['kilobytes']} kB: exit code {disk['exit_codes'][0]}, "
        text += f"“{disk['sentences'][0].removeprefix('backstream: ')}” With more room, and `--resume`: exit code "
        text += f"{disk['exit_codes'][1]}; results, metrics and state {_same(disk)}.\n"
    locked = found.get("read-only directory")
    if locked:
        said, touched = locked["sentences"][0].removeprefix("backstream: "), "no" if locked["untouched"] else "A"
        text += f"\nA run directory that is read-only: exit code {locked['exit_codes'][0]}, “{said}”, and {touched} "
        text += f"byte of it is changed. Writable again, and `--resume`: exit code {locked['exit_codes'][1]}; results, "
        text += f"metrics and state {_same(locked)}.\n"
    return text


def _same(part: dict[str, Any]) -> str:
    return (
        "equal those of an uninterrupted run byte for byte"
        if part["same_bytes"]
        else "DIFFER from an uninterrupted run"
    )


def long_streams() -> str:
    found, rows = parts("long_streams"), []
    for name, curve in found.items():
        case, method, dtype = name.split(", ")
        if dtype == "float64":
            continue
        other = found.get(f"{case}, {method}, float64")
        if other is None:
            continue
        drift = [a["elbo"] - b["elbo"] for a, b in zip(curve, other, strict=True)]
        rows.append(
            [
                f"{case}, {method}",
                f"{curve[-1]['observations']:,.0f}",
                _halves(drift, "{:+.5f}"),
                f"{curve[-1]['fresh']:.2g} ({other[-1]['fresh']:.2g})",
                _halves([row["carry"] for row in curve], "{:.2f}", max),
                f"{curve[1]['megabytes']:.0f} → {curve[-1]['megabytes']:.0f}",
                _halves([row["microseconds"] for row in curve], "{:.0f}"),
                _halves([row["pace"] for row in curve], "{:.2f}") if "pace" in curve[0] else MISSING,
                str(sum(int(row["refused"]) for row in curve)),
            ]
        )
    header = ["stream", "read", "ELBO per step, float32 − float64", "fresh (float64)", "carry", "MB", "µs", "pace"]
    return table([*header, "refused"], rows)


def _halves(values: list[float], form: str, summary: Any = lambda half: sum(half) / len(half)) -> str:
    """Of the first and of the second half of a stream, its first tenth left out."""
    later = values[len(values) // 10 :]
    return " → ".join(form.format(summary(half)) for half in (later[: len(later) // 2], later[len(later) // 2 :]))


def hostile_data() -> str:
    found, rows = parts("hostile_data"), []
    for name, part in found.items():
        if "error_ratio" in part:
            recovery = "–" if part["recovery"] is None else f"{part['recovery']:,}"
            finite = "yes" if part["everything_finite"] else "NO"
            rows.append([name, str(part["refused"]), finite, recovery, f"{part['error_ratio']:.3f}"])
    text = table(["trouble", "updates refused", "λ finite", "rows to recover", "error on fresh data"], rows)
    text += f"\nAn infinity: “{found['infinities']['said']}”\n\n"
    rows = [[name, f"{part['filtering']:.4f}", f"{part['kalman']:.4f}", str(part["refused"])]
            for name, part in found.items() if name.startswith("units")]  # fmt: skip
    return text + table(["a linear-Gaussian stream in", "filtering RMSE", "exact", "updates refused"], rows)


def regime() -> str:
    part = parts("hostile_data")["regime change"]
    return (
        f"Just after the jump the ELBO is {part['first_gap']:.2f} nats per step below the log-likelihood. The monitor "
        f"had warned {part['false_warnings_before']} times before; after {part['first_warning_after']} rows it says: "
        f"“{part['first_warning']}” The gap is within 0.05 nats after {part['recovered_after']:,} rows; that of a "
        f"learner started at the jump, after {part['fresh_learner_after']:,}. In the end {part['final_gap']:.4f} are "
        "left.\n"
    )


def fuzz() -> str:
    sums: dict[str, list[int]] = {}
    for name, part in parts("fuzz_readers").items():
        counts = [part["cases"], part["read"], part["refused"], len(part["failures"])]
        kind = name.split(", ")[0]
        sums[kind] = [a + b for a, b in zip(sums.get(kind, [0] * 4), counts, strict=True)]
    sums["all"] = [sum(counts) for counts in zip(*sums.values(), strict=True)]
    rows = [[kind, *(f"{count:,}" for count in counts)] for kind, counts in sums.items()]
    return table(["reader", "cases", "read", "refused by name", "anything else"], rows)


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


BENCHES = ("gradients", "learning")
SECTIONS = {
    "performance.md": {"speed": partial(bench, "speed")},
    "reliability.md": {
        "crashes": crashes,
        "long streams": long_streams,
        "hostile data": hostile_data,
        "regime": regime,
        "fuzz": fuzz,
    },
    "choosing.md": {
        "recursion or window": recursion_or_window,
        "slow stream": slow_stream,
    },
    "trust.md": {name: partial(bench, name) for name in BENCHES},
    "scale.md": {"fleet": fleet, "short streams": short_streams},
    "reproduction.md": {"summary": summary} | {name: partial(reproduced, name) for name in NAMES} | {"model": model},
}


def filled(text: str, sections: dict[str, Any]) -> str:
    """A page with what stands between its marks made anew."""
    for name, make in sections.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + make() + end + rest.split(end)[1]
    return text


def main() -> None:
    for page, sections in SECTIONS.items():
        path = DOCS / page
        path.write_text(filled(path.read_text(), sections))
    pictures = [(name, picture(name)) for name in NAMES]
    for name, place in [*pictures, *((name, f"images/{name}.png") for name in (*BENCHES, "speed"))]:
        path = RESULTS / f"{name}.json"
        if path.exists():
            (DOCS / place).parent.mkdir(exist_ok=True)
            drawn = plots.save(result(name).figure(json.loads(path.read_text())), DOCS / place)
            Image.open(drawn).convert("RGB").quantize(256).save(drawn, optimize=True)  # a third of the size


if __name__ == "__main__":
    main()
