"""Networks as the flow of a model, learned from a stream: `python -m benchmarks.theta.networks`.

Errors are those of the mean prediction from true states of a fresh path, in the columns' space, over those of the true
flow: 1 would be the true flow itself.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

import backstream as bs
from backstream.learning import build
from benchmarks.theta.report import rounded
from benchmarks.zoo.__main__ import use_one_thread

RESULTS = Path(__file__).parents[1] / "results" / "learning_networks.json"
ROWS, SEEDS = 8_000, (0,)


class Flow(bs.StateSpaceModel):
    """x' = x + dt · speed · net(x / size) + noise, of which y = C x + noise is seen."""

    constraints: ClassVar = {"sigma": constraints.positive, "noise": constraints.positive}
    net: Any
    sigma: Array
    noise: Array
    C: Array
    dt: float = eqx.field(static=True)
    size: float = eqx.field(static=True)
    speed: float = eqx.field(static=True)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(len(self.C.T)), 2 * self.size).to_event(1)

    def mean(self, x):
        return x + self.dt * self.speed * self.net(x / self.size)

    def transition(self, x, u=None):
        return dist.Normal(self.mean(x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(self.C @ x, self.noise).to_event(1)


class System(NamedTuple):
    flow: Callable[[Array], Array]
    columns: np.ndarray
    width: int
    dt: float
    size: float
    """Of the states, about: by it they are divided before the network reads them."""
    speed: float
    sigma: float
    noise: float
    many: int
    """Steps of the longer prediction."""

    def truth(self) -> Flow:
        return self._model(lambda x: self.flow(x * self.size) / self.speed, self.sigma, self.noise)

    def start(self, seed: int) -> Flow:
        """An untrained network, and noises five and two times as large."""
        d = self.columns.shape[1]
        net = eqx.nn.MLP(d, d, self.width, 1, activation=jnp.tanh, key=jax.random.key(seed))
        return self._model(net, 5 * self.sigma, 2 * self.noise)

    def _model(self, net, sigma, noise) -> Flow:
        return Flow(net, jnp.array(sigma), jnp.array(noise), jnp.asarray(self.columns), self.dt, self.size, self.speed)


def van_der_pol(x: Array) -> Array:
    return jnp.array([x[1], (1 - x[0] ** 2) * x[1] - x[0]])


COLUMNS = np.random.default_rng(0).normal(size=(10, 2)).astype("f")
SYSTEMS = {
    "Van der Pol": System(van_der_pol, COLUMNS, 16, 0.1, 2.0, 2.0, 0.1, 0.3, 50),
}


@eqx.filter_jit
def errors(p: Flow, truth: Flow, xs: Array, many: int) -> tuple[Array, Array]:
    """After one step and after many, of a model over those of the truth."""

    def root(p, steps):
        states = xs[:-steps]
        ahead = jax.lax.fori_loop(0, steps, lambda _, x: jax.vmap(p.mean)(x), states)
        return jnp.sqrt((((xs[steps:] - ahead) @ p.C.T) ** 2).mean())

    return root(p, 1) / root(truth, 1), root(p, many) / root(truth, many)


def path(p: Flow, x: Array, steps: int) -> np.ndarray:
    """Without noise, from one state."""
    return np.asarray(jax.lax.scan(lambda x, _: (p.mean(x), x), x, None, steps)[1])


def run(name: str, seeds: tuple[int, ...], rows: int) -> dict[str, Any]:
    system, found = SYSTEMS[name], {}
    truth = system.truth()
    paths = (truth.simulate(5000, key=jax.random.key(999 + i))[0][500:] for i in range(20))
    xs = next(xs for xs in paths if jnp.isfinite(xs).all())
    for seed in seeds:
        ys = np.asarray(truth.simulate(rows, key=jax.random.key(100 + seed))[1])
        watched, q, key = build(system.start(seed), bs.Settings(learn_parameters=("net", "sigma", "noise")))
        learner = watched.learner
        state = learner.init(q, key=key)
        state, _ = learner.scan(state, ys[:512])
        told, done = [], 512
        for end in np.linspace(done, rows, 9).astype(int)[1:]:
            began = time.process_time()
            state, _ = learner.scan(state, ys[done:end])
            spent, count, done = time.process_time() - began, end - done, end
            p = learner.current_model(state)
            one, many = map(float, errors(p, truth, xs, system.many))
            told.append([int(end), one, many, float(p.sigma) / system.sigma, float(p.noise) / system.noise])
            print(name, seed, *(f"{value:.4g}" for value in told[-1]), f"{1e6 * spent / count:.0f} µs", flush=True)
        found[str(seed)] = {
            "told": told,
            "settled": bool(state.model_optimizer.settled),
            "microseconds": 1e6 * spent / count,
            "path": path(p, xs[0], 1500)[::2].tolist() if seed == seeds[0] else None,
        }
    found["truth"] = path(truth, xs[0], 1500)[::2].tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", help="Default: all.")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    use_one_thread()
    for name in arguments.systems or SYSTEMS:
        content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        content[name] = run(name, SEEDS, arguments.rows)
        RESULTS.write_text(json.dumps(rounded(content)) + "\n")


if __name__ == "__main__":
    main()
