"""The state before any data, the first row, and a family that reads the model at the θ of the moment."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from backstream.estimators import (
    BackwardTrajectories,
    Exact,
    FixedLag,
    MomentCorrected,
    RecursiveScore,
    Scan,
    Truncated,
    WindowIncrement,
)
from backstream.estimators.base import flatten
from backstream.families import BackwardFamily, Conjugate, Guided, Kalman, PerStep, Recurrent
from backstream.families.backward import filter_states
from backstream.families.covariance import PositiveDefinite
from backstream.families.linear import LinearDynamics, LinearKernel
from backstream.laws.gaussian import Gaussian
from backstream.learning import OnlineLearner, Panel
from backstream.models import LinearGaussian, StateSpaceModel

KEY = jax.random.key(0)


def linear():
    """Full matrices and a prior that is not that of the next state."""
    root = np.array([[1.0, 0.0], [0.6, 0.5]])
    A = np.array([[0.9, 0.3], [-0.2, 0.7]])
    return LinearGaussian(
        np.array([1.0, -2.0]), root @ root.T, A, np.array([[1.0, 0.5]]), 0.1 * root @ root.T, np.array([0.3])
    )


# ---- the state before any data -----------------------------------------------------------------------------------
def test_the_first_update_is_prior_times_emission():
    """`init` is the prior, without any observation. One update gives its product with the emission, by the formulas for
    two Gaussians; the next update, of a missing row, moves the result by A and Q."""
    p = linear()
    q, y = Kalman.from_model(p), jnp.array([0.7])
    mean0, Q0, A, B, Q, R = (np.asarray(part) for part in p.dense())
    start = q.init(p)
    for found, expected in zip(q.marginal(start).moments(), (mean0, Q0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    precision = np.linalg.inv(Q0) + B.T @ np.linalg.inv(R) @ B
    cov = np.linalg.inv(precision)
    mean = cov @ (np.linalg.inv(Q0) @ mean0 + B.T @ np.linalg.inv(R) @ y)
    first = q.update(p, start, y)
    for found, expected in zip(q.marginal(first).moments(), (mean, cov), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    second = q.update(p, first, jnp.array([jnp.nan]))
    for found, expected in zip(q.marginal(second).moments(), (A @ mean, A @ cov @ A.T + Q), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


P2 = LinearGaussian.random(2, 2, key=KEY)
FAMILIES = {
    "Kalman": Kalman.random(P2, key=KEY),
    "Conjugate": Conjugate.create(2, 2, 4, key=KEY),
    "Guided": Guided.from_model(P2),
    "Recurrent": Recurrent.create(2, 2, 4, key=KEY),
    "PerStep": PerStep.create(2, 2, 4, key=KEY),
}


@pytest.mark.parametrize("q", FAMILIES.values(), ids=FAMILIES)
def test_a_state_keeps_its_shapes_from_before_the_first_row(q):
    """So that one compiled update serves all rows. A missing first row leaves what was there, except in `Recurrent`,
    which reads that it is missing."""
    start = q.init(P2)
    for y in (jnp.ones(2), jnp.full(2, jnp.nan)):
        after = q.update(P2, start, y)
        assert jax.tree.structure(after) == jax.tree.structure(start)
        kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (start, after)]
        assert kinds[0] == kinds[1]
    if not isinstance(q, Recurrent):
        np.testing.assert_allclose(q.marginal(after).eta, q.marginal(start).eta, rtol=1e-9)


# ---- no time has passed ------------------------------------------------------------------------------------------
class Wandering(StateSpaceModel):
    """A process in continuous time; u holds the time since the last row. Over no time its transition has no density,
    and its standard deviation no derivative in the state or in θ."""

    rate: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        kept = jnp.exp(-self.rate * u[0])
        return dist.Normal(kept * x, jnp.sqrt((1 - kept**2) * (1.0 + 0.1 * x**2))).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)


WANDERING, ROWS = Wandering(jnp.array([0.3])), 6
WAITS = jnp.array([1.0, 0.5, 2.0, 0.1, 1.0, 0.7])[:, None]
READERS = {
    "guided": Guided.from_model(WANDERING, WAITS[0]),
    "blind": Recurrent.create(1, 1, 4, key=KEY),
}


def estimates(estimator, q, waits):
    """At every row."""
    ys = WANDERING.simulate(ROWS, WAITS, key=jax.random.key(1))[1]

    @jax.jit
    def whole(waits, key):
        def step(carry, scanned):
            t, y, u = scanned
            return estimator.step(WANDERING, q, carry, y, u, key=jax.random.fold_in(key, t))

        _, found = jax.lax.scan(step, estimator.init(WANDERING, q, waits[0]), (jnp.arange(ROWS), ys, waits))
        return found.total, found.increment

    return jax.vmap(whole, (0, None))(waits, KEY)


@pytest.mark.slow
@pytest.mark.parametrize("q", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "estimator",
    [
        FixedLag(3, 2, WindowIncrement(), learn_model=True),
        RecursiveScore(4, learn_model=True),
        RecursiveScore(4, MomentCorrected(), Truncated(4)),
    ],
    ids=["window", "forward", "truncated"],
)
def test_the_inputs_of_the_first_row_may_say_that_no_time_has_passed(estimator, q):
    """Values and gradients in λ and θ are those that any other inputs of the first row would give: prior and emission
    do not read them here. Two streams together, as in a panel, of which one has such a row."""
    found = estimates(estimator, q, jnp.stack([WAITS, WAITS.at[0].set(0.0)]))
    for leaf in jax.tree.leaves(found):
        assert np.isfinite(leaf).all()
        np.testing.assert_allclose(leaf[0], leaf[1], rtol=1e-9, atol=1e-9)


# ---- a family that reads the model ---------------------------------------------------------------------------------
class Follower(BackwardFamily):
    """q_t = N(m_t, scale²), m_t = f + gain (y − f): f is where p's transition takes m_{t-1}, ψ_t is p's transition."""

    gain: jax.Array
    log_scale: jax.Array
    affine: ClassVar[bool] = True
    amortized: ClassVar[bool] = True
    state_dim: ClassVar[int] = 1
    obs_dim: ClassVar[int] = 1

    def init(self, p, u=None):
        return p.prior(u).mean, jnp.asarray(False)

    def update(self, p, state, y, u=None):
        mean, moves = state
        mean = jnp.where(moves, p.transition(mean, u).mean, mean)
        return mean + self.gain * jnp.where(jnp.isnan(y), 0.0, y - mean), jnp.asarray(True)

    def marginal(self, state):
        precision = jnp.exp(-2 * self.log_scale)
        return Gaussian.from_precision(precision * state[0], jnp.diag(precision))

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        noise, prior = (PositiveDefinite.from_scale(scale) for scale in (p.transition_scale, p.prior_scale))
        return LinearKernel(LinearDynamics(p.mean0, prior, p.A, noise))


def followed(rows=8):
    one = jnp.ones(1)
    p = LinearGaussian(0.5 * one, one, 0.8 * one, one, 0.5 * one, 0.7 * one)
    return p, Follower(0.4 * one, jnp.log(0.6 * one)), p.simulate(rows, key=jax.random.key(2))[1]


def slopes(function, theta, step=1e-5):
    """Central differences."""
    return np.array([(function(theta + h) - function(theta - h)) / (2 * step) for h in step * np.eye(len(theta))])


@pytest.mark.parametrize("estimator", [BackwardTrajectories(3, learn_model=True), Exact(learn_model=True)])
def test_the_gradient_in_theta_goes_through_the_reading(estimator):
    """With the noise held, the ELBO is a function of θ by way of p and of what q reads of p: against differences. The
    part by way of q is no small one."""
    p, q, ys = followed()
    theta, rebuild = flatten(p)
    run = jax.jit(lambda theta: estimator(rebuild(theta), q, ys, key=KEY))
    found = flatten(run(theta).model_gradient)[0]
    np.testing.assert_allclose(found, slopes(lambda theta: run(theta).elbo, theta), rtol=1e-6, atol=1e-7)

    class Deaf(Follower):
        def update(self, p, state, y, u=None):
            return super().update(jax.lax.stop_gradient(p), state, y, u)

        def kernel(self, p, state):
            return super().kernel(jax.lax.stop_gradient(p), state)

    without = flatten(estimator(p, Deaf(q.gain, q.log_scale), ys, key=KEY).model_gradient)[0]
    assert np.abs(without - found).max() > 0.1


@pytest.mark.parametrize("rows", [2, 7], ids=["starting", "steady"])
def test_a_window_differentiates_through_the_reading(rows):
    """The same for the window of four rows, from the state before it, which is given."""
    p, q, ys = followed()
    estimator, (theta, rebuild) = FixedLag(4, 3, learn_model=True), flatten(p)
    step = jax.jit(lambda theta, carry, y: estimator.step(rebuild(theta), q, carry, y, key=KEY))
    carry = estimator.init(p, q)
    for y in ys[:rows]:
        carry, _ = step(theta, carry, y)

    def last(theta):
        return step(theta, carry, ys[rows])[1].total

    found = flatten(last(theta).model_gradient)[0]
    np.testing.assert_allclose(found, slopes(lambda theta: last(theta).elbo, theta), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True], ids=["alone", "in a panel"])
def test_q_is_given_the_theta_of_the_moment(many):
    """While θ is learned, the filter that is reported reads the model at the averaged θ, and the estimator that of the
    current one: by hand, row by row, from the λ and θ before each. At the θ of the start both would be others."""
    p, q, ys = followed(12)
    made = OnlineLearner(p, FixedLag(2, 2, learn_model=True), optax.adam(3e-2), optax.adam(1e-1))
    panel = Panel(made, q, key=KEY, common=False, lanes=1)
    if many:
        panel_state = panel.begin(panel.open(1), [0], [[0, 1]])
        panel_state, _ = panel.read(panel_state, [0], [0], ys[:1])
        state = panel.stream(panel_state, 0)
    else:
        state, _ = made.step(made.init(q, key=KEY), ys[0])
    step = eqx.filter_jit(lambda *given, key: made.estimator.step(*given, key=key)[1].increment.elbo)
    filtered = other = q.update(p, q.init(p), ys[0])
    for y in ys[1:]:
        before = jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state)
        if many:
            panel_state, info = panel.read(panel_state, [0], [0], y[None])
            state, elbo = panel.stream(panel_state, 0), info.elbo[0]
        else:
            state, info = made.step(state, y)
            elbo = info.elbo
        filtered = before.average.update(made.current_model(before), filtered, y)
        other = before.average.update(p, other, y)
        np.testing.assert_allclose(state.filtered[0], filtered[0], rtol=1e-9)
        key = jax.random.fold_in(before.key, before.t)
        now, start = (step(model, before.q, before.carry, y, key=key) for model in (made._model(before.theta), p))
        np.testing.assert_allclose(elbo, now, rtol=1e-9)
    assert abs(filtered[0] - other[0]).item() > 0.01
    assert abs(now - start) > 0.01


def test_filtering_after_the_fact_reads_the_model_that_is_given():
    """The same q with another p is another posterior."""
    p, q, ys = followed()
    other = eqx.tree_at(lambda p: p.A, p, -p.A)
    means = [filter_states(model, q, ys)[0] for model in (p, other)]
    np.testing.assert_array_equal(means[0][0], means[1][0])  # nothing leads to the first row
    assert (means[0][1:] != means[1][1:]).all()
    online, exact = (
        np.array([float(estimator(model, q, ys, key=KEY).elbo) for model in (p, other)])
        for estimator in (jax.jit(Scan(RecursiveScore(300))), Exact())
    )
    assert np.abs(online - exact).max() < 0.1 * abs(exact[0] - exact[1])
