"""Campbell et al.'s regression in the place of importance weights: close to the exact values, as far as it can be.

Regression is biased, so that there is no exact mean to test against. The bounds here are on relative errors with fixed
seeds; the errors themselves, printed with `pytest -s`, are about half of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quadrature
from backstream.estimators.base import flatten
from backstream.estimators.recursive.sensitivity import Forward, Frozen
from backstream.estimators.reference.exact import Exact
from backstream.estimators.reference.regression import Regression
from backstream.estimators.reference.regressors import KernelRidge, Network
from backstream.families import Kalman, PerStep
from backstream.models import LinearGaussian


def linear(d):
    p = LinearGaussian.random(d, d, key=jax.random.key(0))
    return p, Kalman.random(p, key=jax.random.key(3)), p.simulate(5, key=jax.random.key(1))[1]


def compare(found, expected):
    """Relative error and cosine."""
    found, expected = flatten(found)[0], flatten(expected)[0]
    scale = jnp.linalg.norm(expected)
    return float(jnp.linalg.norm(found - expected) / scale), float(found @ expected / scale / jnp.linalg.norm(found))


def run(estimator, p, q, ys, key):
    """The carry and the totals after the last observation."""

    def step(carry, scanned):
        t, y = scanned
        carry, estimate = estimator.step(p, q, carry, y, key=jax.random.fold_in(key, t))
        return carry, estimate.total

    carry, totals = jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))
    return carry, jax.tree.map(lambda leaf: leaf[-1], totals)


@pytest.mark.slow
@pytest.mark.parametrize("d, regressor", [(2, KernelRidge()), (1, Network(width=16))], ids=["kernel", "network"])
def test_gradients_are_close_to_the_exact_ones(d, regressor):
    p, q, ys = linear(d)
    exact = eqx.filter_jit(Exact(learn_model=True))(p, q, ys)
    estimator = Regression(500, regressor, learn_model=True)
    keys = jax.random.split(jax.random.key(0), 3)
    runs = jax.jit(lambda keys: jax.lax.map(lambda key: run(estimator, p, q, ys, key)[1], keys))(keys)
    for k in range(len(keys)):
        found = jax.tree.map(lambda leaf, k=k: leaf[k], runs)
        error, cosine = compare(found.gradient, exact.gradient)
        assert cosine > 0.98
        assert error < 0.3
        assert compare(found.model_gradient, exact.model_gradient)[1] > 0.98
    mean = jax.tree.map(lambda leaf: leaf.mean(0), runs)
    error, cosine = compare(mean.gradient, exact.gradient)
    print(f"gradient: relative error {error:.3f}, cosine {cosine:.4f}; ELBO {mean.elbo:.2f}, exact {exact.elbo:.2f}")
    assert error < 0.2
    assert cosine > 0.99
    assert abs(mean.elbo - exact.elbo) < 0.5


@pytest.mark.parametrize("regressor", [KernelRidge(), Network()], ids=["kernel", "network"])
def test_the_fit_is_close_to_H(regressor):
    """At t = 2, where q_t has its mass: within two standard deviations, up to the constant that is carried apart.

    With parameters that are not shared by all t there is no G, which makes this a test of H alone.
    """
    p, _, ys = linear(1)
    q = PerStep.create(1, 1, width=4, key=jax.random.key(0), mean=0.2, std=0.3)
    ys = ys[:3]
    estimator = Regression(500, regressor, Frozen())
    carry, _ = jax.jit(lambda key: run(estimator, p, q, ys, key))(jax.random.key(0))
    assert carry.G is None
    z = jnp.linspace(-2, 2, 21)[:, None]
    states = quadrature.filter_states(p, q, ys)
    x = carry.frame.restore(z)
    expected = jax.jit(jax.vmap(lambda x: quadrature.H(p, q, ys, states, 2, x)))(x)
    found = estimator.H(carry, x)
    found, expected = found - found.mean(), expected - expected.mean()
    error = jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected)
    print(f"H: relative error {error:.3f}")
    assert error < 0.2


def test_per_step_gradients_go_through_the_fitted_H():
    """The non-amortized scheme at t = 1: ∇ E[Ĥ_0 + f̃_1 − log q_1] in λ^1, with q_0 frozen, against quadrature.

    The gradient is the mean of 20 replicates: it is small next to its noise, which is half of it in a single one.
    """
    p, _, ys = linear(1)
    q0 = PerStep.create(1, 1, width=8, key=jax.random.key(0), mean=0.2, std=0.3)
    q1 = PerStep.create(1, 1, width=8, key=jax.random.key(1), mean=0.1, std=0.4)
    estimator = Regression(250, KernelRidge(), Frozen())

    def replicate(key):
        carry, _ = estimator.step(p, q0, estimator.init(p, q0), ys[0], key=jax.random.fold_in(key, 0))
        return estimator.step(p, q1, carry, ys[1], key=jax.random.fold_in(key, 1))[1]

    found = jax.jit(lambda keys: jax.lax.map(replicate, keys))(jax.random.split(jax.random.key(3), 20))
    found = jax.tree.map(lambda leaf: leaf.mean(0), found)

    def elbo(q):
        states = [q0.init(p), q.update(p, None, ys[1])]
        law = q.marginal(states[1])
        return quadrature.expectation(law, lambda x: quadrature.H(p, q, ys, states, 1, x) - law.log_prob(x))

    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(elbo))(q1)
    error, cosine = compare(found.increment.gradient, gradient)
    print(f"per step: relative error {error:.3f}, cosine {cosine:.4f}")
    assert error < 0.15
    assert cosine > 0.99
    assert abs(found.total.elbo - value) < 0.05


def test_the_carry_is_bounded_and_in_the_precision_of_lambda():
    p, q, ys = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), linear(2))
    estimator = Regression(8, Network(width=4, steps=3))
    traces = []

    @jax.jit
    def step(carry, y, key):
        traces.append(None)
        return estimator.step(p, q, carry, y, key=key)

    carry = estimator.init(p, q)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry)
    for t in range(len(ys)):
        carry, estimate = step(carry, ys[t], jax.random.key(t))
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry) == shapes
    assert len(traces) == 1
    numbers = jax.tree.leaves(eqx.filter((carry, estimate), eqx.is_inexact_array))
    assert {leaf.dtype for leaf in numbers} == {np.dtype("float32")}
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((estimate.total, estimate.increment)))


def test_leaving_one_out_by_hand():
    """What `KernelRidge.fit` predicts at a sample is the fit without it."""
    z, targets = jax.random.normal(jax.random.key(0), (6, 2)), jax.random.normal(jax.random.key(1), (6, 3))
    ridge = KernelRidge()
    _, without = ridge.fit(None, z, targets)
    for k in range(6):
        others = np.delete(np.arange(6), k)
        fit, _ = ridge.fit(None, z[others], targets[others])
        np.testing.assert_allclose(without[k], ridge.predict(fit, z[k : k + 1])[0], rtol=1e-8)


def test_bad_configurations_are_refused():
    for wrong, message in (
        (lambda: Regression(1), "num_samples must be at least 2, not 1"),
        (lambda: KernelRidge(bandwidth=0.0), "bandwidth must be positive, not 0.0"),
        (lambda: KernelRidge(ridge=-1.0), "ridge must be positive, not -1.0"),
        (lambda: Network(width=0), "width must be at least 1, not 0"),
        (lambda: Network(steps=0), "steps must be at least 1, not 0"),
        (lambda: Network(rate=0.0), "rate must be positive, not 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    p, q, _ = linear(1)
    with pytest.raises(TypeError, match="Frozen does not fit Kalman"):
        Regression(8, sensitivity=Frozen()).init(p, q)
    per_step = PerStep.create(1, 1, width=2, key=jax.random.key(0))
    with pytest.raises(TypeError, match="Forward does not fit PerStep"):
        Regression(8, sensitivity=Forward()).init(p, per_step)
