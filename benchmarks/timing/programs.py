"""Programs that are compiled once and timed in turns."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backstream._jax.compiling import compiler_options
from backstream.estimators.base import flatten
from backstream.families import Conjugate
from backstream.models import ChaoticRNN
from benchmarks.harness import in_turns
from reproduction.version_0_1.innovation import Innovation

LIMIT = "W @ G and one read and write of G"
KEY = jax.random.key(0)


class Program:
    """Compiled once, with what that took and the memory that it needs."""

    def __init__(self, function: Callable, *arguments: Any):
        lowered = jax.jit(function).lower(*arguments)
        began = time.process_time()
        self.compiled = lowered.compile(compiler_options=compiler_options())
        self.seconds = time.process_time() - began
        sizes = self.compiled.memory_analysis()
        self.megabytes = (sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes) / 1e6
        self.arguments = arguments

    def __call__(self) -> Any:
        return self.compiled(*self.arguments)


def compared(runs: dict[str, Callable[[], Any]], rounds: int, each: float = 1.0) -> dict[str, dict[str, float]]:
    """Processor milliseconds of each, divided by `each`: the median of as many rounds, and quartiles."""
    found = {}
    for name, values in in_turns(runs, rounds).items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]) / each
        found[name] = {"ms": float(middle), "low": float(low), "high": float(high)}
        if isinstance(run := runs[name], Program):
            found[name] |= {"compile_s": round(run.seconds, 2), "megabytes": round(run.megabytes, 2)}
    return found


def chaotic(dim: int, width: int, family: str = "Innovation"):
    p = ChaoticRNN.random(dim, key=KEY)
    if family == "Conjugate":
        return p, Conjugate.create(dim, dim, width, key=KEY)
    return p, Innovation.from_model(p, width, key=KEY)


def streamed(estimator, p, q, steps: int) -> Program:
    """As many observations, in one scan, with λ an argument of the program."""
    lam, rebuild = flatten(q)
    ys = p.simulate(steps, key=KEY)[1]

    def run(lam, ys):
        q = rebuild(lam)

        def step(carry, scanned):
            t, y = scanned
            carry, estimate = estimator.step(p, q, carry, y, key=jax.random.fold_in(KEY, t))
            return carry, flatten(estimate.increment.gradient)[0].sum()

        return jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))[1]

    return Program(run, lam, ys)


def limit(N: int, P: int, steps: int) -> Program:
    W = jax.nn.softmax(jax.random.normal(KEY, (N, N)))
    G = jax.random.normal(KEY, (N, P))
    return Program(lambda W, G: jax.lax.fori_loop(0, steps, lambda _, G: W @ G + 1e-3 * G, G), W, G)


def gradient(estimator, p, q, ys) -> Program:
    lam, rebuild = flatten(q)
    return Program(lambda lam, ys: flatten(estimator(p, rebuild(lam), ys, key=KEY).gradient)[0], lam, ys)
