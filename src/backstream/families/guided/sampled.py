"""A function of the state that is known at several states, with several inputs: is it constant, affine, or neither?"""

import warnings
from typing import NamedTuple

import numpy as np

FEWEST = 4
"""States at which a function must be known, with the same inputs, before anything is concluded."""


class Sampled(NamedTuple):
    values: np.ndarray
    """[inputs, states, c]"""
    slopes: np.ndarray
    """[inputs, states, c, d], per standard deviation of the states."""
    states: np.ndarray
    """[states, d], in standard deviations from the prior mean."""
    rounding: float
    """The relative error of the values."""

    @classmethod
    def of(cls, values: np.ndarray, slopes: np.ndarray, states: np.ndarray) -> "Sampled":
        """From arrays in which the columns may have any number of axes."""
        lead, d = values.shape[:2], states.shape[1]
        kind = values.dtype if np.issubdtype(values.dtype, np.floating) else float
        flat = values.reshape(*lead, -1).astype(float), slopes.reshape(*lead, -1, d).astype(float)
        return cls(*flat, states, 64 * float(np.finfo(kind).eps))

    def repeated(self, columns: int) -> "Sampled":
        """One entry for each column, from one for each or one for all."""
        shape = (*self.values.shape[:2], columns)
        return self._replace(
            values=np.broadcast_to(self.values, shape),
            slopes=np.broadcast_to(self.slopes, (*shape, self.states.shape[1])),
        )

    def varies(self) -> bool:
        """Whether the state makes any difference."""
        if (np.where(np.isfinite(self.slopes), self.slopes, 0.0) != 0).any():
            return True
        values = np.where(np.isfinite(self.values), self.values, np.nan)
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is finite at no state is all NaN
            return bool((np.nanmax(values, 1) - np.nanmin(values, 1) > self.rounding * np.nanmax(abs(values), 1)).any())

    def is_affine(self, tolerance: float) -> bool:
        """Whether, with the same inputs, it lies on one plane at all states."""
        enough, same_slope, same_offset = self._plane(tolerance)
        return bool(enough.any(0).all() and (same_slope & same_offset)[enough].all())

    def has_steps(self, tolerance: float) -> bool:
        """Whether it changes where its derivatives say that it does not, or has none."""
        enough, same_slope, same_offset = self._plane(tolerance)
        return bool((same_slope & ~same_offset)[enough].any()) or (not enough.any() and self.varies())

    def leaves_plane(self, others: np.ndarray) -> np.ndarray:
        """Whether a change of one coordinate changes it by more than its slope says: [d, c].

        `others`, [inputs, states, d, ...], are its values where one coordinate of a state is that of the state before.
        """
        others = others.reshape(*others.shape[:3], -1).astype(float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            slope = np.nan_to_num(np.nanmedian(np.where(np.isfinite(self.slopes), self.slopes, np.nan), 1))
        steps = np.roll(self.states, 1, 0) - self.states
        change = others - self.values[:, :, None] - np.swapaxes(slope, 1, 2)[:, None] * steps[None, :, :, None]
        size = np.nan_to_num(abs(self.values)).max((0, 1)) + abs(slope).max((0, 2)) * abs(steps).max()
        return (abs(change) > 4 * self.rounding * size).any((0, 1))

    def _plane(self, tolerance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each input and column: whether there are enough states, with the same slope, with the same offset."""
        known = np.isfinite(self.values) & np.isfinite(self.slopes).all(-1)
        slopes, values = np.where(known[..., None], self.slopes, np.nan), np.where(known, self.values, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column that is known nowhere is all NaN
            center, size = np.nanmedian(slopes, 1, keepdims=True), np.nanmax(abs(slopes), (1, 3))
            turned = np.nanmax(abs(slopes - center), (1, 3))
            rest = values - (center * self.states[:, None]).sum(-1)
            shifted = np.nanmax(abs(rest - np.nanmedian(rest, 1, keepdims=True)), 1)
            error = self.rounding * np.nanmax(abs(values), 1)
        reach = abs(self.states).sum(1).max()
        return known.sum(1) >= FEWEST, turned <= tolerance * size, shifted <= tolerance * size * reach + error
