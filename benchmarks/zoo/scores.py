"""How far a method is from the reference: errors, log scores, coverage, and how certain the differences are."""

from typing import Any

import numpy as np

from benchmarks.zoo.case import Data, Posterior

BLOCK = 50
"""Rows in a block of the bootstrap."""
RESAMPLES = 400
Z90 = 1.6448536269514722


def normalized_rmse(mean: np.ndarray, states: np.ndarray) -> float:
    """Root mean squared error over rows, in standard deviations of each state over the rows, averaged over states."""
    return float((np.sqrt(np.mean((mean - states) ** 2, axis=0)) / states.std(0)).mean())


def coverage(mean: np.ndarray, cov: np.ndarray, states: np.ndarray) -> float:
    """The share of states within 1.645 standard deviations of the mean."""
    spread = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    return float((np.abs(mean - states) <= Z90 * spread).mean())


def ratio(mean: np.ndarray, reference: np.ndarray, states: np.ndarray) -> dict[str, float]:
    """The error as a multiple of the reference's, and its standard error by a bootstrap over blocks of rows."""
    value = normalized_rmse(mean, states) / normalized_rmse(reference, states)
    count = len(states) // BLOCK
    draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))

    def per_block(mean):
        squares = ((mean - states) ** 2)[: count * BLOCK].reshape(count, BLOCK, -1).mean(1)
        return (np.sqrt(squares[draws].mean(1)) / states.std(0)).mean(1)

    resampled = per_block(mean) / per_block(reference)
    return {"ratio": value, "error": float(resampled.std())}


def against(found: Posterior, reference: Posterior, data: Data) -> dict[str, Any]:
    """All comparisons of a method's posterior with the reference's."""
    states, columns = data.states, data.ys.shape[1]
    difference = (found.log_score - reference.log_score) / columns
    count = len(difference) // BLOCK
    blocks = difference[: count * BLOCK].reshape(count, BLOCK).mean(1)
    return {
        "filtering": ratio(found.filtered_mean, reference.filtered_mean, states),
        "smoothing": ratio(found.smoothed_mean, reference.smoothed_mean, states),
        "log_score": {"difference": float(difference.mean()), "error": float(blocks.std(ddof=1) / np.sqrt(count))},
        **own(found, states),
    }


def own(found: Posterior, states: np.ndarray) -> dict[str, Any]:
    """What can be said of a posterior without a reference."""
    return {
        "rmse": [normalized_rmse(mean, states) for mean in (found.filtered_mean, found.smoothed_mean)],
        "coverage": [
            coverage(found.filtered_mean, found.filtered_cov, states),
            coverage(found.smoothed_mean, found.smoothed_cov, states),
        ],
        "mean_log_score": float(found.log_score.mean()),
    }


def raw_ratio(shown: np.ndarray, reference: Posterior, states: np.ndarray) -> list[float]:
    """The observation's error over the states that it shows, as a multiple of the filtering and the smoothing error."""
    seen = np.flatnonzero(np.isfinite(shown).all(0))
    raw = normalized_rmse(shown[:, seen], states[:, seen])
    means = reference.filtered_mean, reference.smoothed_mean
    return [raw / normalized_rmse(mean[:, seen], states[:, seen]) for mean in means]
