"""A model with two modes learned from one reading of its rows: `python -m benchmarks.growth_theta`.

The growth model with three unknown parameters, which start far off: the factor of x in the transition at 1.2 (truth
0.5), that of x² in the emission at 0.5 (truth 0.05), and the standard deviation of the noise at 1 (truth √10). The
setting is that of OSIWAE. 50 000 rows, each read once, four components, single precision. The curve has 50 points.

The steps are the default ones for θ, a search and then Newton steps. `--steps adam` has those of λ instead: Adam at a
falling rate, each row's gradient clipped.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float
from numpyro.distributions import constraints

import backstream as bs
from backstream.learning.presets import build, falling
from backstream.models.matrices import floating
from benchmarks.harness import console, machine, table
from benchmarks.zoo.__main__ import use_one_thread

RESULTS = Path(__file__).parent / "results" / "growth_theta.json"
PAGE = Path(__file__).parents[1] / "docs" / "posterior.md"
SHOWN = (1000, 2000, 4000, 8000, 16_000, 50_000)
"""The rows of the table, counted in rows read."""
LOOKS = 50
NAMES = "slope", "square", "sigma"
"""The curve has the mean log score of the rows as its last column."""


class UnknownGrowth(bs.StateSpaceModel):
    constraints: ClassVar = {"square": constraints.positive, "sigma": constraints.positive}
    slope: Float[Array, ""] = eqx.field(converter=floating)
    square: Float[Array, ""] = eqx.field(converter=floating)
    sigma: Float[Array, ""] = eqx.field(converter=floating)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 10**0.5).to_event(1)

    def transition(self, x, u=None):
        mean = self.slope * x + 25 * x / (1 + x**2) + 8 * jnp.cos(1.2 * jnp.asarray(u, x.dtype))
        return dist.Normal(mean, self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(self.square * x**2, 1.0).to_event(1)


TRUTH, START = UnknownGrowth(0.5, 0.05, 10**0.5), UnknownGrowth(1.2, 0.5, 1.0)


def run(seed: int, rows: int, steps: str) -> dict:
    """What was learned, the relative distance to the truth and the curve."""
    times = np.arange(rows, dtype=np.float32)
    _, ys = TRUTH.simulate(rows, jnp.asarray(times), key=jax.random.key(seed))
    ys = np.asarray(ys)
    adam = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(1e-2)))
    settings = bs.Settings(learn_model=True, components=4)
    watched, q, key = build(START, settings, times[0], adam if steps == "adam" else None)
    learner, ends, curve = watched.learner, np.linspace(0, rows, LOOKS + 1).astype(int), []
    state = learner.init(q, times[0], key=key)
    for start, end in itertools.pairwise(ends):
        state, infos = learner.scan(state, ys[start:end], times[start:end])
        model = learner.current_model(state)
        curve.append([float(getattr(model, name)) for name in NAMES] + [float(np.nanmean(infos.log_score))])
    truth = np.array([float(getattr(TRUTH, name)) for name in NAMES])
    return {
        "learned": dict(zip(NAMES, curve[-1], strict=False)),
        "off_by": dict(zip(NAMES, np.abs(np.array(curve[-1][:-1]) / truth - 1).tolist(), strict=True)),
        "rows": ends[1:].tolist(),
        "curve": np.round(np.array(curve), 5).tolist(),
    }


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    """The table of the page: the curves of the default steps, from the smallest to the largest of the seeds."""
    seeds = list(json.loads(path.read_text())["settling"].values())

    def cell(row: int, column: int) -> str:
        found = [dict(zip(seed["rows"], seed["curve"], strict=True))[row][column] for seed in seeds]
        return f"{min(found):.3f} to {max(found):.3f}"

    rows = [[f"{row:,}".replace(",", " "), *(cell(row, column) for column in range(len(NAMES)))] for row in SHOWN]
    begin, end = "<!-- growth: begin -->\n", "<!-- growth: end -->"
    before, rest = page.read_text().split(begin)
    made = table(["rows read", "of x (0.5)", "of x² (0.05)", "σ (3.162)"], rows)
    page.write_text(f"{before}{begin}\n{made}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_theta", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the data sets; the others stay")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--render", action="store_true", help="only write the table from the results")
    parser.add_argument("--steps", choices=["settling", "adam"], default="settling")
    arguments = parser.parse_args()
    use_one_thread()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in [] if arguments.render else arguments.seeds:
        found = run(seed, arguments.rows, arguments.steps)
        results.setdefault(arguments.steps, {})[str(seed)] = found
        console.print(f"seed {seed}: {found['learned']}, off by {found['off_by']}", style="dim")
        results |= {"command": "python -m benchmarks.growth_theta", "machine": machine()}
        RESULTS.write_text(json.dumps(results) + "\n")
    render()


if __name__ == "__main__":
    main()
