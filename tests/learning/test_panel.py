"""A panel is its streams: each as it would be alone, or, where λ is common, as a plain loop over them would have it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from backstream.estimators import FixedLag, RecursiveScore, Renewal, Truncated, moments
from backstream.learning import OnlineLearner, Panel
from backstream.learning.averaging import Averaging
from backstream.learning.multistream import tick_layout as layout
from linear_gaussian import family, model

KEY = jax.random.key(3)
WINDOW = FixedLag(3, 2)
RECURSION = RecursiveScore(4, objective=Renewal(0.8), learn_model=True, functional=moments())
NAMES = {0: (0, 11), 1: (7, 0), 2: (5, 5), 3: (9, 1)}


def learner(estimator):
    return OnlineLearner(model(), estimator, optax.adam(1e-2), optax.adam(3e-3) if estimator.learn_model else None)


def key_of(name):
    return jax.random.fold_in(jax.random.fold_in(KEY, name[0]), name[1])


def rows_of(stream, count):
    ys = np.array(model().simulate(count, key=jax.random.key(100 + stream))[1])
    ys[3], ys[5, 0] = np.nan, np.nan
    return ys


def alone(made, name, ys):
    return made.scan(made.init(family(), key=key_of(name)), ys)


def assert_close(one, other):
    """To rounding, in float64: 1e-9 relative, where different streams differ by more than 0.01."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    for a, b in zip(leaves, others, strict=True):
        if eqx.is_array(a) or isinstance(a, np.ndarray):
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "least_whole", [layout.LEAST_WHOLE, pytest.param(1, marks=pytest.mark.slow)], ids=["working set", "in place"]
)
def test_a_stream_in_a_panel_is_as_it_would_be_alone(least_whole, monkeypatch):
    """Own λ, ragged ticks, missing values; a slot is emptied and used again, the panel grows and shrinks meanwhile, and
    a slot without a row keeps its bits. In a working set of its slots, and on the slots themselves."""
    monkeypatch.setattr(layout, "LEAST_WHOLE", least_whole)
    made = learner(WINDOW)
    panel = Panel(made, family(), key=KEY, common=False, lanes=2)
    state = panel.begin(panel.open(2), [0, 1], [NAMES[0], NAMES[1]])
    data = {stream: rows_of(stream, 12) for stream in NAMES}
    infos = {stream: [] for stream in NAMES}

    def read(state, slots, streams, ticks, at):
        ys = np.stack([data[stream][t] for stream, t in zip(streams, at, strict=True)])
        state, told = panel.read(state, slots, ticks, ys)
        for i, stream in enumerate(streams):
            infos[stream].append(jax.tree.map(lambda leaf, i=i: leaf[i], told))
        return state

    state = read(state, [0, 1, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 1, 2, 2], [0, 0, 1, 2, 1])
    before = jax.tree.map(np.array, eqx.filter(panel.stream(state, 0)._replace(key=None), eqx.is_array))
    state = read(state, [1, 1], [1, 1], [0, 1], [2, 3])
    after = jax.tree.map(np.array, eqx.filter(panel.stream(state, 0)._replace(key=None), eqx.is_array))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    state = panel.begin(state, [1], [NAMES[2]])  # stream 1 has ended; 2 takes its slot
    state = panel.begin(panel.arrange(state, 4, {}), [2], [NAMES[3]])
    for t in range(9):
        state = read(state, [0, 1, 2], [0, 2, 3], [0, 0, 0], [3 + t, t, t])
    state = panel.arrange(state, 2, {2: 0})  # stream 0 has ended; 3 moves to its slot
    state = read(state, [1, 0], [2, 3], [0, 0], [9, 9])
    for stream, slot, count in ((2, 1, 10), (3, 0, 10)):
        expected, told = alone(made, NAMES[stream], data[stream][:count])
        assert_close(expected, panel.stream(state, slot))
        assert_close(told, jax.tree.map(lambda *parts: np.stack(parts), *infos[stream]))
    _, told = alone(made, NAMES[0], data[0])
    assert_close(told, jax.tree.map(lambda *parts: np.stack(parts), *infos[0]))
    assert np.abs(infos[2][5].mean - infos[3][5].mean).max() > 0.01


@pytest.mark.parametrize(
    "estimator", [WINDOW, pytest.param(RECURSION, marks=pytest.mark.slow)], ids=["window", "recursion"]
)
def test_a_common_lambda_moves_along_the_mean_gradient(estimator):
    """Against a loop in Python: each stream's own carry under the common λ (and θ, with the recursion, which has a
    functional too), the mean of the gradients of those that have a row, one step of the optimizer, one of the average.
    A row of 1e300 makes its gradient infinite: its stream is left out of the mean, and keeps its carry."""
    data = {stream: rows_of(stream, 10) for stream in (0, 1, 2)}
    data[1][4] = 1e300
    ticks = [[0, 1, 2], [1], [1, 2], [0, 1], [2], [1, 0, 2], [0, 1, 2], [1]]
    made = learner(estimator)
    panel = Panel(made, family(), key=KEY, common=True, lanes=2)
    state = panel.begin(panel.open(3), [0, 1, 2], [NAMES[s] for s in (0, 1, 2)])

    step = eqx.filter_jit(lambda theta, q, carry, y, key: estimator.step(made._model(theta), q, carry, y, key=key))
    lam, static = eqx.partition(family(), eqx.is_inexact_array)
    theta = made._parameters().unconstrained() if estimator.learn_model else None
    optimizers, now = (optax.adam(1e-2), optax.adam(3e-3)), (lam, theta)
    average, functionals, start = now, {}, estimator.init(model(), family())
    memories = tuple(optimizer.init(part) for optimizer, part in zip(optimizers, now, strict=True))
    carries, seen, slots, at, ys, refused = {}, dict.fromkeys(data, 0), [], [], [], 0
    for number, tick in enumerate(ticks):
        gradients = []
        for stream in tick:
            y, key = data[stream][seen[stream]], jax.random.fold_in(key_of(NAMES[stream]), seen[stream])
            slots.append(stream), at.append(number), ys.append(y)
            lam, theta = now
            found, estimate = step(theta, eqx.combine(lam, static), carries.get(stream, start), y, key)
            seen[stream] += 1
            increment = estimate.increment
            gradient = eqx.filter((increment.gradient, increment.model_gradient), eqx.is_inexact_array)
            if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((increment.elbo, gradient))):
                gradients.append(gradient)
                carries[stream], functionals[stream] = found, estimate.functional
            else:
                refused += 1
        if gradients:
            mean, of_model = jax.tree.map(lambda *parts: -sum(parts) / len(parts), *gradients)
            if theta is not None:
                of_model = made._parameters().pull(theta, of_model)
            found = zip(optimizers, (mean, of_model), memories, strict=True)
            updates, memories = zip(*(optimizer.update(*rest) for optimizer, *rest in found), strict=True)
            longer = len(gradients) ** 0.5
            now = jax.tree.map(lambda value, update, longer=longer: value + longer * update, now, updates)
            average = Averaging().update(average, now, jnp.asarray(number))
    state, infos = panel.read(state, slots, at, np.stack(ys))
    assert refused == int(infos.refused.sum()) == 1
    common = state.common
    assert_close(eqx.filter((common.q, common.theta), eqx.is_inexact_array), now)
    assert_close(eqx.filter((common.average, common.theta_average), eqx.is_inexact_array), average)
    for stream in data:
        found = panel.stream(state, stream)
        assert int(found.t) == seen[stream]
        assert_close(found.carry, carries[stream])
        if estimator is RECURSION:
            assert_close(estimator.expectation(found.q, found.carry), functionals[stream])


def test_a_carry_says_what_is_divided_over_devices():
    """All that has one row for each of 6 samples, and nothing else, whatever the fields of a model are called."""
    p, q = model(), family()
    for estimator in (RecursiveScore(6, learn_model=True), RecursiveScore(6, sensitivity=Truncated(2))):
        carry = eqx.filter_eval_shape(lambda e=estimator: e.init(p, q))
        marks = estimator.by_sample(carry)
        assert jax.tree.map(lambda leaf: leaf.shape[:1] == (6,), carry) == marks and any(jax.tree.leaves(marks))
    other = FixedLag(2, 2)
    carry = eqx.filter_eval_shape(lambda: other.init(p, q))
    assert not any(jax.tree.leaves(other.by_sample(carry)))
