"""Which columns read the same directions of the state."""

import numpy as np

from .constants import Constant
from .updates import Groups

MOST_DIRECTIONS = 3
"""That a grid can have."""
TOLERANCE = 1e-3


def find_groups(slopes: np.ndarray, scale: np.ndarray, predictors: int | None) -> Groups | None:
    """Groups of columns with at most three directions each; None where a column reads more.

    `slopes`, [inputs, n, c, d], are those of the columns' laws at many states, per standard deviation `scale` of the
    states. With `predictors` for each column, which are affine in the state, directions are taken at every row from the
    predictors' own slopes, and may be others with other inputs. Without, they are fixed here: all of them, where they
    depend on the inputs.
    """
    columns, d = slopes.shape[2:]
    # In double precision, where the square of what is finite in single precision is finite, too.
    slopes = np.where(np.isfinite(slopes).all(-1, keepdims=True), slopes, 0.0).astype(float)
    size = np.linalg.norm(slopes, axis=-1, keepdims=True)
    slopes = slopes / np.where(size > 0, size, 1.0)
    own = [[_basis(with_input[:, column]) for with_input in slopes] for column in range(columns)]
    if predictors is None:
        own = [[_fixed(bases)] for bases in own]
    if max(map(_rank, own)) > MOST_DIRECTIONS:
        return None
    together = [_basis(np.concatenate(bases)) for bases in zip(*own, strict=True)]
    if _rank(together) <= MOST_DIRECTIONS:
        groups, bases = [list(range(len(own)))], [together]
    else:
        groups, bases = _grouped(own)
    rank = max(map(_rank, bases))
    members = np.zeros((len(groups), len(own)))
    for group, columns in enumerate(groups):
        members[group, columns] = 1
    if predictors is None:
        basis = np.stack([_completed(basis, rank) for (basis,) in bases])
        return Groups(Constant(members), rank, Constant(basis / scale), None)
    alone = all(len(columns) == 1 for columns in groups) and all(_rank(basis) == predictors for basis in bases)
    mixing = None if alone else Constant(_mixing(groups, bases, rank, len(own), predictors, d))
    return Groups(Constant(members), rank, None, mixing)


def _basis(slopes: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span the slopes."""
    _, size, rows = np.linalg.svd(slopes, full_matrices=False)
    return rows[: int((size > TOLERANCE * size.max(initial=0.0)).sum())]


def _fixed(bases: list[np.ndarray]) -> np.ndarray:
    """The directions that are read with all of the inputs: every one, where different inputs read different ones."""
    together = _basis(np.concatenate(bases))
    return together if len(together) <= _rank(bases) else np.eye(together.shape[1])


def _rank(bases: list[np.ndarray]) -> int:
    """The most directions that are read with any of the inputs; at least one."""
    return max(1, *map(len, bases))


def _grouped(own: list[list[np.ndarray]]) -> tuple[list[list[int]], list[list[np.ndarray]]]:
    """Columns whose directions lie, with all inputs, in those of another go with it."""
    groups: list[list[int]] = []
    bases: list[list[np.ndarray]] = []
    for column, basis in enumerate(own):
        for group, other in enumerate(bases):
            if _lies_in(basis, other) or _lies_in(other, basis):
                groups[group].append(column)
                bases[group] = basis if _lies_in(other, basis) else other
                break
        else:
            groups.append([column])
            bases.append(basis)
    return groups, bases


def _lies_in(less: list[np.ndarray], more: list[np.ndarray]) -> bool:
    pairs = zip(less, more, strict=True)
    return all((np.linalg.norm(a - a @ b.T @ b, axis=1) < 10 * TOLERANCE).all() for a, b in pairs)


def _completed(basis: np.ndarray, rank: int) -> np.ndarray:
    """With orthogonal rows added where a group reads fewer directions than others."""
    return np.concatenate([basis, np.linalg.svd(basis)[2][len(basis) : rank]])


def _mixing(groups, bases, rank: int, columns: int, predictors: int, d: int) -> np.ndarray:
    """Random combinations: of the slopes of a group's own predictors, one for each direction, then of all axes."""
    rng = np.random.default_rng(0)
    mixing = np.zeros((len(groups), rank, columns * predictors + d))
    for group, (members, basis) in enumerate(zip(groups, bases, strict=True)):
        own = _rank(basis)
        rows = [column * predictors + k for column in members for k in range(predictors)]
        mixing[group, :own, rows] = rng.standard_normal((len(rows), own))
        mixing[group, own:, columns * predictors :] = rng.standard_normal((rank - own, d))
    return mixing
