"""Posteriors with several modes: `python -m benchmarks.modes`.

Models of the zoo with one state, where a dense grid has the exact posterior. Nothing is learned. Errors are root mean
squared, over those of the exact posterior mean on the same rows. Smoothing is from 2 000 drawn trajectories. Regions
are those of highest density. Single precision, one thread.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from backstream import Guided, GuidedMixture, filter, smooth
from backstream.families import ScoringFamily
from backstream.families.backward import filter_states
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Case
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.models import absolute_value, double_well, growth
from benchmarks.zoo.references.grid import Grid

RESULTS = Path(__file__).parent / "results" / "modes.json"
PAGE = Path(__file__).parents[1] / "docs" / "posterior.md"
ROWS = 1000
TRAJECTORIES = 2000
LEVEL = 0.9
CASES = {
    "growth": growth.CASE,
    "autoregression seen as its absolute value": absolute_value.CASE,
    "double well": dataclasses.replace(double_well.CASE, reference=Grid(margin=6.0)),
}
COMPONENTS = (1, 2, 4)


def family(model: Any, u: Any, components: int) -> ScoringFamily:
    if components == 1:
        return Guided.from_model(model, u)
    return GuidedMixture.from_model(model, u, components=components)


@eqx.filter_jit
def log_scores(q: ScoringFamily, model: Any, ys: Any, us: Any) -> Any:
    return jax.vmap(q.log_score)(filter_states(model, q, ys, us))


def run(case: Case, components: int, seed: int) -> dict[str, float]:
    """Errors over the exact ones, the log score below the exact one, coverage, and times."""
    case = dataclasses.replace(case, rows=ROWS)
    data = case.simulate(seed)
    assert case.reference is not None
    with jax.enable_x64(True):
        exact, _, _ = case.reference.run(case.build(), data, seed)
    model, ys, us = case.build(), *jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (data.ys, data.us))
    q = family(model, jax.tree.map(lambda leaf: leaf[0], us), components)
    began = time.process_time()
    compiled = log_scores.lower(q, model, ys, us).compile()
    compile_seconds = time.process_time() - began
    scores = jax.block_until_ready(compiled(q, model, ys, us))
    began = time.process_time()
    jax.block_until_ready(compiled(q, model, ys, us))
    took = time.process_time() - began
    filtered = filter(model, q, ys, us)
    smoothed = smooth(model, q, ys, us, TRAJECTORIES, key=jax.random.key(seed))

    def error(mean):
        return float(np.sqrt(((np.asarray(mean) - data.states) ** 2).mean()))

    def coverage(law):
        ends = np.asarray(law.regions(LEVEL))
        inside = (data.states[..., None] >= ends[..., 0]) & (data.states[..., None] <= ends[..., 1])
        return float(inside.any(-1).mean())

    return {
        "filtering": error(filtered.mean) / error(exact.filtered_mean),
        "smoothing": error(smoothed.mean) / error(exact.smoothed_mean),
        "score_below": float((exact.log_score - np.asarray(scores)).mean()),
        "coverage_filtered": coverage(filtered),
        "coverage_smoothed": coverage(smoothed),
        "microseconds": 1e6 * took / ROWS,
        "compile_seconds": compile_seconds,
    }


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    """The table of the page: the worst of the seeds, and the range of coverages."""

    def cell(seeds: dict[str, dict[str, float]]) -> list[str]:
        def worst(name):
            return max(part[name] for part in seeds.values())

        covered = [part["coverage_filtered"] for part in seeds.values()]
        return [
            f"{worst('filtering'):.3f} / {worst('smoothing'):.3f}",
            f"{max(abs(part['score_below']) for part in seeds.values()):.4f}",
            f"{100 * min(covered):.0f} to {100 * max(covered):.0f} %",
            f"{min(part['microseconds'] for part in seeds.values()):.0f}",
        ]

    results = json.loads(path.read_text())["cases"]
    rows = [[name, components, *cell(seeds)] for name, parts in results.items() for components, seeds in parts.items()]
    begin, end = "<!-- modes: begin -->\n", "<!-- modes: end -->"
    before, rest = page.read_text().split(begin)
    head = ["model", "components", "filtering / smoothing", "log score off by", "90 % regions cover", "µs a row"]
    page.write_text(f"{before}{begin}\n{table(head, rows)}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many data sets of each model")
    parser.add_argument("--render", action="store_true", help="only write the table from the results")
    arguments = parser.parse_args()
    use_one_thread()
    cases: dict[str, Any] = {}
    for name, case in {} if arguments.render else CASES.items():
        for components in COMPONENTS:
            parts = cases.setdefault(name, {}).setdefault(str(components), {})
            for seed in range(arguments.seeds):
                found = parts[str(seed)] = run(case, components, seed)
                console.print(f"{name}, {components}, seed {seed}: {json.dumps(rounded(found))}", style="dim")
    if cases:
        head = {"command": "python -m benchmarks.modes", "machine": machine()}
        RESULTS.write_text(json.dumps(rounded(head | {"cases": cases}), indent=1) + "\n")
    render()


if __name__ == "__main__":
    main()
