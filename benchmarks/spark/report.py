"""What was measured and shown of fleets on Spark, as tables for docs/scale.md. `benchmarks.report` writes them.

A part that has not been run is left out of its table.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import table

RESULTS = Path(__file__).parents[1] / "results"
MODELS = {"exact": "linear and Gaussian", "learned": "stochastic volatility"}
FAULTS = {
    "kills": "{killed} executors and Python workers killed, {inside} inside a task and {after} after a commit",
    "storm": "a kill every 6 s for two minutes ({kills} kills), documented settings",
    "storm-default": "the same storm with Spark's default limits ({kills} kills)",
    "fast-storm": "a kill every 2 s for two minutes ({kills} kills), documented settings",
    "fast-storm-default": "the same fast storm with Spark's default limits ({kills} kills until it ended)",
    "drivers": "driver killed {drivers} times and started again",
    "partitions": "shuffle partitions changed from {from} to {to}",
}


def results(name: str) -> dict[str, Any]:
    path = RESULTS / f"spark_{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def throughput() -> str:
    """Rows per processor second."""
    found, rows = results("throughput"), []
    for name, text in MODELS.items():
        if name not in found:
            continue
        one = found[name]
        for kind in ("panel", "one executor", "two executors"):
            part, short = one[kind], kind.partition(" ")[0]
            java, python = (part.get(f"{side}_microseconds_per_row") for side in ("java", "python"))
            ratio = f"{one[f'{short}_over_panel']:.2f}" if java is not None else ""
            rows.append(
                [
                    f"{text}: {'`Panel` in one process' if kind == 'panel' else kind}",
                    f"{part['rows_per_processor_second']:,}",
                    ratio,
                    "" if java is None else f"{java:.1f}",
                    f"{part['microseconds_per_row']:.1f}" if java is None else f"{python:.1f}",
                ]
            )
    return table(["", "rows per processor second", "of `Panel`", "µs per row in Java", "µs per row in Python"], rows)


def cost() -> str:
    """Of a row in a worker, without Spark's own work."""
    found, rows = results("cost"), []
    for name, part in found.items():
        if name == "settings":
            continue
        model, _, sharing = name.partition(", ")
        rows.append(
            [
                f"{MODELS[model]}, {sharing} λ",
                f"{part['panel_microseconds_per_row']:.1f}",
                f"{part['worker_microseconds_per_row']:.1f}",
                f"{part['bytes_per_key']:,.0f}",
            ]
        )
    return table(["", "`Panel`, µs per row", "worker, µs per row", "bytes of state per key"], rows)


def profile() -> str:
    """Microseconds for a row, by part."""
    found = results("profile")
    names = [name for name in MODELS if name in found]
    parts = list(found[names[0]]) if names else []
    rows = [[part, *(f"{found[name][part]:.1f}" for name in names)] for part in parts]
    rows.append(["together", *(f"{sum(found[name].values()):.1f}" for name in names)])
    return table(["µs per row, one executor", *(MODELS[name] for name in names)], rows)


ROW_RATE, KEYS, BUCKETS, ROWS_OF_A_KEY = 10**9 / 86_400, 10**7, 2**14, 10
"""Of the example: rows a second, keys and buckets. And how many rows a key has in a micro-batch that was measured."""


def example() -> str:
    """The cost model with what was measured of the models."""
    speed, parts, sizes, rows = results("throughput"), results("profile"), results("cost"), []
    for name in MODELS:
        if name not in speed or name not in parts or f"{name}, own" not in sizes:
            continue
        state = 1e-6 * parts[name]["Python: state from and to bytes"]
        s, c = 1 / speed[name]["one executor"]["rows_per_processor_second"] - state, ROWS_OF_A_KEY * state
        b = sizes[f"{name}, own"]["bytes_per_key"]
        minute, ten_minutes = (
            f"{ROW_RATE * s + KEYS * c / every:.1f}, {KEYS * b / every / 1e6:.0f} MB/s" for every in (60, 600)
        )
        state_size = f"{KEYS * b / 1e9:.1f} GB, {KEYS * b / BUCKETS / 1e6:.2f} MB"
        rows.append(
            [MODELS[name], f"{1e6 * s:.0f} µs", f"{1e6 * c:.0f} µs", f"{b:,.0f}", state_size, minute, ten_minutes]
        )
    header = [
        "own λ",
        "s",
        "c",
        "b",
        "state, of it in a bucket",
        "busy cores, state written: every minute",
        "every ten minutes",
    ]
    return table(header, rows)


def faults() -> str:
    found, rows = results("kills"), []
    for kind in ("own", "common"):
        for name, text in FAULTS.items():
            part = found.get(f"{kind}-{name}")
            if part is not None:
                rows.append([f"{kind} λ: {described(text, part)}", outcome(part), kept(part)])
    return table(["", "the query", "rows and results"], rows)


def described(text: str, part: dict[str, Any]) -> str:
    moments = {
        moment: sum(count for what, count in part.get("of_these", {}).items() if moment in what)
        for moment in ("inside", "after")
    }
    return text.format(**part, **moments, drivers=len(part.get("killed_after_micro_batches", [])))


def outcome(part: dict[str, Any]) -> str:
    if part.get("failed_with"):
        return "failed with an error, and went on from its checkpoint when started again"
    return (
        f"recovered by itself, {part['tasks_lost']} tasks lost"
        if "tasks_lost" in part
        else "went on from its checkpoint"
    )


def kept(part: dict[str, Any]) -> str:
    once = "every row once" if part["every_row_once"] else "rows missing or twice"
    return f"{once}, " + ("the same bits" if part["largest_difference"] == 0 else "other numbers")


def many_keys() -> str:
    found, rows = results("many_keys"), []
    for keys, part in found.items():
        if keys == "settings":
            continue
        rows.append(
            [
                f"{int(keys):,}",
                f"{part['checkpoint_state_megabytes']:,.0f}",
                f"{part['java_megabytes_at_most']:,.0f}",
                f"{part['python_megabytes_at_most']:,.0f}",
                f"{part['seconds_of_each_micro_batch'][-1]:.0f}",
            ]
        )
    header = [
        "keys",
        "state in the checkpoint, MB",
        "Java, MB at most",
        "Python, MB at most",
        "s for a row of each key",
    ]
    return table(header, rows)


def common_lambda() -> str:
    found = results("common_lambda")
    rows = [
        [
            text,
            f"{found[name]['log_score']:.4f}",
            f"{found[name]['above_one_machine']:+.4f} ± {found[name]['standard_error']:.4f}",
        ]
        for name, text in (
            ("start", "parameters of the start"),
            ("one machine", "learned by one machine, ticks of 64 rows"),
            ("spark", "learned on Spark, micro-batches of 1 000 rows"),
            ("truth", "true parameters"),
        )
        if name in found
    ]
    return table(["", "log score of a fresh row", "above one machine"], rows)


SECTIONS = {
    "spark example": example,
    "spark cost": cost,
    "spark throughput": throughput,
    "spark profile": profile,
    "spark faults": faults,
    "spark keys": many_keys,
    "spark common": common_lambda,
}
