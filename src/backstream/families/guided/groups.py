"""Which columns read the same directions of the state."""

import numpy as np

from .constants import Constant
from .updates import Groups

MOST_DIRECTIONS = 3
"""That a grid can have."""
TOLERANCE = 1e-3


def find_groups(slopes: np.ndarray, scale: np.ndarray, predictors: int | None) -> Groups | None:
    """Groups of columns with at most three directions each; None where a column reads more.

    `slopes`, [n, c, d], are those of the columns' laws at many states, per standard deviation `scale` of the states.
    With `predictors` for each column, which are affine in the state, directions are taken at every row from the
    predictors' own slopes; without, they are fixed here.
    """
    d = slopes.shape[-1]
    slopes = np.where(np.isfinite(slopes).all(-1, keepdims=True), slopes, 0.0)
    size = np.linalg.norm(slopes, axis=-1, keepdims=True)
    slopes = slopes / np.where(size > 0, size, 1.0)
    own = [_basis(slopes[:, column]) for column in range(slopes.shape[1])]
    if max(map(len, own)) > MOST_DIRECTIONS:
        return None
    together = _basis(np.concatenate(own))
    if len(together) <= MOST_DIRECTIONS:
        groups, bases = [list(range(len(own)))], [together]
    else:
        groups, bases = _grouped(own)
    rank = max(map(len, bases))
    members = np.zeros((len(groups), len(own)))
    for group, columns in enumerate(groups):
        members[group, columns] = 1
    if predictors is None:
        basis = np.stack([_completed(basis, rank) for basis in bases])
        return Groups(Constant(members), rank, Constant(basis / scale), None)
    alone = all(len(columns) == 1 for columns in groups) and all(len(basis) == predictors for basis in bases)
    mixing = None if alone else Constant(_mixing(groups, bases, rank, len(own), predictors, d))
    return Groups(Constant(members), rank, None, mixing)


def _basis(slopes: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span the slopes; at least one."""
    _, size, rows = np.linalg.svd(slopes, full_matrices=False)
    return rows[: max(int((size > TOLERANCE * max(size[0], 1e-30)).sum()), 1)]


def _grouped(own: list[np.ndarray]) -> tuple[list[list[int]], list[np.ndarray]]:
    """Columns whose directions lie in those of another go with it."""
    groups: list[list[int]] = []
    bases: list[np.ndarray] = []
    for column, basis in enumerate(own):
        for group, other in enumerate(bases):
            large, less = (other, basis) if len(other) >= len(basis) else (basis, other)
            if np.linalg.norm(less - less @ large.T @ large, axis=1).max() < 10 * TOLERANCE:
                groups[group].append(column)
                bases[group] = large
                break
        else:
            groups.append([column])
            bases.append(basis)
    return groups, bases


def _completed(basis: np.ndarray, rank: int) -> np.ndarray:
    """With orthogonal rows added where a group reads fewer directions than others."""
    return np.concatenate([basis, np.linalg.svd(basis)[2][len(basis) : rank]])


def _mixing(groups, bases, rank: int, columns: int, predictors: int, d: int) -> np.ndarray:
    """Random combinations: of the slopes of a group's own predictors, as many as it has directions, then of all
    axes."""
    rng = np.random.default_rng(0)
    mixing = np.zeros((len(groups), rank, columns * predictors + d))
    for group, (members, basis) in enumerate(zip(groups, bases, strict=True)):
        rows = [column * predictors + k for column in members for k in range(predictors)]
        mixing[group, : len(basis), rows] = rng.standard_normal((len(rows), len(basis)))
        mixing[group, len(basis) :, columns * predictors :] = rng.standard_normal((rank - len(basis), d))
    return mixing
