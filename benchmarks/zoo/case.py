"""What a model of the zoo consists of: the model, its data and the reference that methods are compared with."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from backstream import StateSpaceModel


class Posterior(NamedTuple):
    """What a filter and smoother says of T rows of data. All are NumPy or JAX arrays."""

    filtered_mean: Any  # (T, d)
    filtered_cov: Any  # (T, d, d)
    smoothed_mean: Any  # (T, d)
    smoothed_cov: Any  # (T, d, d)
    log_score: Any  # (T,): log p(y_t | y_0, …, y_{t-1})


Method = Callable[[StateSpaceModel, Any, Any], Posterior]
"""`run(model, ys, us)`, with `us` None where the model takes no inputs."""


class Data(NamedTuple):
    """Simulated rows, in float64."""

    states: np.ndarray  # (T, d)
    ys: np.ndarray  # (T, dy)
    us: np.ndarray | None  # (T, du)


class Reference(Protocol):
    """How the exact posterior is computed."""

    name: str

    def run(self, model: StateSpaceModel, data: Data, seed: int) -> tuple[Posterior, Posterior | None, str]:
        """The posterior, the same from half the effort (None where it is exact) and the effort in words."""
        ...


@dataclass(frozen=True)
class Case:
    """A model of the zoo.

    `build` makes the model in JAX's current default precision. `inputs` makes the rows of inputs from a seed and a
    number of rows. `raw` turns observations and inputs into the states that they show directly, (T, d), NaN where they
    show none.
    """

    name: str
    field: str
    about: str
    build: Callable[[], StateSpaceModel]
    reference: Reference | None
    rows: int = 1000
    inputs: Callable[[int, int], np.ndarray] | None = None
    raw: Callable[[np.ndarray, np.ndarray | None], np.ndarray] | None = None

    def simulate(self, seed: int, rows: int | None = None) -> Data:
        """States and observations of the model, computed in float64: as many rows as the case has, unless given."""
        rows = self.rows if rows is None else rows
        us = None if self.inputs is None else np.asarray(self.inputs(seed, rows), float)
        with jax.enable_x64(True):
            key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(self.name.encode()))
            states, ys = jax.jit(lambda us: self.build().simulate(rows, us, key=key))(us)
        return Data(np.asarray(states), np.asarray(ys), us)


def seen_as(*states: int, dim: int) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
    """Column j of the observation shows state `states[j]`, of `dim` states."""

    def raw(ys, us):
        shown = np.full((len(ys), dim), np.nan)
        shown[:, list(states)] = ys[:, : len(states)]
        return shown

    return raw
