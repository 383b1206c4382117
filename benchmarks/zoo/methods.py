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
    """What is made once of model, observations and inputs, and then comes first among the arguments of `run`."""


METHODS = {
    "ekf": Entry(gaussian_filters.ekf, double=True),
    "ukf": Entry(gaussian_filters.ukf, double=True),
    "guided": Entry(guided.filter_and_smooth, double=False, prepare=guided.prepare),
}


class Timed(NamedTuple):
    posterior: Posterior
    compile_seconds: float
    """What preparing and the first call took beyond the second, in seconds of the processor."""
    microseconds: float
    """Of the second call, for each row."""


def prepared(entry: Entry, model: Any, ys: Any, us: Any) -> Callable[[], Posterior]:
    """The method on these data, with what is made once already made."""
    made = [] if entry.prepare is None else [entry.prepare(model, ys, us)]
    return lambda: entry.run(*made, model, ys, us)


def run(entry: Entry, case: Case, data: Data) -> Timed:
    """Runs a method twice on data of a model, in the method's precision."""
    with jax.enable_x64(entry.double):
        model, rows = case.build(), jax.tree.map(jnp.asarray, (data.ys, data.us))
        began = time.process_time()
        call = prepared(entry, model, *rows)
        taken = [time.process_time() - began, 0.0]
        for i in range(2):
            began = time.process_time()
            found = jax.block_until_ready(call())
            taken[i] += time.process_time() - began
    posterior = Posterior(*(np.asarray(part, float) for part in found))
    return Timed(posterior, max(taken[0] - taken[1], 0.0), 1e6 * taken[1] / len(data.ys))


def finite(posterior: Posterior) -> bool:
    return all(bool(np.isfinite(part).all()) for part in posterior)
