"""The streams of a bucket given all their rows, under what was learned from them."""

from typing import NamedTuple

import jax
import numpy as np

from backstream import posterior

from .bucket import Bucket, padded
from .tables import BucketRows


class Smoothed(NamedTuple):
    """Of each row; NaN where it could not be used."""

    mean: np.ndarray
    std: np.ndarray


def smooth(bucket: Bucket, content: bytes | None, rows: BucketRows, usable: np.ndarray) -> Smoothed:
    """`content` is the bucket's state after all rows."""
    panel, laws = bucket.panel, Smoothed(*(np.full((len(rows.ys), bucket.panel.q.state_dim), np.nan) for _ in range(2)))
    if content is None:
        return laws
    members, _ = bucket.open(content)
    state, places = bucket.state(members), dict[str, list[int]]()
    for i in np.flatnonzero(usable).tolist():
        places.setdefault(str(rows.names[i]), []).append(i)
    for slot, name in enumerate(members.names):
        at = places[name]
        one = panel.stream(state, slot)
        ys, inputs = jax.tree.map(lambda leaf, at=at: _filled_up(leaf[at]), (rows.ys, rows.inputs))
        ys[len(at) :] = np.nan
        key = jax.random.fold_in(one.key, 2**31 + 1)
        p, q = panel.learner.current_model(one), one.result()
        law = posterior.smooth(p, q, ys, inputs, key=key, length=len(at))
        laws.mean[at], laws.std[at] = np.asarray(law.mean)[: len(at)], np.asarray(law.std)[: len(at)]
    return laws


def _filled_up(values: np.ndarray) -> np.ndarray:
    """With more rows like the last: streams of a thousand lengths need few compiled programs."""
    return np.concatenate([values, np.repeat(values[-1:], padded(len(values)) - len(values), 0)])
