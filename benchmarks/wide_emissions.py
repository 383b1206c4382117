"""Columns that read all of the state: `python -m benchmarks.wide_emissions`.

Each column of the observation is emitted around a network of 4, 10 or 20 states. Nothing is learned; the filter runs in
single precision. Errors are root mean squared, in standard deviations of the states. Beside them: the extended and the
unscented Kalman filter, and on fewer rows, where it is asked for, a particle filter that takes in each row by steps,
with half and with all of its particles.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from backstream import StateSpaceModel
from benchmarks.harness import console, machine, table
from benchmarks.zoo import gaussian_filters, guided
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Data
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.references.tempered import tempered_filter
from benchmarks.zoo.scores import Z90, coverage, normalized_rmse

RESULTS = Path(__file__).parent / "results" / "wide_emissions.json"
ROWS = 300
PARTICLES, PARTICLE_ROWS = 2048, 100
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
SIZES = ("4x5", "4x50", "10x5", "10x50", "20x5", "20x50")
JUDGING_SEED = 500
"""Seeds from here on are for the committed results; smaller ones were used while the updates were developed."""


class Network(StateSpaceModel):
    """States that turn and saturate, and an emission with a hidden layer."""

    W: jax.Array  # (d, d)
    A: jax.Array  # (h, d)
    B: jax.Array  # (c, h)
    kind: str = eqx.field(static=True)

    @classmethod
    def random(cls, states: int, columns: int, kind: str, seed: int) -> "Network":
        rng = np.random.default_rng(seed)
        hidden = 2 * states
        return cls(
            jnp.asarray(rng.standard_normal((states, states)) / np.sqrt(states)),
            jnp.asarray(1.5 * rng.standard_normal((hidden, states)) / np.sqrt(states)),
            jnp.asarray(1.5 * rng.standard_normal((columns, hidden)) / np.sqrt(hidden)),
            kind,
        )

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(len(self.W)), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.8 * x + 0.4 * jnp.tanh(self.W @ x), 0.4).to_event(1)

    def emission(self, x, u=None):
        s = self.B @ jnp.tanh(self.A @ x)
        return LAWS[self.kind](s)


def _tridiagonal(size: int) -> jax.Array:
    """A factor whose covariance has correlations of about a half between neighbors."""
    return 0.5 * (jnp.eye(size) + 0.8 * jnp.eye(size, k=-1))


LAWS = {
    "normal": lambda s: dist.Normal(s, 0.5).to_event(1),
    "correlated": lambda s: dist.MultivariateNormal(s, scale_tril=_tridiagonal(len(s))),
    "student": lambda s: dist.StudentT(2.5, s, 0.3).to_event(1),
    "poisson": lambda s: dist.Poisson(jnp.exp(s)).to_event(1),
    "binary": lambda s: dist.Bernoulli(logits=2 * s).to_event(1),
    "joint student": lambda s: dist.MultivariateStudentT(2.5, s, _tridiagonal(len(s))),
}


def simulate(kind: str, states: int, columns: int, seed: int, rows: int) -> Data:
    with jax.enable_x64(True):
        model = Network.random(states, columns, kind, seed)
        xs, ys = jax.jit(lambda key: model.simulate(rows, key=key))(jax.random.key(seed + 7))
    return Data(np.asarray(xs), np.asarray(ys, float), None)


def run(kind: str, states: int, columns: int, seed: int, particles: bool) -> dict[str, Any]:
    """Errors in filtering and smoothing, coverage of 90 % bands, and log scores a row."""
    data = simulate(kind, states, columns, seed, PARTICLE_ROWS if particles else ROWS)

    def error(mean):
        return normalized_rmse(np.asarray(mean, float), data.states)

    model, ys = Network.random(states, columns, kind, seed), jnp.asarray(data.ys, jnp.float32)
    q = guided.prepare(model, data, None)
    own = guided.filter_and_smooth(q, model, ys, None)
    found: dict[str, Any] = {
        "rows": len(data.ys),
        "update": type(q.plan.update).__name__,
        "guided": [error(own.filtered_mean), error(own.smoothed_mean)],
        "coverage": [
            coverage(np.asarray(own.filtered_mean), np.asarray(own.filtered_cov), data.states),
            coverage(np.asarray(own.smoothed_mean), np.asarray(own.smoothed_cov), data.states),
        ],
        "log_score": float(np.mean(own.log_score)),
    }
    with jax.enable_x64(True):
        exact_model = Network.random(states, columns, kind, seed)
        for name in ("ekf", "ukf"):
            other = getattr(gaussian_filters, name)(exact_model, jnp.asarray(data.ys), None)
            found[name] = [error(other.filtered_mean), error(other.smoothed_mean)]
    return found | ({"particles": by_particles(model, ys, data)} if particles else {})


def by_particles(model: Network, ys: jax.Array, data: Data) -> dict[str, Any]:
    """The errors and log scores of the particle filter with half and all of its particles, and its coverage."""
    halves = [tempered_filter(model, ys, number, jax.random.key(number)) for number in (PARTICLES // 2, PARTICLES)]
    return {
        "error": [normalized_rmse(np.asarray(part.mean, float), data.states) for part in halves],
        "coverage": float((np.abs(halves[1].mean - data.states) <= Z90 * np.asarray(halves[1].std)).mean()),
        "log_score": [float(np.mean(part.log_score)) for part in halves],
    }


def markdown(cases: dict[str, Any]) -> str:
    """For each law and size, the worst of the seeds: errors as multiples of the better Kalman filter's, and bands."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, part in cases.items():
        kind, size, _ = name.split(", ", 2)
        groups.setdefault((kind, size), []).append(part)

    def better(part, place):
        return min(value for value in (part["ekf"][place], part["ukf"][place]) if np.isfinite(value))

    def line(parts):
        worst = [max(part["guided"][k] / better(part, k) for part in parts) for k in (0, 1)]
        over = [part["guided"][0] / part["particles"]["error"][1] for part in parts if "particles" in part]
        bands = [[part["coverage"][k] for part in parts] for k in (0, 1)]
        return [
            "{:.2f} / {:.2f}".format(*worst),
            " / ".join(f"{min(kind):.0%} to {max(kind):.0%}" for kind in bands),
            f"{max(over):.2f}" if over else "",
        ]

    rows = [
        [kind, size.replace("x", " → "), str(len(groups[kind, size])), *line(groups[kind, size])]
        for kind in LAWS
        for size in SIZES
        if (kind, size) in groups
    ]
    header = ["law", "states → columns", "data sets", "guided ÷ better of ekf, ukf", "bands", "÷ particles, filtering"]
    return table(header, rows)


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    begin, end = "<!-- wide emissions: begin -->\n", "<!-- wide emissions: end -->"
    before, rest = page.read_text().split(begin)
    text = markdown(json.loads(path.read_text())["cases"])
    page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_emissions", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(LAWS), choices=list(LAWS))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[JUDGING_SEED])
    parser.add_argument("--particles", action="store_true", help="run the particle filter too, on fewer rows")
    parser.add_argument("--render", action="store_true", help="only write the table from the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    use_one_thread()
    # What is not run again is kept.
    cases: dict[str, Any] = json.loads(arguments.out.read_text())["cases"] if arguments.out.exists() else {}
    for kind in [] if arguments.render else arguments.kinds:
        for size in arguments.sizes:
            for seed in arguments.seeds:
                name = f"{kind}, {size}, seed {seed}" + (", particles" if arguments.particles else "")
                cases[name] = run(kind, *map(int, size.split("x")), seed, arguments.particles)
                console.print(f"{name}: {json.dumps(rounded(cases[name]))}", style="dim")
                head = {"command": "python -m benchmarks.wide_emissions", "particles": PARTICLES}
                arguments.out.write_text(
                    json.dumps(rounded(head | {"machine": machine(), "cases": cases}), indent=1) + "\n"
                )
    if arguments.out == RESULTS:
        render()


if __name__ == "__main__":
    main()
