"""A column that is given twice is named in the verdict."""

import jax
import numpy as np
import pyarrow as pa

import backstream as bs
from backstream.learning.column_check import LEAST_ROWS, same_columns
from backstream.models import LinearGaussian

RNG = np.random.default_rng(0)


def test_columns_that_repeat_each_other_are_found():
    ys = RNG.normal(size=(60, 5))
    ys[:, 3] = ys[:, 1]
    ys[5, 1] = ys[7, 3] = np.nan
    assert same_columns(ys) == [(1, 3)]
    assert same_columns(ys[: LEAST_ROWS - 1]) == [], "too few rows"
    ys[9, 3] += 1e-6
    assert same_columns(ys) == [], "they differ in one row"


def test_columns_that_are_mostly_zero_may_agree_by_chance():
    rare = (np.arange(60) == 40).astype(float)
    assert same_columns(np.stack([rare, rare], 1)) == []
    often = (RNG.random(60) < 0.5).astype(float)
    assert same_columns(np.stack([often, often], 1)) == [(0, 1)]


def test_a_column_that_is_given_twice_is_doubted():
    p = LinearGaussian.random(1, 2, key=jax.random.key(1))
    ys = np.array(p.simulate(60, key=jax.random.key(2))[1])
    ys[:, 1] = ys[:, 0]
    told = []
    health = bs.learn(p, pa.table({"depth": ys[:, 0], "level": ys[:, 1]}), progress=False, warn=told.append).health
    assert health.kind in ("doubtful", "failed")
    assert any("depth and level" in reason.what and "twice" in reason.cause for reason in health.reasons)
    assert "depth and level" in told[-1]
