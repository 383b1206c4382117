"""Where a step of the recursion spends its time, by what XLA's own profile of the compiled program says.

Every operation has the name of the part of the step that it came from, and the size of its result. Times are medians
over the steps of a stream, so that other work on the machine does not count.
"""

import gzip
import json
import re
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from backstream.estimators import RecursiveScore, Renewal
from backstream.estimators.recursive import score, sensitivity, weights

PARTS = {
    "q_t, its draws, the kernels": [(score, "draw"), (score, "backward_kernels")],
    "weights and integrand": [
        (weights.SelfNormalized, "pairs"),
        (score, "log_transition"),
        (score, "log_emission"),
        (score, "log_backward"),
        (weights.AllPairs, "value_and_score"),
    ],
    "cotangents back to a_{t-1}, a_t": [
        (score.RecursiveScore, "_pull_backward"),
        (score.RecursiveScore, "_pull_marginal"),
    ],
    "∂a_t/∂a_{t-1} and ∂a_t/∂λ": [(sensitivity.Forward, "advance")],
    "the product with ∂a_{t-1}/∂λ": [(sensitivity.JacobianPull, "__call__")],
    "W @ G": [(weights.AllPairs, "centered_average")],
    "sums over [N, P]": [(sensitivity.Pulled, "add_to"), (score.RecursiveScore, "_conclude")],
}
REST = "copies, and what has no name"


def labels() -> ExitStack:
    """While it is open, what is traced carries the names of the parts."""
    stack = ExitStack()
    for k, places in enumerate(PARTS.values()):
        for owner, name in places:
            named = jax.named_scope(f"part{k}")(getattr(owner, name))
            stack.enter_context(patch.object(owner, name, named))
    return stack


def profile(streamed, p, q, N: int, steps: int, wide: int) -> dict[str, Any]:
    """Microseconds per step of each part, of them those of results with a row as long as λ, and how many operations."""
    with labels():
        program = streamed(RecursiveScore(N, objective=Renewal(0.8)), p, q, steps)
    jax.block_until_ready(program())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(program())
        trace = next(Path(folder).rglob("perfetto_trace.json.gz"))
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    text = program.compiled.as_text()
    part = {name: int(k) for name, k in re.findall(r"%?([\w.\-]+) = [^\n]*?op_name=\"[^\"]*part(\d)", text)}
    shape = dict(re.findall(r"%?([\w.\-]+) = \(?\w+\[([\d,]*)\]", text))
    taken: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event["name"] in shape:
            taken[event["name"]].append(event["dur"])
    found = {name: {"us": 0.0, "wide_us": 0.0, "operations": 0} for name in (*PARTS, REST)}
    names = list(PARTS)
    for name, times in taken.items():
        if len(times) < steps / 2 or name.startswith("while"):
            continue
        row = found[names[part[name]] if name in part else REST]
        us = float(np.median(times)) * len(times) / steps
        row["us"] += us
        row["wide_us"] += us * any(int(n) >= wide for n in shape[name].split(",") if n)
        row["operations"] += round(len(times) / steps)
    return {name: {key: round(value, 1) for key, value in row.items()} for name, row in found.items()}
