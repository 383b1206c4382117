"""What one streamed observation costs, as a multiple of the one product that cannot be avoided.

    python benchmarks/step.py

Chaotic RNN, d = 10, N = 100, the default family. The limit is W @ G with one read and one write of G. All of them
take turns in one process on one core, and medians over the rounds are divided: the ratio is what to look at.
"""

import os

os.environ["NPROC"] = "1"

import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from backstream.estimators import BackwardSampling, FixedLag, MomentCorrected, RecursiveScore, Renewal, Truncated
from backstream.estimators.base import flatten
from backstream.families import Innovation
from backstream.models import ChaoticRNN

D, N, STEPS, ROUNDS = 10, 100, 100, 7
KEY = jax.random.key(0)

ESTIMATORS = {
    "all weights, Forward()": RecursiveScore(N, objective=Renewal(0.8)),
    "all weights, Truncated(2)": RecursiveScore(N, sensitivity=Truncated(2), objective=Renewal(0.8)),
    "moment-corrected, Forward()": RecursiveScore(N, MomentCorrected(), objective=Renewal(0.8)),
    "BackwardSampling(2), Forward()": RecursiveScore(N, BackwardSampling(2), objective=Renewal(0.8)),
    "FixedLag(8, 4 trajectories)": FixedLag(8, 4),
}


def streamed(estimator, p, q, ys):
    def run(ys, key):
        carry, _ = estimator.init(p, q, ys[0], key=key)

        def step(carry, scanned):
            t, y = scanned
            carry, estimate = estimator.step(p, q, carry, y, key=jax.random.fold_in(key, t))
            return carry, flatten(estimate.increment.gradient)[0].sum()

        return jax.lax.scan(step, carry, (jnp.arange(1, len(ys)), ys[1:]))

    compiled = jax.jit(run).lower(ys, KEY).compile()
    return lambda: jax.block_until_ready(compiled(ys, KEY))


def limit(size):
    W = jax.nn.softmax(jax.random.normal(KEY, (N, N)))
    G = jax.random.normal(KEY, (N, size))
    run = jax.jit(lambda G: jax.lax.fori_loop(0, STEPS, lambda _, G: W @ G + 1e-3 * G, G))
    return lambda: jax.block_until_ready(run(G))


def main() -> None:
    p = ChaoticRNN.random(D, key=KEY)
    q = Innovation.from_model(p, width=100, key=KEY)
    ys = p.simulate(STEPS + 1, key=KEY)[1]
    size = flatten(q)[0].size
    runs = {"limit": limit(size)} | {name: streamed(e, p, q, ys) for name, e in ESTIMATORS.items()}
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start) / STEPS)
    table = Table(title=f"One observation: d = {D}, N = {N}, P = {size}, one core")
    for column in ("", "ms", "spread", "÷ limit"):
        table.add_column(column, justify="left" if not column else "right")
    base = np.median(times["limit"])
    for name, values in times.items():
        low, high = np.quantile(values, [0.25, 0.75])
        table.add_row(name, f"{np.median(values):.3f}", f"{low:.3f}–{high:.3f}", f"{np.median(values) / base:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
