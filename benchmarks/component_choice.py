"""What decides about the number of components, on the zoo: `python -m benchmarks.component_choice --out FILE`.

The first rows of each model with at most ten states are read with one component and with several, as a run with
`components="auto"` does. The rule was written down before these seeds were used.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from backstream.families import Guided
from backstream.learning.component_check import CHECKED_ROWS, can_be_checked, log_score_gap
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Case
from benchmarks.zoo.catalogue import SEVERAL_MODES, SINGLE_MODE, find

SEEDS = 31, 32, 33


def choose(case: Case) -> list[dict[str, Any]] | None:
    """For each seed, what is found and decided; None where nothing is checked."""
    model, found = case.build(), []
    for seed in SEEDS:
        data = case.simulate(seed, CHECKED_ROWS)
        us = None if data.us is None else data.us.astype(np.float32)
        q = Guided.from_model(model, jax.tree.map(lambda leaf: leaf[0], us))
        if not can_be_checked(q):
            return None
        gap = log_score_gap(model, q, None, data.ys.astype(np.float32), us)
        numbers = {name: round(value, 5) for name, value in gap._asdict().items()}
        found.append(numbers | {"jumps": q.plan.has_jumps, "several": gap.is_clear() or q.plan.has_jumps})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    use_one_thread()
    found: dict[str, dict[str, Any]] = {}
    for kind, names in (("single_mode", SINGLE_MODE), ("several_modes", SEVERAL_MODES)):
        found[kind] = {}
        for name in names:
            chosen = choose(find(name))
            if chosen is not None:
                found[kind][name] = chosen
                print(name, chosen, flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps({"seeds": SEEDS, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
