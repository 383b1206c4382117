"""Particle filters are shown the latest rows at the end of every run, however long it is."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import backstream as bs
from backstream.learning import Monitor, Settings, build, watched_learner
from backstream.learning.particle_reference import Reference
from backstream.models import LinearGaussian, StochasticVolatility

KEY = jax.random.key(4)
P = LinearGaussian.random(1, 1, key=KEY)
YS = np.asarray(P.simulate(30, key=KEY)[1])
VOLATILITY = StochasticVolatility(mu=jnp.array([-1.0]), phi=jnp.array([0.95]), sigma=jnp.array([0.3]))
WINDOW, SHOWN = 8, 4
EARLIER, LAST = Reference(8, 0.1, 0.01, 0.5), Reference(4, 0.2, 0.01, 0.5)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(watched_learner, "ROWS", SHOWN)
    return build(P, Settings(learn=False, monitor_every=WINDOW))


def shown(watched, rows: int, ended: bool = True):
    """What particle filters are shown after so many rows, and the gap in the verdict."""
    learner, q, key = watched
    state, _ = learner.begin(q, YS[:1], key=key)
    anchors = [jax.tree.map(jnp.copy, state.learner.filtered)]
    reports = []
    for start in range(1, rows, WINDOW):
        state, _, told = learner.read(state, YS[start : min(start + WINDOW, rows)])
        anchors.append(jax.tree.map(jnp.copy, state.learner.filtered))
        reports += told
    latest = reports[-1]._replace(reference=EARLIER) if reports else None
    seen = []

    def compare(self, learner, anchor, state, ys, inputs):
        seen.append((anchor, np.asarray(ys)))
        return LAST

    with mock.patch.object(Monitor, "compare", compare):
        verdict = learner.verdict(state, latest, ended=ended)
    return seen, anchors, verdict.figures["gap"]


@pytest.mark.parametrize(
    ("rows", "first", "count"),
    [(4, 1, 3), (9, 1, 8), (11, 1, 8), (13, 9, 4), (17, 9, 8), (16, 9, 7), (30, 25, 5)],
)
def test_the_end_of_a_run_is_looked_at_whatever_its_length(watched, rows, first, count):
    """With windows of eight, the rows since the latest window or, where these are fewer than four, that window."""
    ((anchor, ys),), anchors, gap = shown(watched, rows)
    np.testing.assert_array_equal(ys, YS[first : first + count])
    np.testing.assert_array_equal(anchor.mean, anchors[(first - 1) // WINDOW].mean)
    assert gap == LAST.gap


def test_while_rows_come_the_latest_look_counts(watched):
    seen, _, gap = shown(watched, 13, ended=False)
    assert not seen and gap == EARLIER.gap
    seen, _, gap = shown(watched, 4, ended=False)
    assert len(seen) == 1 and gap == LAST.gap, "there was no look yet"


def test_the_verdict_of_the_end_is_kept_and_that_of_a_run_that_goes_on_is_the_same():
    """Also where the end is that of a window and of a checkpoint."""
    ys = np.asarray(VOLATILITY.simulate(41, key=KEY)[1])
    given = {"settings": Settings(monitor_every=10, components=1), "progress": False, "warn": lambda sentence: None}
    given["saving"] = bs.Saving(checkpoint_every=7)
    begun = bs.learn(VOLATILITY, ys[:21], **given)
    assert begun.health.figures["gap_rows"] == 10
    whole = bs.learn(VOLATILITY, ys, **given)
    assert begun.learn(ys[21:], progress=False, warn=lambda sentence: None).health == whole.health
    assert whole.health.figures["gap"] != begun.health.figures["gap"]
