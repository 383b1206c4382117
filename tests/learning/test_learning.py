"""Learning from a stream: the same bits however it is cut, updates that are refused, results that get better."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from backstream import posterior
from backstream.estimators import (
    BackwardTrajectories,
    Exact,
    FixedLag,
    Frozen,
    KernelRidge,
    LogScore,
    MomentCorrected,
    Quadratic,
    RecursiveScore,
    Regression,
    Renewal,
    Scan,
)
from backstream.estimators.base import OnlineEstimator, flatten
from backstream.families import Conjugate, Guided, Kalman, PerStep
from backstream.learning import Averaging, Monitor, OnlineLearner, PerStepLearner, Settings, fit, fit_within_epochs
from backstream.learning.online import _blocks
from backstream.learning.parameters import ModelParameters
from backstream.learning.presets import build, gradient_method
from backstream.models import ChaoticRNN, LinearGaussian, StateSpaceModel, StochasticVolatility
from linear_gaussian import family, model, observations

KEY = jax.random.key(0)


def learner(p, estimator=None, rate=1e-2, **options):
    estimator = RecursiveScore(8, objective=Renewal(0.8)) if estimator is None else estimator
    return OnlineLearner(p, estimator, optax.adam(rate), **options)


def assert_same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if eqx.is_array(a) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if eqx.is_array(a):
            np.testing.assert_array_equal(a, b)


def test_the_same_bits_however_the_stream_is_cut():
    """Pieces of 1, of 7 and of 40 observations, and a block size that divides none of them. The quick program ends
    within a block."""
    p, q = model(), family()
    ys = np.array(p.simulate(41, key=KEY)[1])
    ys[5], ys[9, 0] = np.nan, np.nan
    made = learner(p, block=16, quick_rows=20)
    results = []
    for piece in (1, 7, 40):
        state, _ = made.step(made.init(q, key=KEY), ys[0])
        infos = []
        for start in range(1, len(ys), piece):
            if piece == 1:
                state, info = made.step(state, ys[start])
                infos.append(jax.tree.map(lambda leaf: np.asarray(leaf)[None], info))
            else:
                state, info = made.scan(state, ys[start : start + piece])
                infos.append(info)
        results.append((state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos)))
    assert int(results[0][0].t) == len(ys)
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


def test_which_program_reads_a_row_depends_on_its_number():
    made = learner(model(), block=16, quick_rows=20)
    for first, count in ((0, 50), (19, 1), (7, 30), (20, 3)):
        blocks = list(_blocks(made, first, count))
        rows = [first + row for block, _ in blocks for row in range(block.start, block.stop)]
        quickly = [quick for block, quick in blocks for _ in range(block.start, block.stop)]
        assert rows == list(range(first, first + count))
        assert quickly == [row < 20 for row in rows]
        assert all(block.stop - block.start <= 16 for block, _ in blocks)


class Level(StateSpaceModel):
    """A level seen through Student-t noise: nothing that a Kalman filter knows."""

    scale: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, self.scale).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(3.0, x, 0.3).to_event(1)


def test_settings_choose_family_and_gradient():
    level, linear = Level(jnp.array(0.1)), LinearGaussian.random(2, 1, key=KEY)

    def built(p, **settings):
        watched, q, _ = build(p, Settings(**settings))
        return q, watched.learner.estimator

    q, estimator = built(level)
    assert isinstance(q, Guided) and isinstance(estimator, LogScore)
    assert estimator.learn_family and not estimator.learn_model
    assert not built(linear)[1].learn_family, "with an exact posterior there is nothing to learn in λ"
    assert built(linear, learn_model=True)[1] == LogScore(learn_model=True, learn_family=False)
    assert built(level, learn=False)[1] == LogScore(learn_family=False)
    assert isinstance(built(level, method="window")[1], FixedLag)
    assert isinstance(built(level, method="recursion", particles=4)[1], RecursiveScore)
    assert isinstance(built(level, family="conjugate", width=4)[0], Conjugate)
    assert isinstance(built(level, family="recurrent", width=4)[1], FixedLag)
    many, few = ChaoticRNN.random(17, key=KEY), ChaoticRNN.random(15, key=KEY)
    assert gradient_method(Settings(learn_model=True), many) == "window", "too many derivatives to carry forward"
    assert gradient_method(Settings(learn_model=True), few) == "log-score"
    for wrong, sentence in (
        ({"family": "conjugate", "method": "log-score"}, "has no log score"),
        ({"learn": False, "learn_model": True}, "cannot be found without learning"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Settings(**wrong)


def test_the_better_of_learned_and_unlearned_is_reported():
    """A λ that starts far off is learned away from, and reported; one that a mad rate ruins is not."""
    p = Level(jnp.array(0.1))
    ys = p.simulate(600, key=KEY)[1]
    good = Guided.from_model(p)
    off = eqx.tree_at(lambda q: q.log_inflation, good, jnp.asarray(4.0))
    for q, rate, learned in ((off, 5e-2, True), (good, 3.0, False)):
        made = OnlineLearner(p, LogScore(), optax.adam(rate))
        state, _ = made.step(made.init(q, key=KEY), ys[0])
        state, infos = made.scan(state, ys[1:])
        assert (state.unlearned.advantage > 0) == learned
        expected = state.average if learned else q
        assert float(state.result().log_inflation) == float(expected.log_inflation)
        assert infos.mean[-1] == state.filtered.mean and infos.mean[-1] != state.unlearned.state.mean
        assert infos.log_score[-1] == q.log_score(state.filtered)


class Poisoned(OnlineEstimator):
    """An estimator whose gradient is NaN whenever the first coordinate of y is above 50."""

    inner: RecursiveScore

    def init(self, p, q, u=None):
        return self.inner.init(p, q, u)

    def restarted(self, p, q, carry, start, u=None):
        return self.inner.restarted(p, q, carry, start, u)

    def step(self, p, q, carry, y, u=None, *, key):
        return self._spoil(y, self.inner.step(p, q, carry, y, u, key=key))

    def _spoil(self, y, result):
        return jax.tree.map(lambda leaf: jnp.where(y[0] > 50, jnp.nan, 1.0).astype(leaf.dtype) * leaf, result)


def test_an_update_that_is_not_finite_never_reaches_lambda():
    """It is refused and counted; λ, the optimizer and the carry stay; the stream goes on; after `patience` in a row the
    recursion starts anew."""
    p, q = model(), family()
    ys = np.array(p.simulate(30, key=KEY)[1])
    ys[10] = 100.0
    ys[20:24] = 100.0
    made = OnlineLearner(p, Poisoned(RecursiveScore(8)), optax.adam(1e-2), patience=3)
    state, _ = made.step(made.init(q, key=KEY), ys[0])
    state, infos = made.scan(state, ys[1:10])
    before = jax.tree.map(np.array, eqx.filter((state.q, state.optimizer, state.carry), eqx.is_array))
    state, infos = made.scan(state, ys[10:11])
    assert infos.refused.all() and int(state.refused) == 1
    assert_same_bits(before, eqx.filter((state.q, state.optimizer, state.carry), eqx.is_array))
    state, infos = made.scan(state, ys[11:])
    assert infos.refused.sum() == 4 and int(state.refused) == 5 and int(state.refused_in_a_row) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter((state.q, state.average), eqx.is_array)))


def test_bad_data_and_bad_configuration_are_named():
    p = model()
    state, _ = learner(p).step(learner(p).init(family(), key=KEY), observations()[0])
    bad = np.array(observations()[1:4])
    bad[1, 1] = np.inf
    with pytest.raises(ValueError, match="row 2, column 1 is infinite"):
        learner(p).scan(state, bad)
    with pytest.raises(ValueError, match="block must be at least 1, not 0"):
        learner(p, block=0)
    with pytest.raises(ValueError, match="give both a model_optimizer and an estimator with learn_model=True"):
        learner(p, model_optimizer=optax.adam(1e-3))
    with pytest.raises(ValueError, match="horizon"):
        Averaging(horizon=0.5)


@pytest.mark.slow
def test_offline_learning_reaches_the_likelihood():
    """Exact gradients: within 0.001 nats per step of the log-likelihood; the recursion, with exact weights, too."""
    p, ys = model(), observations()
    best = float(Exact()(p, Kalman.from_model(p), ys, key=KEY).elbo) / len(ys)
    start = float(Exact()(p, family(), ys, key=KEY).elbo) / len(ys)
    assert start < best - 0.2
    corrected = Scan(RecursiveScore(12, MomentCorrected(Quadratic(cross=True), ridge=0.0, cap=1e6)))
    for estimator, epochs in ((Exact(), 400), (corrected, 200)):
        found = fit(p, family(), ys, estimator=estimator, optimizer=optax.adam(3e-2), num_epochs=epochs, key=KEY)
        end = float(Exact()(p, found.q, ys, key=KEY).elbo) / len(ys)
        assert int(found.refused) == 0
        assert best - 0.001 - (epochs == 200) * 0.02 < end <= best + 1e-9, (estimator, start, end, best)


@pytest.mark.slow
def test_updates_inside_an_epoch():
    """Recursive updates raise the ELBO of the sequence; an epoch starts from the λ of the one before, and from its
    optimizer or a new one: by hand, two epochs."""
    p, ys = model(), observations()
    made = learner(p, RecursiveScore(20, MomentCorrected()), rate=3e-3)
    start = float(Exact()(p, family(), ys, key=KEY).elbo)
    for restart in (True, False):
        found = fit_within_epochs(made, family(), ys, num_epochs=8, restart_optimizer=restart, key=KEY)
        assert found.elbo.shape == (8,)
        assert float(Exact()(p, found.q, ys, key=KEY).elbo) > start + 1.0
        first, _ = made.scan(made.init(family(), key=jax.random.fold_in(KEY, 0)), ys)
        second = made.init(first.q, key=jax.random.fold_in(KEY, 1))
        second = second if restart else second._replace(optimizer=first.optimizer)
        expected = flatten(made.scan(second, ys)[0].q)[0]
        two = fit_within_epochs(made, family(), ys, num_epochs=2, restart_optimizer=restart, key=KEY)
        np.testing.assert_array_equal(flatten(two.q)[0], expected)


@pytest.mark.parametrize(
    "estimator",
    [
        RecursiveScore(30, MomentCorrected(), objective=Renewal(0.8)),
        pytest.param(FixedLag(8, 8), marks=pytest.mark.slow),
    ],
)
def test_a_stream_is_learned_and_the_monitor_agrees(estimator):
    """Chaotic RNN, d = 2: the averaged λ has a better unbiased ELBO than the start, and the learner says the same."""
    p = ChaoticRNN.random(2, key=KEY)
    _, ys = p.simulate(3001, key=jax.random.key(1))
    q = Conjugate.create(2, 2, 8, key=jax.random.key(2))
    made, monitor = learner(p, estimator, 3e-3), Monitor(window=1000)
    unbiased = BackwardTrajectories(20)
    before = unbiased(p, q, ys, key=KEY).elbo / len(ys)
    state, _ = made.step(made.init(q, key=KEY), ys[0])
    watch, reports = monitor.begin(state), []
    for start in range(1, 3001, 1000):
        block = ys[start : start + 1000]
        state, infos = made.scan(state, block)
        watch, report = monitor.look(made, watch, state, infos, block)
        reports.append(report)
    assert unbiased(p, state.average, ys, key=KEY).elbo / len(ys) > before + 0.05
    assert not any("unbiased trajectories say" in warning for warning in reports[-1].warnings)
    assert reports[-1].refused == 0


def test_monitor_warns_of_an_elbo_that_lies():
    """The recursion's ELBO, raised by 5 nats per observation, is caught at the first look."""
    p, q = model(), family()
    ys = p.simulate(101, key=KEY)[1]
    made, monitor = learner(p, rate=0.0), Monitor(window=100)
    state, _ = made.step(made.init(q, key=KEY), ys[0])
    watch = monitor.begin(state)
    state, infos = made.scan(state, ys[1:])
    assert monitor.look(made, watch, state, infos, ys[1:])[1].warnings == ()
    lying = infos._replace(elbo=infos.elbo + 5.0)
    (warning,) = monitor.look(made, watch, state, lying, ys[1:])[1].warnings
    assert "cannot be trusted" in warning


@pytest.mark.slow
def test_monitor_sees_an_observation_beyond_all_numbers():
    """Both sides say −∞, which is no disagreement, and NumPy has nothing to say."""
    p, q = model(), family()
    ys = jnp.asarray(p.simulate(11, key=KEY)[1]).at[5].set(1e200)
    made, monitor = learner(p, FixedLag(2, 2), rate=0.0), Monitor(window=10)
    state, _ = made.step(made.init(q, key=KEY), ys[0])
    watch = monitor.begin(state)
    state, infos = made.scan(state, ys[1:])
    assert infos.elbo.min() == -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = monitor.look(made, watch, state, infos, ys[1:])[1]
    assert report.unbiased_elbo == -np.inf and not any("cannot be trusted" in warning for warning in report.warnings)


@pytest.mark.slow
def test_the_model_is_learned_too():
    """θ of a linear-Gaussian stream, started off by a third, comes within 0.1 of the truth; what is not free stays."""
    one = jnp.ones(1)
    truth = LinearGaussian(0 * one, one, 0.9 * one, one, 0.5 * one, 0.5 * one)
    start = LinearGaussian(0 * one, one, 0.6 * one, one, 0.8 * one, 0.5 * one)
    ys = truth.simulate(6001, key=KEY)[1]
    free = jax.tree.map(lambda _: False, start)
    free = eqx.tree_at(lambda p: (p.A, p.transition_scale), free, (True, True))
    estimator = RecursiveScore(10, MomentCorrected(Quadratic(True)), objective=Renewal(0.9), learn_model=True)
    made = OnlineLearner(start, estimator, optax.adam(1e-2), optax.adam(3e-3), free=free, averaging=Averaging(1000.0))
    state, _ = made.step(made.init(Kalman.from_model(start), key=KEY), ys[0])
    state, _ = made.scan(state, ys[1:])
    found = made.current_model(state)
    assert abs(float(found.A[0]) - 0.9) < 0.1
    assert abs(float(found.transition_scale[0]) - 0.5) < 0.1
    np.testing.assert_array_equal(found.emission_scale, start.emission_scale)


def test_constraints_are_bijections():
    p = StochasticVolatility(jnp.zeros(2), jnp.array([0.9, -0.5]), jnp.array([0.1, 2.0]))
    parameters = ModelParameters(p)
    raw = parameters.unconstrained()
    back = parameters.model(raw)
    for a, b in zip(jax.tree.leaves(p), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    far = parameters.model(jax.tree.map(lambda leaf: leaf + 3.0, raw))
    assert (jnp.abs(far.phi) < 1).all() and (far.sigma > 0).all()
    full = LinearGaussian(jnp.zeros(2), jnp.ones(2), jnp.ones(2), jnp.eye(2), jnp.eye(2) + 0.3, jnp.ones(2))
    again = ModelParameters(full).model(ModelParameters(full).unconstrained())
    np.testing.assert_allclose(again.transition_scale, full.transition_scale, rtol=1e-6)


@pytest.mark.parametrize(
    "estimator",
    [
        RecursiveScore(50, sensitivity=Frozen()),
        pytest.param(Regression(50, KernelRidge(ridge=0.1), Frozen()), marks=pytest.mark.slow),
    ],
    ids=["score", "regression"],
)
def test_per_step_scheme_filters(estimator):
    """The non-amortized scheme on a linear-Gaussian stream: its filter and one-step means are near Kalman's."""
    p, ys = model(), observations()
    made = PerStepLearner(p, estimator, optax.adam(3e-2), num_updates=200)
    state = made.init(PerStep.create(2, 2, width=8, key=KEY), key=KEY)
    state, infos = made.scan(state, ys[:8])
    exact = Kalman.from_model(p)
    spread = np.sqrt(np.asarray(p.dense().Q[0, 0]))
    for found, law in (
        (infos.mean, posterior.filter(p, exact, ys[:8])),
        (infos.previous_mean[1:], posterior.one_step_smooth(p, exact, ys[:8])),
    ):
        assert np.abs(found - np.asarray(law.mean)).mean() < 0.25 * spread
    assert np.isnan(infos.previous_mean[0]).all()


class Wandering(StateSpaceModel):
    """An Ornstein–Uhlenbeck process; u = (time since the last observation)."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        kept = jnp.exp(-0.1 * u[0])
        return dist.Normal(kept * x, jnp.sqrt(1 - kept**2)).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)
