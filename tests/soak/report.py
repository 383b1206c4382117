"""Writes what the soak runs found into the documentation.

    python -m tests.soak.report

The tables between the marks of docs/reliability.md come from tests/soak/results/*.json; a test checks that they are
up to date.
"""

from pathlib import Path
from typing import Any

from benchmarks.harness import MISSING, table
from benchmarks.pages import Sections, read_parts, write

RESULTS = Path(__file__).parent / "results"


def parts(name: str) -> dict[str, Any]:
    return read_parts(RESULTS / f"{name}.json")


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


KINDS = {
    "kill -9 before or after a write, sync, rename or removal": ("kill at", "kill after at"),
    "a write torn in the middle": ("tear at",),
    "power lost: what was not synced is gone": ("power at",),
    "disk full": ("disk full",),
    "model raises": ("model raises",),
    "a byte of a checkpoint changed": ("corrupted byte of a checkpoint",),
    "a byte of results changed": ("corrupted byte of results", "corrupted byte of old results"),
    "log rotated": ("rotation",),
    "log truncated while it is followed": ("truncation",),
    "another source under the same name": ("swapped source",),
    "a row that cannot be read": ("damaged row",),
    "a row that cannot be written": ("odd row",),
    "another number of streams": ("other streams",),
    "a second process started": ("second process",),
    "a newer format": ("upgraded format",),
    "saved by the clock": ("checkpoint by time",),
}
"""What the state machine counts, by what the page calls it."""


def state_machine() -> str:
    part = parts("state_machine")["faults"]
    counts = part["counts"]
    sums = {
        kind: sum(n for name, n in counts.items() if name in names or name.split(" at ")[0] + " at" in names)
        for kind, names in KINDS.items()
    }
    text = f"{counts['step']:,} steps, {counts['life']:,} lives of a process, seed {part['seed']}, "
    text += f"{part['violations']} violations.\n\n"
    return text + table(["what happened", "times"], [[kind, f"{count:,}"] for kind, count in sums.items()])


def memory() -> str:
    found = parts("memory")
    part = found["checkpoints"]
    text = f"{part['checkpoints']:,} checkpoints, one after each row, after {part['warm']:,} to warm up: the process "
    text += f"grows by {part['mb_grown']:.2f} MB, from {part['mb_before']:.0f} MB.\n\n"
    rows = [
        [f"{p['streams']:,}", f"{p['peak_gb']:.2f}", f"{p['checkpoint_mb']:,.0f}", f"{p['about_kb']:.0f}"]
        for name, p in found.items()
        if name.endswith("streams")
    ]
    return text + table(["streams", "GB at the peak", "MB of a checkpoint", "kB of JSON in it"], rows)


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


SECTIONS: dict[str, Sections] = {
    "reliability.md": {
        "crashes": crashes,
        "state machine": state_machine,
        "memory": memory,
        "long streams": long_streams,
        "hostile data": hostile_data,
        "regime": regime,
        "fuzz": fuzz,
    }
}


if __name__ == "__main__":
    write(SECTIONS)
