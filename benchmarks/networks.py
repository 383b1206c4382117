"""The paper's networks of 5 to 100 units, with nothing learned: `python -m benchmarks.networks`.

Errors are root mean squared over rows and units. No method can fall below the bound, where each unit is filtered with
the paths of all others known (`benchmarks/zoo/references/bound.py`). With ten units the sequences are those that Table
3 of the paper is judged on, where a particle filter and smoother was run too, and the default posterior also reads the
table's stream. The emission has no variance: the extended Kalman filter is given one, of several the one with the
smallest filtering error.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from backstream import StateSpaceModel
from backstream.metrics import delta, rmse
from backstream.models import ChaoticRNN
from benchmarks.harness import console, machine, table
from benchmarks.zoo import gaussian_filters, guided
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.references.bound import bound
from benchmarks.zoo.scores import coverage

RESULTS = Path(__file__).parent / "results" / "networks.json"
TABLE_3 = Path(__file__).parents[1] / "reproduction" / "results" / "table3.json"
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
NOISES = (0.13, 0.2, 0.3, 0.5)
"""Standard deviations that the extended Kalman filter may take for the emission's."""
TABLE_UNITS = 10


class Size(NamedTuple):
    """How much is run with so many units."""

    seeds: int
    rows: int
    stream: int = 0
    """Rows of the stream, which is read where there are any."""


SIZES = {5: Size(3, 1000), TABLE_UNITS: Size(5, 1000, 100_002), 20: Size(3, 1000), 50: Size(2, 500), 100: Size(2, 300)}


class NormalNoise(StateSpaceModel):
    """The network with normal noise of the emission."""

    network: ChaoticRNN
    scale: jax.Array

    def prior(self, u=None):
        return self.network.prior()

    def transition(self, x, u=None):
        return self.network.transition(x)

    def emission(self, x, u=None):
        return dist.Normal(x, self.scale).to_event(1)


def sequences(dim: int, seed: int) -> tuple[ChaoticRNN, Data, Data | None]:
    """The network, its fresh sequence and its stream, drawn as for Table 3."""
    size = SIZES[dim]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), 5)
    network = ChaoticRNN.random(dim, key=keys[0])

    def drawn(rows, key):
        return Data(*(np.asarray(part, float) for part in network.simulate(rows, key=key)), None)

    stream = drawn(size.stream, keys[1]) if size.stream else None
    return network, drawn(size.rows, jax.random.split(keys[2])[0]), stream


def errors(found: Posterior, data: Data) -> dict[str, list[float]]:
    """Errors, the paper's too, and what 90 % bands cover, in filtering and smoothing."""
    laws = (found.filtered_mean, found.filtered_cov), (found.smoothed_mean, found.smoothed_cov)
    pairs = [(np.asarray(mean, float), np.asarray(cov, float)) for mean, cov in laws]
    return {
        "error": [rmse(mean, data.states) for mean, _ in pairs],
        "delta": [delta(mean, data.states) for mean, _ in pairs],
        "bands": [coverage(mean, cov, data.states) for mean, cov in pairs],
    }


def extended(network: ChaoticRNN, data: Data) -> Posterior:
    """The extended Kalman filter with the variance of the emission that suits it best."""
    ys = jnp.asarray(data.ys)
    found = [gaussian_filters.ekf(NormalNoise(network, jnp.asarray(noise)), ys, None) for noise in NOISES]
    return min(found, key=lambda part: rmse(part.filtered_mean, data.states))


def run(dim: int, seed: int) -> dict[str, Any]:
    network, data, stream = sequences(dim, seed)
    q = guided.prepare(network, data, None)

    def own(data):
        return errors(guided.filter_and_smooth(q, network, jnp.asarray(data.ys, jnp.float32), None), data)

    found: dict[str, Any] = {"rows": len(data.ys), "raw": rmse(data.ys, data.states), "guided": own(data)}
    for name, spacing in (("bound", 0.025), ("bound_half", 0.05)):
        found[name] = [rmse(mean, data.states) for mean in bound(network, data.states, data.ys, spacing)]
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jnp.asarray(leaf, float) if eqx.is_array(leaf) else leaf, network)
        found["ekf"] = errors(extended(double, data), data)
    return found | ({"stream": own(stream) | {"rows": len(stream.ys)}} if stream is not None else {})


def markdown(networks: dict[str, Any]) -> str:
    """A line for each number of units: means over the seeds, and the worst of them against the bound."""

    def pair(values, form="{:.4f} / {:.4f}"):
        return form.format(*values)

    rows = []
    for dim, parts in networks.items():
        each = list(parts.values())
        bands = np.array([part["guided"]["bands"] for part in each])
        rows.append(
            [
                f"{dim}; {len(each)}",
                f"{np.mean([part['raw'] for part in each]):.4f}",
                *(pair(np.mean([part[name]["error"] for part in each], 0)) for name in ("ekf", "guided")),
                pair(np.mean([part["bound"] for part in each], 0)),
                pair(
                    np.max([np.divide(part["guided"]["error"], part["bound"]) for part in each], 0), "{:.3f} / {:.3f}"
                ),
                " / ".join(f"{low:.1%} to {high:.1%}" for low, high in zip(bands.min(0), bands.max(0), strict=True)),
            ]
        )
    return table(
        ["units; seeds", "observation", "ekf", "guided", "bound", "guided ÷ bound, worst", "guided: bands"], rows
    )


def against_table_3(parts: dict[str, Any], path: Path = TABLE_3) -> str:
    """For each seed with ten units, in the paper's error: the default posterior, and that of particles in Table 3."""
    limits = json.loads(path.read_text())["parts"]
    rows = []
    for seed, part in parts.items():
        limit = [limits[f"limit, seed {seed}"][kind] for kind in ("filtering", "smoothing")]
        ratio = np.divide(part["guided"]["delta"], limit)
        bands = part["stream"]["bands"]
        cells = [part["guided"]["delta"], limit, ratio, part["stream"]["delta"]]
        forms = ["{:.4f} / {:.4f}", "{:.4f} / {:.4f}", "{:.3f} / {:.3f}", "{:.4f} / {:.4f}"]
        rows.append(
            [
                seed,
                *(form.format(*cell) for form, cell in zip(forms, cells, strict=True)),
                "{:.1%} / {:.1%}".format(*bands),
            ]
        )
    return table(["seed", "guided", "particles", "guided ÷ particles", "guided, stream", "its bands"], rows)


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    networks = json.loads(path.read_text())["networks"]
    texts = {"networks": markdown(networks), "table 3": against_table_3(networks[str(TABLE_UNITS)])}
    for name, text in texts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = page.read_text().split(begin)
        page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    parser.add_argument("units", nargs="*", type=int, help="numbers of units; all of them if none is given")
    parser.add_argument("--render", action="store_true", help="only write the tables from the results")
    arguments = parser.parse_args()
    use_one_thread()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"networks": {}}
    for dim in [] if arguments.render else arguments.units or SIZES:
        parts = content["networks"].setdefault(str(dim), {})
        for seed in range(SIZES[dim].seeds):
            parts[str(seed)] = rounded(run(dim, seed))
            console.print(f"{dim} units, seed {seed}: {json.dumps(parts[str(seed)])}", style="dim")
            head = {"command": "python -m benchmarks.networks", "machine": machine()}
            RESULTS.write_text(json.dumps(head | content, indent=1) + "\n")
        jax.clear_caches()
    render()


if __name__ == "__main__":
    main()
