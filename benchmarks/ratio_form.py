"""The recursion in its ratio form, with the default posterior: `python -m benchmarks.ratio_form`.

Prices: microseconds of processor time of a learning step with four components and with one, 100 samples, in turn in
one process, the least of several rounds.

Kernels: the paper's networks of 5, 10 and 20 units. The ELBO and its gradient in λ, a row, with the posterior's own
kernels and with the model's dynamics, from 100 samples, over 40 rows; with each its mean over independent runs and the
standard deviation of one run, next to the log-likelihood by particle filters, which no exact ELBO exceeds.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from backstream import Guided, StateSpaceModel
from backstream.estimators import OwnKernels, RatioScore, TrueDynamics
from backstream.families import ScoringFamily
from backstream.models import ChaoticRNN
from benchmarks.harness import console, machine, table
from benchmarks.modes import CASES, family
from benchmarks.pages import write
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.references.particles import particle_filter

RESULTS = Path(__file__).parent / "results" / "ratio_form.json"
PARTICLES = 100
PRICED = "random walk seen as its absolute value", "growth"
PRICED_ROWS, ROUNDS = 40, 8
COMPONENTS = 1, 4
UNITS, ROWS = (5, 10, 20), 40
RUNS = 16
FILTERS, FILTER_PARTICLES = 3, 20_000
KERNELS = {"own": OwnKernels(), "true dynamics": TrueDynamics()}


def sums(
    estimator: RatioScore, p: StateSpaceModel, q: ScoringFamily, ys: jax.Array, us: Any
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """A function of a key: the ELBO of all rows and its gradient in λ."""

    @eqx.filter_jit
    def run(p, q, ys, us, key):
        def step(carry, row):
            t, y, u = row
            carry, estimate = estimator.step(p, q, carry, y, u, key=jax.random.fold_in(key, t))
            return carry, (estimate.total.elbo, estimate.total.gradient.log_inflation)

        start = estimator.init(p, q, jax.tree.map(lambda leaf: leaf[0], us))
        _, (elbos, slopes) = jax.lax.scan(step, start, (jnp.arange(len(ys)), ys, us))
        return elbos[-1], slopes[-1]

    return lambda key: run(p, q, ys, us, key)


def prices(name: str) -> dict[str, Any]:
    """For each kind of kernels and number of components, microseconds a row, and the ratio of the last to the first."""
    data, model = CASES[name].simulate(0, PRICED_ROWS), CASES[name].build()
    ys, us = jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (data.ys, data.us))
    runs, took = {}, {}
    for kind, backward in KERNELS.items():
        for count in COMPONENTS:
            q = family(model, jax.tree.map(lambda leaf: leaf[0], us), count)
            runs[kind, count] = sums(RatioScore(PARTICLES, backward), model, q, ys, us)
            jax.block_until_ready(runs[kind, count](jax.random.key(0)))
            took[kind, count] = []
    for round_ in range(ROUNDS):
        for which, run in runs.items():
            began = time.process_time()
            jax.block_until_ready(run(jax.random.key(round_)))
            took[which].append(1e6 * (time.process_time() - began) / PRICED_ROWS)
    found = {kind: {str(count): min(took[kind, count]) for count in COMPONENTS} for kind in KERNELS}
    return {kind: least | {"ratio": least["4"] / least["1"]} for kind, least in found.items()}


def kernels(dim: int) -> dict[str, Any]:
    model = ChaoticRNN.random(dim, key=jax.random.key(dim))
    _, ys = model.simulate(ROWS, key=jax.random.key(100 + dim))
    q = Guided.from_model(model)
    scores = [
        float(particle_filter(model, ys, None, FILTER_PARTICLES, jax.random.key(run))[2].sum()) / ROWS
        for run in range(FILTERS)
    ]
    found: dict[str, Any] = {"log_likelihood": float(np.mean(scores)), "its_error": _error(np.array(scores))}
    keys = jax.random.split(jax.random.key(1), RUNS)
    for name, backward in KERNELS.items():
        each = np.array(jax.lax.map(sums(RatioScore(PARTICLES, backward), model, q, ys, None), keys)) / ROWS
        (elbo, gradient), (elbo_varies, gradient_varies) = each.mean(1).tolist(), each.std(1, ddof=1).tolist()
        found[name] = {
            "elbo": elbo,
            "elbo_deviation": elbo_varies,
            "gradient": gradient,
            "gradient_deviation": gradient_varies,
        }
    return found


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def price_table(path: Path = RESULTS) -> str:
    parts = json.loads(path.read_text())["prices"]
    rows = [
        [name, kind, *(f"{least[str(count)]:.0f}" for count in COMPONENTS), f"{least['ratio']:.1f}"]
        for name, kinds in parts.items()
        for kind, least in kinds.items()
    ]
    return table(["model", "kernels", "one component, µs a row", "four", "ratio"], rows) + "\n"


def kernel_table(path: Path = RESULTS) -> str:
    rows = []
    for dim, part in json.loads(path.read_text())["kernels"].items():
        for name in KERNELS:
            own = part[name]
            rows.append(
                [
                    dim,
                    name,
                    f"{own['elbo'] - part['log_likelihood']:.3f} ± {own['elbo_deviation']:.3f}",
                    f"{own['gradient']:.3f} ± {own['gradient_deviation']:.3f}",
                ]
            )
    head = ["units", "kernels", "ELBO less log-likelihood", "gradient"]
    return table(head, rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratio_form", description=__doc__)
    parser.add_argument("--only", choices=("prices", "kernels"), help="one of the two")
    parser.add_argument("names", nargs="*", help="of models, or numbers of units; all of them if none is given")
    parser.add_argument("--render", action="store_true", help="only write the tables from the results")
    arguments = parser.parse_args()
    use_one_thread()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    jobs = {"prices": (prices, PRICED), "kernels": (kernels, UNITS)}
    for job, (run, names) in jobs.items():
        if arguments.render or arguments.only not in (None, job):
            continue
        for name in [name for name in names if not arguments.names or str(name) in arguments.names]:
            part = content.setdefault(job, {})[str(name)] = rounded(run(name))
            console.print(f"{job}, {name}: {json.dumps(part)}", style="dim")
            content |= {"command": "python -m benchmarks.ratio_form", "machine": machine()}
            RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    write({"posterior.md": {"prices": price_table, "kernels": kernel_table}})


if __name__ == "__main__":
    main()
