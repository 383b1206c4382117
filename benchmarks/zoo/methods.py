"""The methods that are compared, and how one is run and timed on a model of the zoo."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import gaussian_filters
from benchmarks.zoo.case import Case, Data, Method, Posterior


class Entry(NamedTuple):
    run: Method
    double: bool
    """Whether it computes in float64."""


METHODS = {
    "ekf": Entry(gaussian_filters.ekf, double=True),
    "ukf": Entry(gaussian_filters.ukf, double=True),
}


class Timed(NamedTuple):
    posterior: Posterior
    compile_seconds: float
    """What the first call took beyond the second, in seconds of the processor."""
    microseconds: float
    """Of the second call, for each row."""


def run(entry: Entry, case: Case, data: Data) -> Timed:
    """Runs a method twice on data of a model, in the method's precision."""
    with jax.enable_x64(entry.double):
        model, rows = case.build(), jax.tree.map(jnp.asarray, (data.ys, data.us))
        taken: list[float] = []
        for _ in range(2):
            began = time.process_time()
            found = jax.block_until_ready(entry.run(model, *rows))
            taken.append(time.process_time() - began)
    posterior = Posterior(*(np.asarray(part, float) for part in found))
    return Timed(posterior, max(taken[0] - taken[1], 0.0), 1e6 * taken[1] / len(data.ys))


def finite(posterior: Posterior) -> bool:
    return all(bool(np.isfinite(part).all()) for part in posterior)
