"""Posteriors with several modes: `python -m benchmarks.modes`.

Models with one or two states, where a dense grid has the exact posterior, and one with three, which is compared with
particle filters by its log score. Nothing is learned. Errors are root mean
squared, over those of the exact posterior mean on the same rows. Smoothing is from 2 000 drawn trajectories. Regions
are those of highest density. Single precision, one thread. `--only NAME` adds the results of one model to the others.
Models with one mode, where several components are not needed, are compared with one component: they must not be hurt.
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

import backstream as bs
from backstream import Guided, GuidedMixture, smooth
from backstream.families import ScoringFamily
from backstream.families.backward import filter_states
from backstream.laws.marginals import Marginals, MixtureMarginals
from benchmarks import mirrored
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Case, Data, Posterior
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.models import absolute_value, double_well, growth, pendulum, spikes, volatility
from benchmarks.zoo.references.grid import Grid

RESULTS = Path(__file__).parent / "results" / "modes.json"
PAGE = Path(__file__).parents[1] / "docs" / "posterior.md"
TRAJECTORIES = 2000
LEVEL = 0.9
CASES = {
    "growth": dataclasses.replace(growth.CASE, rows=1000),
    "random walk seen as its absolute value": mirrored.WALK,
    "autoregression seen as its absolute value": absolute_value.CASE,
    "double well": dataclasses.replace(double_well.CASE, reference=Grid(margin=6.0), rows=1000),
    "ranges from two sensors on a line": mirrored.RANGES,
    "bearings without a side": mirrored.BEARINGS,
    "Lorenz-63 seen in z": mirrored.LORENZ,
}
ONE_MODE = {"spikes": spikes.CASE, "pendulum": pendulum.CASE, "volatility": volatility.CASE}
COMPONENTS = (1, 2, 4)
LEARNED, STREAM, OTHER = "growth", 50_000, 1000
"""The model that is learned, from how many rows, and what is added to the seed of the data for them."""


def family(model: Any, u: Any, components: int) -> ScoringFamily:
    if components == 1:
        return Guided.from_model(model, u)
    return GuidedMixture.from_model(model, u, components=components)


@eqx.filter_jit
def read(q: ScoringFamily, model: Any, ys: Any, us: Any) -> tuple[Any, Any, Any]:
    """Log scores, laws and means of all rows."""
    states = filter_states(model, q, ys, us)
    return jax.vmap(q.log_score)(states), jax.vmap(q.marginal)(states), jax.vmap(q.moments)(states)


def run(case: Case, seed: int) -> dict[str, dict[str, float]]:
    """For each number of components: errors over the exact ones, the log score below the exact one, coverage, times."""
    data = case.simulate(seed)
    assert case.reference is not None
    with jax.enable_x64(True):
        exact, half, _ = case.reference.run(case.build(), data, seed)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0], jnp.float32), data.us)
    families = {str(components): family(case.build(), first, components) for components in COMPONENTS}
    return {components: _compared(case, data, exact, half, q, seed) for components, q in families.items()}


def learned(case: Case, seed: int) -> dict[str, float]:
    """The same on these rows, after λ was learned from many others by the default settings."""
    stream, data = case.simulate(seed + OTHER, STREAM), case.simulate(seed)
    began = time.process_time()
    result = bs.learn(case.build(), np.asarray(stream.ys), inputs=stream.us, progress=False)
    took = time.process_time() - began
    assert case.reference is not None and isinstance(result.family, GuidedMixture)
    with jax.enable_x64(True):
        exact, half, _ = case.reference.run(case.build(), data, seed)
    about = {"inflation": float(jnp.exp(result.family.log_inflation)), "seconds": took}
    return about | _compared(case, data, exact, half, result.family, seed)


def _compared(case: Case, data: Data, exact: Posterior, half: Any, q: ScoringFamily, seed: int) -> dict[str, float]:
    model, ys, us = case.build(), *jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (data.ys, data.us))
    began = time.process_time()
    jax.block_until_ready(read(q, model, ys, us))
    first = time.process_time() - began
    began = time.process_time()
    scores, laws, (mean, cov) = jax.block_until_ready(read(q, model, ys, us))
    took = time.process_time() - began
    filtered = Marginals(mean, cov) if isinstance(q, Guided) else MixtureMarginals(laws)

    def error(mean):
        return float(np.sqrt(((np.asarray(mean) - data.states) ** 2).mean()))

    def coverage(law):
        ends = np.asarray(law.regions(LEVEL))
        inside = (data.states[..., None] >= ends[..., 0]) & (data.states[..., None] <= ends[..., 1])
        return float(inside.any(-1).mean())

    found = {
        "score_below": float((exact.log_score - np.asarray(scores)).mean()),
        "coverage_filtered": coverage(filtered),
        "microseconds": 1e6 * took / case.rows,
        "compile_seconds": first - took,
        "reference_score_moves": 0.0 if half is None else float((exact.log_score - half.log_score).mean()),
    }
    if isinstance(case.reference, mirrored.Scores):  # by symmetry the means are those of any symmetric law
        return found
    smoothed = smooth(model, q, ys, us, TRAJECTORIES, key=jax.random.key(seed))
    return found | {
        "filtering": error(filtered.mean) / error(exact.filtered_mean),
        "smoothing": error(smoothed.mean) / error(exact.smoothed_mean),
        "coverage_smoothed": coverage(smoothed),
        "reference_moves": 0.0 if half is None else error(half.smoothed_mean) / error(exact.smoothed_mean) - 1,
    }


def compare(case: Case, seed: int, components: int = 4, rows: int = 500) -> dict[str, float]:
    """Several components over one, where there is one mode: the filter's error, and how much better the log score."""
    data = case.simulate(seed, rows)
    model, ys, us = case.build(), *jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (data.ys, data.us))
    found = []
    for number in (1, components):
        q = family(model, jax.tree.map(lambda leaf: leaf[0], us), number)
        states = eqx.filter_jit(filter_states)(model, q, ys, us)
        mean, _ = jax.vmap(q.moments)(states)
        error = float(np.sqrt((((np.asarray(mean) - data.states) / data.states.std(0)) ** 2).mean()))
        found.append((error, float(np.asarray(jax.vmap(q.log_score)(states)).mean())))
    (one, score), (several, better) = found
    return {"filtering": several / one, "score_gain": better - score}


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    """The table of the page: the worst of the seeds, and the range of coverages."""

    def cell(seeds: dict[str, dict[str, float]]) -> list[str]:
        def worst(name):
            return max(part[name] for part in seeds.values())

        covered = [part["coverage_filtered"] for part in seeds.values()]
        known = all("filtering" in part for part in seeds.values())
        return [
            f"{worst('filtering'):.3f} / {worst('smoothing'):.3f}" if known else "",
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
    parser.add_argument("--only", help="the name of one model; the results of the others stay")
    parser.add_argument("--learned", action="store_true", help=f"{LEARNED} after {STREAM} rows, and nothing else")
    parser.add_argument("--render", action="store_true", help="only write the table from the results")
    arguments = parser.parse_args()
    use_one_thread()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.learned:
        for seed in range(arguments.seeds):
            found = results.setdefault("learned", {})[str(seed)] = rounded(learned(CASES[LEARNED], seed))
            console.print(f"learned, seed {seed}: {json.dumps(found)}", style="dim")
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name in (
        [] if arguments.render or arguments.learned else [arguments.only] if arguments.only else [*CASES, *ONE_MODE]
    ):
        if name in ONE_MODE:
            found = {str(seed): rounded(compare(ONE_MODE[name], seed)) for seed in range(arguments.seeds)}
            results.setdefault("one_mode", {})[name] = found
            console.print(f"{name}: {json.dumps(found)}", style="dim")
            continue
        parts = results.setdefault("cases", {})[name] = {}
        for seed in range(arguments.seeds):
            for components, found in run(CASES[name], seed).items():
                parts.setdefault(components, {})[str(seed)] = found
                console.print(f"{name}, {components}, seed {seed}: {json.dumps(rounded(found))}", style="dim")
        results |= {"command": "python -m benchmarks.modes", "machine": machine()}
    RESULTS.write_text(json.dumps(rounded(results), indent=1) + "\n")
    render()


if __name__ == "__main__":
    main()
