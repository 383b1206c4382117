"""θ learned from a stream against maximum likelihood on the same rows: `python -m benchmarks.learning_theta`.

Each model is simulated, read once by the default learner from each of its starts, and fitted offline. The seeds are
others than those with which the rule for the steps was chosen (0 to 2). With `--keep DIR` offline fits are kept there
for the next time; `--render` only writes the page.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from backstream.families import Guided
from backstream.learning.parameters import ModelParameters
from benchmarks.harness import machine
from benchmarks.theta import report
from benchmarks.theta.cases import CASES, Case, volatility
from benchmarks.theta.grid import Likelihood
from benchmarks.theta.offline import maximum_likelihood, mean_log_score, unobserved_components
from benchmarks.theta.online import learn
from benchmarks.zoo.__main__ import use_one_thread

RESULTS = Path(__file__).parent / "results" / "learning_theta.json"
ROWS = 20_000
SEEDS = (10, 11, 12)
JUMP_AT, AFTER = 10_000, 3_000
JUMPS = {"oscillator": "far", "Poisson counts": "far"}
"""The start whose parameters are the truth before the jump."""
STREAMS, SHORT = 50, 5_000
COVERED = "local level", "volatility", "Poisson counts"
PUBLISHED_ROWS, PUBLISHED_SEEDS = 50_000, range(200, 210)


def simulated(case: Case, seed: int, part: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows and inputs: part 0 is learned from, part 1 is fresh."""
    with jax.enable_x64(True):
        key = jax.random.key(1000 + seed)
        inputs = jax.random.normal(jax.random.fold_in(key, 5 + part), (rows, case.regressors))
        given = inputs if case.regressors else None
        ys = case.truth().simulate(rows, given, key=jax.random.fold_in(key, 99) if part else key)[1]
        return np.asarray(ys), None if given is None else np.asarray(given)


def fitted(name: str, seed: int, keep: Path | None) -> dict[str, np.ndarray]:
    """The offline estimate by the filter's log score, that on a grid or of statsmodels where there is one (`grid` and
    `statsmodels`), and the covariance of the best."""
    file = None if keep is None else keep / f"{name}-{seed}.npz"
    if file is not None and file.exists():
        found = dict(np.load(file))
    else:
        ys, inputs = simulated(CASES[name], seed, 0)
        with jax.enable_x64(True):
            p = CASES[name].truth()
            q = Guided.from_model(p, None if inputs is None else inputs[0])
            offline = maximum_likelihood(p, q, ys, inputs)
        found = {"theta": offline.theta, "cov": offline.covariance}
    between = CASES[name].between
    if between is not None and "grid" not in found:
        with jax.enable_x64(True):
            ys, _ = simulated(CASES[name], seed, 0)
            found["grid"], found["cov"] = Likelihood.of(CASES[name].truth(), ys, between).newton(found["theta"])
    if "statsmodels" not in found:
        other = unobserved_components(name, *simulated(CASES[name], seed, 0))
        found["statsmodels"] = np.zeros(0) if other is None else other
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, **found)
    return found


def fresh_scores(case: Case, seed: int, thetas: list[np.ndarray]) -> list[float]:
    """Mean log scores of fresh rows at the truth and at each θ: on a grid where there is one, by the filter
    otherwise."""
    ys, inputs = simulated(case, seed, 1)
    with jax.enable_x64(True):
        p = case.truth()
        parameters = ModelParameters(p)
        if case.between is not None:
            likelihood = Likelihood.of(p, ys, case.between)
            truth = np.asarray(ravel_pytree(parameters.unconstrained())[0])
            return [likelihood.mean_log_score(theta) for theta in (truth, *thetas)]
        raw, rebuild = ravel_pytree(parameters.unconstrained())
        q = Guided.from_model(p, None if inputs is None else inputs[0])
        rebuild, rows = jax.tree_util.Partial(rebuild), (jnp.asarray(ys), inputs)
        return [
            float(mean_log_score(jnp.asarray(theta), rebuild, parameters, q, *rows))
            for theta in (np.asarray(raw), *thetas)
        ]


def compare(name: str, seed: int, keep: Path | None) -> dict[str, Any]:
    """One stream of one model, from all starts."""
    case, (ys, inputs) = CASES[name], simulated(CASES[name], seed, 0)
    single = ys.astype("f"), None if inputs is None else inputs.astype("f")
    offline = fitted(name, seed, keep)
    errors = np.sqrt(np.diag(offline["cov"]))
    runs = {start: learn(make(), *single, looks=40) for start, make in case.starts.items()}
    scores = fresh_scores(case, seed, [offline["theta"], *(run.theta for run in runs.values())])
    found: dict[str, Any] = {"offline": {"below_truth": scores[0] - scores[1]}}
    reference = offline.get("grid", offline["statsmodels"] if offline["statsmodels"].size else offline["theta"])
    found["offline"]["filter_z"] = float(np.abs((reference - offline["theta"]) / errors).max())
    filtering = learn(case.truth(), *single, learn_model=False, learn=False).microseconds
    for (start, run), score in zip(runs.items(), scores[2:], strict=True):
        found[start] = {
            "below_truth": scores[0] - score,
            "z": float(np.abs((run.theta - reference) / errors).max()),
            "errors_to_offline": float(np.exp(np.log(run.errors / errors).mean())),
            "settled": run.settled,
            "restarts": run.restarts,
            "microseconds": run.microseconds,
            "filter_microseconds": filtering,
        }
        if seed == SEEDS[0] and report.DRAWN.get(name) == start:
            found[start]["history"] = [[rows, values.tolist(), se.tolist()] for rows, values, se in run.history]
            found[start]["names"] = list(run.names)
    return found


def jump(name: str, seed: int, horizon: int | None) -> float:
    """Nats per fresh row below the truth, so many rows after all parameters have jumped."""
    case = CASES[name]
    before = case._replace(truth=case.starts[JUMPS[name]])
    ys = np.concatenate([simulated(before, seed, 0, JUMP_AT)[0], simulated(case, seed, 0, AFTER)[0]])
    run = learn(before.truth(), ys.astype("f"), model_horizon=horizon)
    truth, learned = fresh_scores(case, seed, [run.theta])
    return truth - learned


def published_errors(seed: int) -> list[float]:
    """Errors of α, β and σ in the setting that PyDPF publishes: x' = α x + σ ε, y = β exp(x/2) ε."""
    start = volatility(0.0, 0.5, 0.5)
    case = Case(volatility(2 * np.log(0.5), 0.91, 1.0), {"near": start})
    found = learn(start(), simulated(case, seed, 0, PUBLISHED_ROWS)[0].astype("f"))
    (mu, phi, sigma) = found.history[-1][1]
    return [float(abs(phi - 0.91)), float(abs(np.exp(mu / 2) - 0.5)), float(abs(sigma - 1.0))]


def coverage(name: str) -> float:
    """The share of 90 % intervals, in the unconstrained parameters, that hold the truth."""
    case, inside = CASES[name], []
    truth = np.asarray(ravel_pytree(ModelParameters(case.truth()).unconstrained())[0], float)
    for seed in range(100, 100 + STREAMS):
        run = learn(next(iter(case.starts.values()))(), simulated(case, seed, 0, SHORT)[0].astype("f"))
        inside.append(np.abs(run.theta - truth) < 1.645 * run.errors)
    return float(np.mean(inside))


Parts = Iterator[tuple[str, Any]]


def streams(name: str, keep: Path | None) -> Parts:
    for seed in SEEDS:
        yield str(seed), compare(name, seed, keep)


def jumps(name: str, keep: Path | None) -> Parts:
    if name in JUMPS:
        for way, horizon in (("restart", None), ("horizon 500", 500)):
            yield way, [jump(name, seed, horizon) for seed in SEEDS]


def coverages(name: str, keep: Path | None) -> Parts:
    if name in COVERED:
        yield "share", coverage(name)


def published(name: str, keep: Path | None) -> Parts:
    if name == "volatility":
        for seed in PUBLISHED_SEEDS:
            yield str(seed), published_errors(seed)


PARTS = {"streams": streams, "jumps": jumps, "coverage": coverages, "published": published}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="Default: all.")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS, help="Default: all.")
    parser.add_argument("--keep", type=Path, help="A directory for offline fits.")
    parser.add_argument("--render", action="store_true", help="Only write the page.")
    arguments = parser.parse_args()
    use_one_thread()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {part: {} for part in PARTS}
    for name in [] if arguments.render else arguments.models or CASES:
        for part in arguments.parts:
            for key, result in PARTS[part](name, arguments.keep):
                content.setdefault(part, {}).setdefault(name, {})[key] = result
                print(part, name, key, flush=True)
                RESULTS.write_text(json.dumps(report.rounded({**content, "machine": machine(), "rows": ROWS})) + "\n")
    report.render(RESULTS)


if __name__ == "__main__":
    main()
