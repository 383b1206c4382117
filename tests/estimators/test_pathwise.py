"""The pathwise recursion against dense Gaussian algebra: where H and G are quadratic it loses nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import oracle
from backstream.estimators import Exact, Forward, Frozen, Quadratic, RecursivePathwise, Renewal, Scan, Truncated
from backstream.estimators.base import flatten
from backstream.families import Recurrent
from backstream.families.backward import first_state
from backstream.models.density import log_emission, log_prior
from test_score import DY, D, family, model, observations, oracle_lambda, oracle_model, run

REPLICATES = 400


def replicates(estimator, seed):
    """ELBO and gradients of 400 runs over the same observations."""
    p, q, ys = model(), family(), observations()
    keys = jax.random.split(jax.random.key(seed), REPLICATES)
    return jax.jit(jax.vmap(lambda key: Scan(estimator)(p, q, ys, key=key)))(keys)


def z_scores(values, expected):
    """Some entries are exact, up to rounding and the ridge, without any noise: an error of 1e-6 is granted to all."""
    values = np.asarray(values).reshape(REPLICATES, -1)
    error = values.std(0, ddof=1) / np.sqrt(REPLICATES)
    return (values.mean(0) - np.ravel(expected)) / (error + 1e-6)


def bound(count):
    """What a z-score exceeds with probability 1e-3 / count."""
    return stats.norm.isf(0.5e-3 / count)


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_is_unbiased_for_linear_gaussian_models(gamma):
    """With all quadratic features and N above their number, given the fitted points, everything is linear in noise of
    mean zero. 1 + 14 z-scores, at a fixed seed; fails with probability 1e-3 over seeds if that is so. A ridge, which
    biases, is all but left out.
    """
    estimator = RecursivePathwise(16, Forward(), Renewal(gamma), Quadratic(cross=True), ridge=1e-9)
    estimates = replicates(estimator, 0)
    q = family()
    expected = oracle.dense_renewal(
        oracle_model(), oracle.kalman_family(D, DY), oracle_lambda(q), np.asarray(observations()), gamma
    )
    gradients = np.array(
        [oracle_lambda(jax.tree.map(lambda leaf, r=r: leaf[r], estimates.gradient)) for r in range(REPLICATES)]
    )
    scores = np.concatenate([z_scores(estimates.elbo, expected[0]), z_scores(gradients, expected[1])])
    assert np.abs(scores).max() < bound(len(scores))


@pytest.mark.slow
def test_the_model_gradient_is_unbiased_for_linear_gaussian_models():
    """As above, for θ."""
    estimates = replicates(RecursivePathwise(16, features=Quadratic(cross=True), ridge=1e-9, learn_model=True), 1)
    exact = Exact(learn_model=True)(model(), family(), observations(), key=jax.random.key(0))
    found = np.concatenate(
        [np.asarray(leaf).reshape(REPLICATES, -1) for leaf in jax.tree.leaves(estimates.model_gradient)], axis=1
    )
    scores = z_scores(found, flatten(exact.model_gradient)[0])
    assert np.abs(scores).max() < bound(len(scores))


@pytest.mark.slow
def test_many_samples_are_close_to_the_exact_gradient():
    """One run: no average over replicates hides an error. 0.02 measured with 2 000 samples, noise of order 1/√N."""
    exact = Exact()(model(), family(), observations(), key=jax.random.key(0))
    found = run(RecursivePathwise(2000, features=Quadratic(cross=True)), observations(), jax.random.key(2))
    gradient = oracle_lambda(jax.tree.map(lambda leaf: leaf[-1], found.total.gradient))
    expected = oracle_lambda(exact.gradient)
    assert np.linalg.norm(gradient - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.slow
def test_the_gradient_has_what_the_marginal_reads_of_lambda_by_itself():
    """At the first row H is a quadratic, so that nothing is lost: the gradient is that of the ELBO in closed form. The
    marginal of a recurrent family is a network of a_t, with a λ of its own."""
    p, q, y = model(), Recurrent.create(D, DY, 3, key=jax.random.key(5)), observations()[0]
    lam, rebuild = flatten(q)

    def elbo(lam):
        q = rebuild(lam)
        mean, cov = q.moments(q.update(p, q.init(p), y))

        def joint(x):
            return log_prior(p, x) + log_emission(p, x, y)

        entropy = 0.5 * jnp.linalg.slogdet(2 * jnp.pi * jnp.e * cov)[1]
        return joint(mean) + 0.5 * jnp.trace(jax.hessian(joint)(mean) @ cov) + entropy

    estimator = RecursivePathwise(16, features=Quadratic(cross=True), ridge=1e-9)
    _, estimate = eqx.filter_jit(estimator.step)(p, q, estimator.init(p, q), y, key=jax.random.key(6))
    np.testing.assert_allclose(estimate.total.elbo, elbo(lam), rtol=1e-6)
    np.testing.assert_allclose(flatten(estimate.total.gradient)[0], jax.grad(elbo)(lam), rtol=1e-5, atol=1e-6)


def test_increments_add_up_to_the_total():
    found = run(RecursivePathwise(6), observations(), jax.random.key(3))
    np.testing.assert_allclose(np.cumsum(found.increment.elbo), found.total.elbo, rtol=1e-9)


@pytest.mark.slow
def test_a_sensitivity_discounted_to_nothing_is_truncated_after_one_step():
    key = jax.random.key(4)
    found = [run(RecursivePathwise(6, s), observations(), key) for s in (Forward(0.0), Truncated(1))]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_discounted_sensitivity_counts_the_past_less():
    """J_t = Σ_k δ^k (∂a_t/∂a_{t-k}) ∂_λ U: by hand from the Jacobians of single updates."""
    p, q, ys, delta = model(), family(), observations(), 0.6
    lam, rebuild = flatten(q)
    states = [first_state(p, q, ys[0])]
    for y in ys[1:]:
        states.append(q.update(p, states[-1], y))
    _, carry = Forward(delta).init(p, q, ys[0], None)()
    flat = [flatten(s)[0] for s in states]
    _, restore = flatten(states[0])
    terms = [jax.jacobian(lambda v: flatten(first_state(p, rebuild(v), ys[0]))[0])(lam)]
    for t, y in enumerate(ys[1:], start=1):
        _, carry = Forward(delta).advance(p, q, carry, states[t - 1], y, None)()
        U_a = jax.jacobian(lambda a, y=y: flatten(q.update(p, restore(a), y))[0])(flat[t - 1])
        U_lam = jax.jacobian(lambda v, y=y, t=t: flatten(rebuild(v).update(p, states[t - 1], y))[0])(lam)
        terms = [*(U_a @ term for term in terms), U_lam]
        weights = delta ** np.arange(len(terms))[::-1]
        np.testing.assert_allclose(carry, sum(w * term for w, term in zip(weights, terms, strict=True)), atol=1e-10)


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="num_samples must be an even number, at least 2, not 5"):
        RecursivePathwise(5)
    with pytest.raises(ValueError, match="ridge must be positive"):
        RecursivePathwise(4, ridge=0.0)
    with pytest.raises(ValueError, match="is for amortized families"):
        RecursivePathwise(4, Frozen())
    with pytest.raises(ValueError, match="discount of the sensitivity must lie between 0 and 1, not at 2"):
        Forward(2.0)
