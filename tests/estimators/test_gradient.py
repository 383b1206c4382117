"""The score gradient approaches the exact one, and each part of it does what it is there for.

Seeds are fixed. Where a test is statistical, its error rate is that of a correct estimator failing at a new seed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from backstream.estimators import (
    AcceptReject,
    BackwardSampling,
    Exact,
    LeaveOneOut,
    MomentCorrected,
    NoBaseline,
    Quadratic,
    RecursiveScore,
    SameSample,
    Scan,
)
from backstream.estimators.recursive.weights import AllPairs, standard_normal
from backstream.families.backward import first_state
from backstream.laws.gaussian import statistic
from linear_gaussian import exact, family, model, observations, replicate, vector


@pytest.mark.slow
def test_bias_falls_like_one_over_n():
    """bias = b + a/N + c/N²: the regression finds a > 0 and b = 0. Error rate 1e-3 (|b| below 3.3 standard errors).

    A bias that fell like 1/√N, or not at all, would leave a b of more than 3 % of the gradient, six standard errors.
    """
    sizes, replicates, steps = np.array([5, 10, 20, 40, 80]), [3000, 3000, 2000, 2000, 1000], 10
    _, g = exact(steps)
    direction = g / np.linalg.norm(g) ** 2
    bias, error = [], []
    for n, r in zip(sizes, replicates, strict=True):
        along = replicate(RecursiveScore(int(n)), r, steps)[1] @ direction
        bias.append(1 - along.mean())
        error.append(along.std() / np.sqrt(r))
    bias, error = np.array(bias), np.array(error)
    design = np.stack([np.ones(5), 1 / sizes, 1 / sizes**2], axis=1) / error[:, None]
    cov = np.linalg.inv(design.T @ design)
    fit = cov @ design.T @ (bias / error)
    spread = np.sqrt(np.diag(cov))
    assert fit[1] > 5 * spread[1], (bias, error)
    assert abs(fit[0]) < 3.3 * spread[0], (bias, error)
    assert spread[0] < 0.006, "or the test could not tell"


@pytest.mark.slow
def test_large_n_is_close_to_exact_and_sampled_weights_agree():
    """N = 2000: under 5 % with all weights; two backward draws, by either mechanism, within their standard errors.

    The sampled ones are compared along 5 random directions, error rate 1e-3 in all (two-sided, Bonferroni).
    """
    elbo, g = exact()
    _, full = replicate(RecursiveScore(2000), 1, batch=1)
    assert np.linalg.norm(full[0] - g) < 0.05 * np.linalg.norm(g)
    directions = np.random.default_rng(0).standard_normal((len(g), 5))
    directions /= np.linalg.norm(directions, axis=0)
    bound = stats.t.ppf(1 - 1e-3 / 20, 9)
    for weights in (BackwardSampling(2), AcceptReject(2)):
        elbos, gradients = replicate(RecursiveScore(2000, weights), 10, batch=1)
        along = (gradients - full) @ directions
        noise = np.sqrt(along.var(0, ddof=1) * (1 / 10 + 1))  # the run with all weights scatters no more than these do
        assert (np.abs(along.mean(0)) < bound * noise).all(), weights
        assert np.linalg.norm(gradients.mean(0) - g) < 0.1 * np.linalg.norm(g), weights
        assert abs(elbos.mean() - elbo) < 0.1


def test_entropy_term():
    """At the first observation the gradient is right only with the entropy term. Error rate 1e-4."""
    _, g = exact(num_steps=1)
    _, gradients = replicate(RecursiveScore(50), 2000, num_steps=1)
    direction = g / np.linalg.norm(g)
    along = gradients @ direction
    assert abs(along.mean() - np.linalg.norm(g)) < 3.9 * along.std() / np.sqrt(len(along))
    p, q, y = model(), family(), observations()[0]

    def printed(key):  # the printed estimator: ∇log q_0 (H_0 − mean), without −log q_0
        x = q.marginal(first_state(p, q, y)).sample((50,), key=key)
        H = jax.vmap(lambda x: p.prior().log_prob(x) + p.emission(x).log_prob(y))(x)
        score = jax.vmap(jax.grad(lambda q, x: q.marginal(first_state(p, q, y)).log_prob(x)), (None, 0))(q, x)
        return vector(jax.tree.map(lambda s: jnp.tensordot(H - H.mean(), s, 1) / 49, score))

    wrong = np.asarray(jax.jit(jax.vmap(printed))(jax.random.split(jax.random.key(3), 2000))).mean(0)
    assert np.linalg.norm(wrong - g) > np.linalg.norm(g), "off by more than 100 %"


def test_same_sample_baseline_halves_the_backward_score_term():
    """With M = 2 draws the paper's baseline shrinks the score term by (M − 1)/M = 1/2; leave-one-out does not.

    E[Σ_j C_j T(z_j)] = Cov(r, T) exactly for leave-one-out, half of it for the same sample. Error rate 1e-4.
    """
    z = jax.random.normal(jax.random.key(0), (40000, 2, 3))
    r = z[..., 0] + 0.5 * z[..., 1] ** 2  # Cov(r, z_0) = 1
    w = jnp.full(r.shape, 0.5)
    for baseline, expected in ((LeaveOneOut(), 1.0), (SameSample(), 0.5), (NoBaseline(), 1.0)):
        term = np.asarray((baseline.center(w, r) * z[..., 0]).sum(1))
        assert abs(term.mean() - expected) < 3.9 * term.std() / np.sqrt(len(term)), baseline


def test_nothing_explodes_where_one_sample_has_all_the_weight():
    """The division by 1 − Σw² is capped: at an effective sample size of one the score term vanishes, not its
    inverse."""
    r = jnp.array([[0.0, 1.0, -2.0, 3.0]])
    for epsilon in (1e-2, 1e-6, 1e-12, 0.0):
        w = jnp.array([[1 - 3 * epsilon, epsilon, epsilon, epsilon]])
        C = LeaveOneOut().center(w, r)
        assert jnp.abs(C).max() <= 2 * 6 * jnp.maximum(epsilon, 1e-15)
        assert jnp.abs(C - 2 * SameSample().center(w, r)).max() < 1e-12
    z = jax.random.normal(jax.random.key(0), (4, 2))
    pairs = AllPairs(jnp.zeros((1, 4)), w, statistic(z), standard_normal(2, z.dtype))
    value, score = pairs.value_and_score(r, LeaveOneOut())
    np.testing.assert_array_equal(value, r[:, 0], err_msg="that of the one sample")
    np.testing.assert_allclose(score, np.zeros_like(score), atol=1e-12)


@pytest.mark.slow
def test_guard_does_not_cost_the_direction_at_two_particles():
    """At N = 2 the gradient still points along the true one: cosine of the mean above 0.5 (0.25 for unguarded
    leave-one-out, 0.67 for the same sample, measured elsewhere)."""
    _, g = exact()
    for baseline in (LeaveOneOut(), SameSample()):
        mean = replicate(RecursiveScore(2, baseline=baseline), 2000)[1].mean(0)
        assert mean @ g > 0.5 * np.linalg.norm(mean) * np.linalg.norm(g), baseline


@pytest.mark.parametrize("num_steps", [1, pytest.param(20, marks=pytest.mark.slow), 60])
def test_moment_corrected_is_exact_for_linear_gaussian(num_steps):
    """With all quadratic features every integrand is in their span: one run equals the exact value and gradient."""
    elbo, g = exact(num_steps)
    estimator = RecursiveScore(12, MomentCorrected(Quadratic(cross=True), ridge=0.0, cap=1e6))
    elbos, gradients = replicate(estimator, 2, num_steps)
    np.testing.assert_allclose(elbos, elbo, rtol=1e-7)
    np.testing.assert_allclose(gradients, np.broadcast_to(g, gradients.shape), rtol=1e-5, atol=1e-6 * np.abs(g).max())


def test_centered_and_uncentered_recursions_agree():
    """The carry's shift is free: the same draws with H and G shifted by constants give the same increments."""
    p, q, ys = model(), family(), observations()
    estimator = RecursiveScore(10)
    step = jax.jit(estimator.step)
    carry, _ = step(p, q, estimator.init(p, q), ys[0], key=jax.random.key(0))
    shifted = carry._replace(
        H=carry.H._replace(at_samples=carry.H.at_samples + 100.0, rest=carry.H.rest - 100.0),
        G=carry.G._replace(at_samples=carry.G.at_samples + 10.0, rest=carry.G.rest - 10.0),
    )
    _, one = step(p, q, carry, ys[1], key=jax.random.key(1))
    _, other = step(p, q, shifted, ys[1], key=jax.random.key(1))
    np.testing.assert_allclose(one.increment.elbo, other.increment.elbo - 200.0, rtol=1e-10)
    np.testing.assert_allclose(vector(one.increment.gradient), vector(other.increment.gradient) - 20.0, rtol=1e-7)


def test_model_gradient_is_fishers_identity():
    """With q exact the θ-gradient of the ELBO is the gradient of the log-likelihood; corrected weights make it
    exact."""
    p, ys = model(), observations()
    q = family(0.0)
    expected = Exact(learn_model=True)(p, q, ys, key=jax.random.key(0)).model_gradient
    g = np.asarray(vector(expected))
    weights = MomentCorrected(Quadratic(cross=True), ridge=0.0, cap=1e6)
    found = Scan(RecursiveScore(12, weights, learn_model=True))(p, q, ys, key=jax.random.key(0)).model_gradient
    np.testing.assert_allclose(vector(found), g, rtol=1e-6, atol=1e-8)
    run = jax.jit(lambda key: vector(Scan(RecursiveScore(300, learn_model=True))(p, q, ys, key=key).model_gradient))
    mean = np.mean([run(key) for key in jax.random.split(jax.random.key(1), 10)], axis=0)
    assert np.linalg.norm(mean - g) < 0.1 * np.linalg.norm(g)
