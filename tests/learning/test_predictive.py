"""Predictive scores: PIT values are uniform where the model is right, and only there.

Each test of uniformity is at a level of 1e-4, with the seed fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from backstream import StateSpaceModel
from backstream.learning import Settings, build
from backstream.learning.predictive import predictive_scores, ranked_score
from backstream.models import LinearGaussian

KEY = jax.random.key(3)


class Walk(StateSpaceModel):
    """A random walk, seen through a law of the test's choice."""

    law: object

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return self.law(x)


LAWS = {
    "normal": lambda x: dist.Normal(x, 0.5).to_event(1),
    "counts": lambda x: dist.Poisson(jnp.exp(x)).to_event(1),
    "yes or no": lambda x: dist.BernoulliLogits(2 * x).to_event(1),
    "angle": lambda x: dist.VonMises(x + 3.0, 4.0).to_event(1),
}


def infos(p, ys, **settings):
    watched, q, key = build(p, Settings(learn=False, **settings))
    state, first = watched.begin(q, np.asarray(ys[:1]), key=key)
    _, later, _ = watched.read(state, np.asarray(ys[1:]))
    return jax.tree.map(lambda a, b: np.concatenate([a, b]), first, later)


@pytest.mark.parametrize("name", LAWS)
def test_pit_values_are_uniform_for_continuous_discrete_and_circular_laws(name):
    p = Walk(LAWS[name])
    found = infos(p, p.simulate(1200, key=KEY)[1])
    assert stats.kstest(found.pit[:, 0], "uniform").pvalue > 1e-4
    normal = stats.norm.ppf(found.pit[:, 0])
    assert abs(np.corrcoef(normal[1:], normal[:-1])[0, 1]) < 4 / np.sqrt(1200), "no row is predicted by those before"


def test_a_wrong_scale_shows_in_pit_values_and_residuals():
    p = Walk(LAWS["normal"])
    ys = p.simulate(600, key=KEY)[1]
    right, wrong = infos(p, ys), infos(p, 2 * ys)
    assert stats.kstest(wrong.pit[:, 0], "uniform").pvalue < 1e-6
    ok, low = ((np.abs(found.pit - 0.5) < 0.45).mean() for found in (right, wrong))
    assert abs(ok - 0.9) < 4 * np.sqrt(0.09 / 600) and low < 0.7
    assert abs(right.residual.mean()) < 4 * 1.1 / np.sqrt(600)
    assert 1.8 < wrong.residual.std() / right.residual.std() < 2.2


def test_the_prediction_is_that_of_q_before_the_row():
    """Against the Kalman prediction, with many draws: the draws pass through q_{t-1}, transition and emission."""
    p = LinearGaussian.random(2, 2, key=KEY)
    q = build(p, Settings())[1]
    before = q.update(p, q.init(p), jnp.array([0.3, -0.2]))
    y = jnp.array([0.5, jnp.nan])
    found = predictive_scores(p, q, before, jnp.asarray(False), y, None, 20_000, key=KEY)
    mean, cov = q.moments(before)
    _, _, A, B, Q, R = p.dense()
    center, spread = B @ A @ mean, B @ (A @ cov @ A.T + Q) @ B.T + R
    z = (y[0] - center[0]) / jnp.sqrt(spread[0, 0])
    assert abs(found.residual[0] - z) < 4 * np.sqrt((1 + z**2 / 2) / 20_000)
    assert abs(found.pit[0] - stats.norm.cdf(z)) < 4 * 0.5 / np.sqrt(20_000)
    # Gneiting and Raftery (2007), for a normal law
    exact = np.sqrt(spread[0, 0]) * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert abs(found.crps[0] - exact) < 4 * 1.2 * np.sqrt(spread[0, 0] / 20_000)
    assert np.isnan(found.pit[1]) and np.isnan(found.residual[1]), "what is missing has no score"


def test_crps_is_the_mean_over_pairs_without_bias():
    """Two draws are enough: the mean over many pairs is that of the law, here N(0, 1) at 0.4."""
    draws = np.random.default_rng(0).standard_normal((2, 40_000))
    found = np.asarray(ranked_score(jnp.asarray(draws), jnp.full(40_000, 0.4)))
    by_hand = np.abs(draws - 0.4).mean(0) - np.abs(draws[0] - draws[1]) / 2
    np.testing.assert_allclose(found, by_hand, atol=1e-12)
    exact = 0.4 * (2 * stats.norm.cdf(0.4) - 1) + 2 * stats.norm.pdf(0.4) - 1 / np.sqrt(np.pi)
    assert abs(found.mean() - exact) < 4 * found.std() / np.sqrt(40_000)
    three = jnp.array([[1.0], [4.0], [2.0]])
    np.testing.assert_allclose(ranked_score(three, jnp.array([3.0])), 4 / 3 - (3 + 1 + 2) / 6, rtol=1e-12)


def test_labels_have_no_rank():
    p = Walk(lambda x: dist.CategoricalLogits(jnp.stack([x, -x], -1)).to_event(1))
    found = infos(p, p.simulate(40, key=KEY)[1])
    assert np.isnan(found.pit).all() and np.isfinite(found.log_score).all()
