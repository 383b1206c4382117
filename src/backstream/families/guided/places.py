"""States and inputs that rows have reached: where a plan looks, beside the surroundings of the prior."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

REACH, NUM_POINTS = 2.0, 8
"""How far around the filter's mean, in its standard deviations, and at how many states."""


class Place(NamedTuple):
    """The filter at one row, with the inputs of that row."""

    mean: np.ndarray
    std: np.ndarray
    inputs: Any

    def states(self) -> np.ndarray:
        return np.asarray(self.mean, float) + points(len(self.mean)) * np.asarray(self.std, float)

    def record(self) -> list[Any]:
        """As a checkpoint has it."""
        return [None if leaf is None else np.asarray(leaf).tolist() for leaf in self]

    @classmethod
    def restored(cls, record: Sequence[Any], dtype) -> "Place":
        mean, std, inputs = record
        return cls(
            np.asarray(mean, dtype), np.asarray(std, dtype), None if inputs is None else np.asarray(inputs, dtype)
        )


def points(d: int) -> np.ndarray:
    """Directions from a mean to states around it, in standard deviations: [n, d]."""
    return REACH * np.random.default_rng(3).standard_normal((NUM_POINTS, d))
