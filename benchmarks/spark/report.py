"""What was measured and shown of fleets on Spark, as tables for docs/scale.md. `benchmarks.report` writes them.

A part that has not been run is left out of its table.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import table

RESULTS = Path(__file__).parents[1] / "results"
MODELS = {"exact": "linear and Gaussian", "learned": "stochastic volatility, λ learned"}
FAULTS = {
    "kills": "{killed} executors and Python workers killed, {inside} inside a task and {after} after a commit",
    "storm": "a kill every 6 s for two minutes ({kills} kills), documented settings",
    "storm-default": "the same storm with Spark's default limits ({kills} kills)",
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
    "spark throughput": throughput,
    "spark faults": faults,
    "spark keys": many_keys,
    "spark common": common_lambda,
}
