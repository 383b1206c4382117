"""The methods that are compared, and how one is run and timed on a model of the zoo."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import gaussian_filters, guided
from benchmarks.zoo.case import Case, Data, Posterior


class Entry(NamedTuple):
    run: Callable[..., Posterior]
    double: bool
    """Whether it computes in float64."""
    prepare: Callable[..., Any] | None = None
    """What is made once, and then comes first among the arguments of `run`. It is made of the model, the rows, and
    others to learn from."""
    learning_rows: int = 0
    """How many of those there are."""


METHODS = {
    "ekf": Entry(gaussian_filters.ekf, double=True),
    "ukf": Entry(gaussian_filters.ukf, double=True),
    "guided": Entry(guided.filter_and_smooth, double=False, prepare=guided.prepare),
    "learned": Entry(guided.filter_and_smooth, double=False, prepare=guided.learn, learning_rows=5000),
}
UNLEARNED = [name for name, entry in METHODS.items() if not entry.learning_rows]
LEARNING_SEED = 1000
"""Added to a data set's seed for the rows to learn from."""


class Timed(NamedTuple):
    posterior: Posterior
    compile_seconds: float
    """What preparing and the first call took beyond the second, in seconds of the processor."""
    microseconds: float
    """Of the second call, for each row."""


def prepared(entry: Entry, model: Any, data: Data, others: Data | None) -> Callable[[], Posterior]:
    """The method on these data, with what is made once already made."""
    made = [] if entry.prepare is None else [entry.prepare(model, data, others)]
    rows = jax.tree.map(jnp.asarray, (data.ys, data.us))
    return lambda: entry.run(*made, model, *rows)


def run(entry: Entry, case: Case, data: Data, seed: int) -> Timed:
    """Runs a method twice on data of a model, in the method's precision."""
    others = case.simulate(seed + LEARNING_SEED, entry.learning_rows) if entry.learning_rows else None
    with jax.enable_x64(entry.double):
        began = time.process_time()
        call = prepared(entry, case.build(), data, others)
        taken = [time.process_time() - began, 0.0]
        for i in range(2):
            began = time.process_time()
            found = jax.block_until_ready(call())
            taken[i] += time.process_time() - began
    posterior = Posterior(*(np.asarray(part, float) for part in found))
    return Timed(posterior, max(taken[0] - taken[1], 0.0), 1e6 * taken[1] / len(data.ys))


def finite(posterior: Posterior) -> bool:
    return all(bool(np.isfinite(part).all()) for part in posterior)
