"""Linear-Gaussian, offline, the setting of the paper's Fig. 1: d = 10, T = 500, N = 2, 1000 epochs.

    python -m experiments.linear_offline

How far below the exact log-likelihood per step the learned q ends, by its closed-form ELBO: with the exact gradient,
with reparameterised backward trajectories and with the recursive score estimator.
"""

import time

import jax
import numpy as np
import optax

from backstream.estimators import BackwardTrajectories, Exact, RecursiveScore, Scan
from backstream.families import Kalman
from backstream.learning import fit
from backstream.models import LinearGaussian

from .harness import Results, console

SETTINGS = {"dim": 10, "length": 500, "particles": 2, "epochs": 1000, "rate": 1e-2, "seeds": [0, 1, 2]}
N = SETTINGS["particles"]
ESTIMATORS = {
    "exact": Exact(),
    "trajectories": BackwardTrajectories(N),
    "score": Scan(RecursiveScore(N)),
}


def run(name: str, seed: int, epochs: int | None = None) -> dict:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(2), seed), 4)
    p = LinearGaussian.random(SETTINGS["dim"], SETTINGS["dim"], key=keys[0])
    ys = p.simulate(SETTINGS["length"], key=keys[1])[1]

    def exact(q):
        return float(Exact()(p, q, ys, key=keys[3]).elbo) / len(ys)

    began = time.perf_counter()
    fitted = fit(
        p,
        Kalman.random(p, key=keys[2]),
        ys,
        estimator=ESTIMATORS[name],
        optimiser=optax.adam(SETTINGS["rate"]),
        num_epochs=SETTINGS["epochs"] if epochs is None else epochs,
        key=keys[3],
    )
    return {
        "gap": exact(Kalman.from_model(p)) - exact(fitted.q),
        "refused": int(fitted.refused),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    results = Results("linear_offline", SETTINGS)
    for name in ESTIMATORS:
        gaps = [
            results.run(f"{name}, seed {seed}", lambda name=name, seed=seed: run(name, seed))["gap"]
            for seed in SETTINGS["seeds"]
        ]
        console.print(f"{name}: {np.mean(gaps):.4f} nats per step short of the log-likelihood, worst {max(gaps):.4f}")


if __name__ == "__main__":
    main()
