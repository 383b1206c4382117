"""What the monitor says, and what it says it of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from backstream.estimators import FixedLag
from backstream.estimators.base import Estimate, OnlineEstimate, OnlineEstimator, like
from backstream.estimators.fixed_lag import window_elbo
from backstream.families import Guided, Kalman
from backstream.learning import Averaging, Monitor, OnlineLearner, Settings, build
from backstream.learning.monitor import COMPARED, FADING, RECENT, Watch, _is_compared
from backstream.models import LinearGaussian

KEY = jax.random.key(4)
P = LinearGaussian.random(1, 1, key=KEY)
YS = np.asarray(P.simulate(9, key=KEY)[1])


@pytest.fixture(scope="module")
def seen():
    """A learner, its monitor, and a window that is well."""
    watched, q, key = build(P, Settings(learn=False, monitor_every=8))
    learner = watched.learner
    state, _ = learner.step(learner.init(q, key=key), YS[0])
    watch = watched.monitor.begin(state)
    state, infos = learner.scan(state, YS[1:])
    return watched.monitor, learner, watch, state, infos


def warned(seen, watch: Any = None, **changed):
    monitor, learner, begun, state, infos = seen
    watch = begun if watch is None else watch
    return monitor.look(learner, watch, state, infos._replace(**changed), YS[1:])[1].warnings


def test_nothing_is_said_of_what_is_well(seen):
    assert warned(seen) == ()


def test_few_effective_samples_and_refused_updates_are_told(seen):
    (few,) = warned(seen, ess=np.full(8, 1.2))
    assert "effective sample size is 1.2" in few
    (refused,) = warned(seen, refused=np.arange(8) == 3)
    assert "12.5 % of the updates were not finite" in refused


def test_a_fall_is_told_at_once_and_a_slow_one_in_the_end(seen):
    watch = seen[2]
    usual = float(np.mean(seen[4].log_score)) + 0.5
    steady = watch._replace(best=usual, usual=usual, variance=1e-4, windows=RECENT)
    (fell,) = warned(seen, steady)
    assert f"fell from {usual:.2f} to {usual - 0.5:.2f}" in fell
    assert warned(seen, steady._replace(windows=RECENT - 1)) == (), "too few windows to know what is usual"
    assert warned(seen, steady._replace(variance=1.0)) == (), "it has varied as much before"
    (low,) = warned(seen, steady._replace(best=usual + 1.0, variance=1.0))
    assert f"it has been {usual + 1.0:.2f}" in low


def test_what_was_best_fades_and_what_is_usual_follows():
    """By hand: the best is forgotten by a twentieth of the way a window, mean and variance over five windows."""
    watch, best, seen = Watch.begin(None), -1.0, [-1.0, -2.0, -2.0, -1.5]
    for reached in seen:
        watch = watch.next(None, reached)
    for reached in seen[1:]:
        best = max(reached, best + (reached - best) / FADING)
    assert watch.best == pytest.approx(best) and -1.2 < best < -1.1
    assert watch.usual == pytest.approx(np.mean(seen)) and watch.variance == pytest.approx(np.var(seen))
    assert watch.next(None, np.nan).best == watch.best, "a window without a number says nothing"


def test_particle_filters_are_asked_at_first_and_then_now_and_then():
    guided, learned = Guided.from_model(P), Kalman.from_model(P)
    assert [window for window in range(1, 50) if _is_compared(guided, window)] == [1, COMPARED, 2 * COMPARED]
    assert all(_is_compared(learned, window) for window in range(1, 50)), "which learns all that it knows"


@pytest.mark.slow
def test_what_is_judged_is_the_average_and_not_the_latest_iterate():
    q = Kalman.from_model(P)
    learner = OnlineLearner(P, FixedLag(2, 2), optax.adam(0.3), averaging=Averaging(power=0.0), num_draws=0)
    state, _ = learner.step(learner.init(q, key=KEY), YS[0])
    monitor = Monitor(window=8, num_trajectories=3)
    watch = monitor.begin(state)
    state, infos = learner.scan(state, YS[1:])
    report = monitor.look(learner, watch, state, infos, YS[1:])[1]
    key = jax.random.fold_in(jax.random.fold_in(state.key, state.t), 1)
    latest, average = (
        float(window_elbo(P, one, watch.anchor, jnp.asarray(YS[1:]), None, 3, key=key).mean()) / 8
        for one in (state.q, state.average)
    )
    assert report.average_elbo == pytest.approx(average, rel=1e-6)
    assert report.unbiased_elbo == pytest.approx(latest, rel=1e-6)
    assert abs(latest - average) > 1e-3


class Counting(OnlineEstimator):
    """Counts its steps since it began, and has nothing finite to say of large values."""

    def init(self, p, q, u=None):
        return -jnp.ones(())

    def restarted(self, p, q, carry, start, u=None):
        return jnp.where(start, -1.0, carry)

    def step(self, p, q, carry, y, u=None, *, key):
        return self._told(q, carry + 1, y)

    def _told(self, q, carry, y):
        bad = jnp.where(y[0] > 50, jnp.nan, 0.0)
        estimate = Estimate(bad, like(q, jnp.zeros_like(jax.flatten_util.ravel_pytree(q)[0])), None)
        return carry, OnlineEstimate(estimate, estimate, ess=bad, acceptance=bad)


@pytest.mark.parametrize(("refusals", "steps"), [(1, 2), (2, 0)])
def test_the_recursion_starts_anew_after_its_patience_and_not_before(refusals, steps):
    learner = OnlineLearner(P, Counting(), optax.adam(0.1), patience=2, num_draws=0)
    state = learner.init(Kalman.from_model(P), key=KEY)
    rows = np.concatenate([np.zeros((2, 1)), np.full((refusals, 1), 99.0), np.zeros((1, 1))])
    state, infos = learner.scan(state, rows)
    assert int(infos.refused.sum()) == refusals and int(state.carry) == steps


def test_an_average_forgets_its_start():
    """Weights by hand: (power + 1)/(t + power + 1), and 1/horizon in the end."""
    averaging, values = Averaging(horizon=5.0, power=1.0), np.array([4.0, 1.0, -2.0, 3.0, 0.5, 7.0])
    expected = average = 0.0
    for t, value in enumerate(values):
        weight = max(1 / 5, 2 / (t + 2))
        expected = (1 - weight) * expected + weight * value
        average = averaging.update(jnp.asarray(average), jnp.asarray(value), jnp.asarray(t))
    assert float(average) == pytest.approx(expected, rel=1e-6)
    assert abs(expected - values.mean()) > 0.3
