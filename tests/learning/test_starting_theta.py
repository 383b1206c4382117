"""What learning θ has gained, against scores by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.learning import Settings, ThetaGain, build
from backstream.learning.starting_theta import BATCH, COUNTED, FORGOTTEN, UNCOUNTED, Gained, theta_gains
from backstream.models import LinearGaussian

KEY = jax.random.key(6)
ONE = jnp.ones(1)
TRUTH = LinearGaussian(0 * ONE, ONE, 0.8 * ONE, ONE, 0.5 * ONE, 0.5 * ONE)
START = LinearGaussian(0 * ONE, ONE, 0.8 * ONE, ONE, 0.5 * ONE, 2.0 * ONE)
"""Four times the noise of the rows."""
YS = np.asarray(TRUTH.simulate(UNCOUNTED + COUNTED + 20, key=KEY)[1])


def read(**settings):
    watched, q, key = build(START, Settings(monitor_every=len(YS), **settings))
    learner = watched.learner
    state, _ = learner.step(learner.init(q, key=key), YS[0])
    anchor = jax.tree.map(jnp.copy, state.filtered)
    state, infos = learner.scan(state, YS[1:])
    return learner, q, anchor, state, infos


def test_gains_are_the_log_scores_less_those_at_the_starting_theta():
    learner, q, anchor, state, infos = read(learn_model=True)
    rows, scores = YS[1 : 1 + UNCOUNTED + COUNTED], []
    update, at = jax.jit(lambda state, y: q.update(START, state, y)), anchor
    for y in rows:
        at = update(at, y)
        scores.append(float(at.log_score))
    gains = (infos.log_score[: len(rows)] - np.array(scores))[UNCOUNTED:]
    found = theta_gains(learner, anchor, state, infos, YS[1:], None)
    np.testing.assert_allclose(found, gains.reshape(-1, BATCH).mean(1), rtol=1e-6)
    assert found.mean() > 0.1, "the noise was four times too large"
    short = theta_gains(learner, anchor, state, infos, YS[1 : 1 + UNCOUNTED + 40], None)
    np.testing.assert_allclose(short, found[:2], rtol=1e-6)


def test_nothing_is_gained_where_theta_is_not_learned():
    learner, _, anchor, state, infos = read(learn=False)
    assert len(theta_gains(learner, anchor, state, infos, YS[1:], None)) == 0
    assert Gained().gain() is None


def test_windows_are_forgotten():
    first, second = np.array([1.0, 3.0]), np.array([0.0, 2.0, 4.0])
    w = np.array([1 - FORGOTTEN] * 2 + [1.0] * 3)
    values = np.concatenate([first, second])
    mean = (w * values).sum() / w.sum()
    variance = ((w * values**2).sum() / w.sum() - mean**2) * w.sum() / (w.sum() - 1)
    found = Gained().next(first).next(second).gain()
    assert isinstance(found, ThetaGain)
    assert found.mean == pytest.approx(mean) and found.error == pytest.approx(np.sqrt(variance / w.sum()))
