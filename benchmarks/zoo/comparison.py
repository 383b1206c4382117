"""Runs methods on models of the zoo and writes what they reach into the committed results."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

import backstream
from benchmarks.harness import console, machine
from benchmarks.zoo import methods, scores, store
from benchmarks.zoo.case import Case
from benchmarks.zoo.gaussian_filters import NotApplicableError

RESULTS = Path(__file__).parents[1] / "results" / "zoo.json"


def compare(cases: list[Case], names: list[str], seeds: int, path: Path = RESULTS) -> None:
    """What the methods `names` reach on the models, over data sets 0, 1, …; other results in the file stay."""
    unknown = [name for name in names if name not in methods.METHODS]
    if unknown:
        raise SystemExit(f"No method {unknown[0]!r}; there are: {', '.join(methods.METHODS)}.")
    content = read(path)
    for case in cases:
        parts = content["models"].setdefault(case.name, {})
        for seed in range(seeds):
            judged = store.judged(case, seed)
            part = parts.setdefault(str(seed), {})
            kept = part.get("methods", {}) if part.get("digest") == store.digest(case) else {}
            part |= described(case, judged)
            part["methods"] = kept | {name: evaluate(name, case, judged, seed) for name in names}
            console.print(f"{case.name}, seed {seed}: {json.dumps(rounded(part['methods']))}", style="dim")
        write(path, content)
        jax.clear_caches()  # hundreds of compiled programs would use up the memory mappings of a process


def described(case: Case, judged: store.Judged) -> dict[str, Any]:
    """The model's data and reference, with the proof that it has converged."""
    data, found = judged.data, {"digest": store.digest(case), "effort": judged.effort, "seconds": judged.seconds}
    found |= {"rows": len(data.ys), "states": data.states.shape[1], "columns": data.ys.shape[1]}
    for name, posterior in (("reference", judged.reference), ("reference_half", judged.half)):
        if posterior is not None:
            found[name] = scores.own(posterior, data.states)
    if case.raw is not None and judged.reference is not None:
        found["raw"] = scores.raw_ratio(case.raw(data.ys, data.us), judged.reference, data.states)
    return found


def evaluate(name: str, case: Case, judged: store.Judged, seed: int) -> dict[str, Any]:
    """Scores and times of one method on one data set."""
    try:
        timed = methods.run(methods.METHODS[name], case, judged.data, seed)
    except NotApplicableError as reason:
        return {"not_applicable": str(reason)}
    times = {"compile_seconds": timed.compile_seconds, "microseconds": timed.microseconds}
    if not methods.finite(timed.posterior):
        return {"not_finite": True, **times}
    if judged.reference is None:
        return scores.own(timed.posterior, judged.data.states) | times
    return scores.against(timed.posterior, judged.reference, judged.data) | times


def read(path: Path) -> dict[str, Any]:
    if path.exists():
        return json.loads(path.read_text())
    return {"command": "python -m benchmarks.zoo", "version": backstream.__version__, "machine": {}, "models": {}}


def write(path: Path, content: dict[str, Any]) -> None:
    """One line for each data set, so that the file is short and its changes can be read."""
    content = rounded(content | {"version": backstream.__version__, "machine": machine()})
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in content.items() if name != "models"]
    models = []
    for name, parts in content["models"].items():
        seeds = ",\n".join(f"   {json.dumps(seed)}: {json.dumps(part)}" for seed, part in parts.items())
        models.append(f"  {json.dumps(name)}: {{\n{seeds}\n  }}")
    text = "\n".join(["{", *lines, ' "models": {', ",\n".join(models), " }", "}"]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text)
    os.replace(scratch, path)


def rounded(value: Any) -> Any:
    """Floating numbers with six significant digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float | np.floating) else value
