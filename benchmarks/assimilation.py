"""Settings of data assimilation with published errors: `python -m benchmarks.assimilation`.

The settings and the published numbers are those of DAPPER (nansencenter/DAPPER, revision ae89b30, the files named below
in `dapper/mods`). The truth has no process noise; the model has a little, of standard deviation q, which plays the part
of inflation. Of a few values of q the one with the best log score is taken: that needs no truth. The method `online`
starts from one value, the same in all settings, and learns a factor of it from the rows that it filters, each read
once. Row 0 is at time 0 and is seen too, which it is not there; it is within the burn-in.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import Settings, StateSpaceModel
from backstream.learning import build
from benchmarks.harness import console, machine, table
from benchmarks.zoo import methods
from benchmarks.zoo.__main__ import use_one_thread
from benchmarks.zoo.case import Data
from benchmarks.zoo.comparison import rounded
from benchmarks.zoo.models import lorenz63_three, lorenz96_laplace
from benchmarks.zoo.models.lorenz63_three import runge_kutta

RESULTS = Path(__file__).parent / "results" / "assimilation.json"
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"


class Chaotic(StateSpaceModel):
    """A flow, every `stride`-th coordinate seen every `steps` steps."""

    velocity: Callable[[Array], Array] = eqx.field(static=True)
    noise: Callable[[Array], dist.Distribution] = eqx.field(static=True)
    start: Array
    start_spread: float = eqx.field(static=True)
    step: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    q: Array

    def prior(self, u=None):
        return dist.Normal(self.start, self.start_spread).to_event(1)

    def transition(self, x, u=None):
        def advance(x, _):
            return runge_kutta(self.velocity, x, self.step), None

        return dist.Normal(jax.lax.scan(advance, x, length=self.steps)[0], self.q).to_event(1)

    def emission(self, x, u=None):
        return self.noise(x[:: self.stride]).to_event(1)


@dataclass(frozen=True)
class Setting:
    """A published setting: the model for a given q, how long it is run, and what others reach."""

    build: Callable[[Array], Chaotic]
    rows: int
    burn_in: int
    published: str
    noises: tuple[float, ...]


def lorenz63(steps: int, variance: float) -> Callable[[Array], Chaotic]:
    def build(q):
        start = jnp.array([1.509, -1.531, 25.46])
        noise = normal(variance)
        return Chaotic(lorenz63_three.velocity, noise, start, 2**0.5, 0.01, steps, 1, q)

    return build


def lorenz96(dim: int, noise, first: float = 0.0, steps: int = 1, stride: int = 2) -> Callable[[Array], Chaotic]:
    def build(q):
        start = jnp.zeros(dim).at[0].set(first)
        return Chaotic(lorenz96_laplace.velocity, noise, start, 0.001**0.5, 0.05, steps, stride, q)

    return build


def normal(variance: float):
    return lambda mean: dist.Normal(mean, variance**0.5)


def laplace(variance: float):
    return lambda mean: dist.Laplace(mean, (variance / 2) ** 0.5)


START_NOISE = 0.1
ONLINE = "online"
METHODS = [*methods.UNLEARNED, ONLINE]
LORENZ63_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)
SETTINGS = {
    "Lorenz63/sakov2012": Setting(
        lorenz63(25, 2.0), 1001, 65, "EKF .92, EnKF-N(10) .54, iEnKS(10) .31, PF(4000) .27", LORENZ63_NOISES
    ),
    "Lorenz63/anderson2010rhf": Setting(lorenz63(12, 8.0), 1001, 134, "EnKF-N(20) .87, RHF(50) .94", LORENZ63_NOISES),
    "Lorenz96/sakov2008": Setting(
        lorenz96(40, normal(1.0), first=1.0, stride=1),
        1001,
        401,
        "EKF .24, EnKF(24) .18, 3D-Var .41, PF(3000) .26",
        (0.003, 0.01, 0.02, 0.05, 0.1),
    ),
    "Lorenz96/bocquet2010_m40": Setting(
        lorenz96(40, normal(2.25)),
        1281,
        401,
        "EnKF-N(24) .58, iEnKS(19) .45, PF(10⁴) .57",
        (0.02, 0.05, 0.1, 0.2, 0.5),
    ),
    "Lorenz96/todter2015": Setting(
        lorenz96(80, laplace(1.0), steps=2), 1501, 201, "LETKF(80) .43, LNETF(80) .45", (0.02, 0.05, 0.1, 0.2)
    ),
}


def analysis_error(mean: np.ndarray, states: np.ndarray, burn_in: int) -> float:
    """The mean over time, after the burn-in, of the root mean square over the coordinates: DAPPER's `rmse.a`."""
    return float(np.sqrt(((mean - states) ** 2).mean(1))[burn_in:].mean())


def simulate(setting: Setting, rows: int, seed: int) -> Data:
    """States and observations without process noise."""
    with jax.enable_x64(True):
        truth = setting.build(jnp.array(0.0))
        states, ys = eqx.filter_jit(truth.simulate)(rows, key=jax.random.key(seed))
    return Data(np.asarray(states), np.asarray(ys), None)


def run(name: str, method: str, seed: int) -> dict[str, Any]:
    """Errors and log score of a method for each q, and which q the log score chooses."""
    setting = SETTINGS[name]
    data, found = simulate(setting, setting.rows, seed), {}
    if method == ONLINE:
        return learn_online(setting, data)
    entry = methods.METHODS[method]
    for q in setting.noises:
        with jax.enable_x64(entry.double):
            posterior = methods.prepared(entry, setting.build(jnp.array(q)), data, None)()
        score = float(np.asarray(posterior.log_score)[setting.burn_in :].mean())
        means = (np.asarray(part) for part in (posterior.filtered_mean, posterior.smoothed_mean))
        errors = [analysis_error(mean, data.states, setting.burn_in) for mean in means]
        found[str(q)] = {"filtering": errors[0], "smoothing": errors[1], "log_score": score}
    usable = {q: part for q, part in found.items() if np.isfinite(part["log_score"])}
    return {"by_q": found, "chosen": max(usable, key=lambda q: usable[q]["log_score"]) if usable else None}


def learn_online(setting: Setting, data: Data) -> dict[str, Any]:
    """What the default settings report of each row, and the q that was learned in the end."""
    watched, q, key = build(setting.build(jnp.array(START_NOISE)), Settings())
    state, infos = watched.learner.scan(watched.learner.init(q, key=key), data.ys)
    return {
        "filtering": analysis_error(infos.mean, data.states, setting.burn_in),
        "log_score": float(infos.log_score[setting.burn_in :].mean()),
        "noise": START_NOISE * float(jnp.exp(state.average.log_inflation / 2)),
        "advantage": float(state.unlearned.advantage),
    }


def render(path: Path = RESULTS, page: Path = PAGE) -> None:
    """The table of the page: filtering and smoothing error at the chosen q, the worst of the seeds."""

    def cell(seeds, method):
        if method == ONLINE:
            return "{:.3f}; {:.3f} to {:.3f}".format(
                max(part["filtering"] for part in seeds.values()),
                *(end(part["noise"] for part in seeds.values()) for end in (min, max)),
            )
        if any(part["chosen"] is None for part in seeds.values()):
            return "not finite"
        chosen = [part["by_q"][part["chosen"]] for part in seeds.values()]
        return " / ".join(f"{max(part[kind] for part in chosen):.3f}" for kind in ("filtering", "smoothing"))

    results = json.loads(path.read_text())["settings"]
    rows = [
        [name, setting.published, *(cell(results[name][way], way) if way in results[name] else "" for way in METHODS)]
        for name, setting in SETTINGS.items()
        if name in results
    ]
    begin, end = "<!-- assimilation: begin -->\n", "<!-- assimilation: end -->"
    before, rest = page.read_text().split(begin)
    text = table(["setting", "published, filtering", *METHODS[:-1], "online; q in the end"], rows)
    page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assimilation", description=__doc__)
    parser.add_argument("settings", nargs="*", help="names of settings; all of them if none is given")
    parser.add_argument("--methods", default=",".join(METHODS), help="names of methods, with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="how many data sets of each setting")
    parser.add_argument("--render", action="store_true", help="only write the table from the results")
    arguments = parser.parse_args()
    use_one_thread()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"settings": {}}
    for name in [] if arguments.render else arguments.settings or SETTINGS:
        for method in arguments.methods.split(","):
            parts = content["settings"].setdefault(name, {}).setdefault(method, {})
            for seed in range(arguments.seeds):
                parts[str(seed)] = run(name, method, seed)
                console.print(f"{name}, {method}, seed {seed}: {json.dumps(rounded(parts[str(seed)]))}", style="dim")
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            head = {"command": "python -m benchmarks.assimilation", "machine": machine()}
            RESULTS.write_text(json.dumps(rounded(head | content), indent=1) + "\n")
        jax.clear_caches()
    render()


if __name__ == "__main__":
    main()
