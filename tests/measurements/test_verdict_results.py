"""What the pages say of verdicts is what was measured."""

import json
from pathlib import Path

RESULTS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "verdicts.json").read_text())


def test_failures_are_told_and_healthy_runs_are_not_doubted():
    failures = [run for runs in RESULTS["failures"].values() for run in runs.values()]
    healthy = [run for runs in RESULTS["healthy"].values() for run in runs.values()]
    assert len(RESULTS["failures"]) == 17 and len(failures) == 68 and len(healthy) == 64
    assert all(run["cost"] is None or run["cost"] > 0.15 for run in failures)
    assert all(run["verdict"] in ("doubtful", "failed") for run in failures)
    assert all(run["verdict"] == "good" for run in healthy)
