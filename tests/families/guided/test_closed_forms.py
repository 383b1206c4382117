"""Conditioning on normal columns: the dense formulas, and single precision with noise of a millionth of the spread."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from backstream.families.guided.closed_forms import FEW, condition


def dense(slope, residual):
    """Mean, covariance and log mass of z ~ N(0, I) given residual = slope z + N(0, I)."""
    spread = slope @ slope.T + np.eye(len(slope))
    gain = np.linalg.solve(spread, slope).T
    return (
        gain @ residual,
        np.eye(slope.shape[1]) - gain @ slope,
        scipy.stats.multivariate_normal(cov=spread).logpdf(residual),
    )


@pytest.mark.parametrize("d", [1, 3, 6])
@pytest.mark.parametrize("c", [1, FEW, FEW + 1, 9])
def test_condition_is_the_dense_formula(c, d):
    """Columns one by one, and all at once: fewer and more of them than states."""
    rng = np.random.default_rng(c * 10 + d)
    slope, residual = 2 * rng.standard_normal((c, d)), 3 * rng.standard_normal(c)
    found = condition(jnp.asarray(slope), jnp.asarray(residual))
    mean, cov, log_mass = dense(slope, residual)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.factor @ found.factor.T, cov, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.log_mass, log_mass, rtol=1e-11)


@pytest.mark.parametrize("c", [1, 2, FEW + 2])
def test_a_column_that_says_nothing_changes_nothing(c):
    found = condition(jnp.zeros((c, 3)), jnp.zeros(c))
    np.testing.assert_array_equal(found.mean, 0)
    np.testing.assert_allclose(found.factor @ found.factor.T, np.eye(3), atol=1e-15)
    np.testing.assert_allclose(found.log_mass, -0.5 * c * np.log(2 * np.pi), rtol=1e-15)


@pytest.mark.parametrize("c", [1, 3, FEW + 2])
def test_noise_of_a_millionth_of_the_spread_in_single_precision(c):
    """Along each axis the standard deviation is right to 3e-7 of the prediction's, a few roundings of a factor whose
    entries are below one: what is seen is a millionth, what is not seen stays one. A covariance from which the gain is
    subtracted is off by one rounding, whose root is 3e-4. The mean is right to a thousandth along what is not seen."""
    rng = np.random.default_rng(c)
    slope = 1e6 * np.linalg.qr(rng.standard_normal((8, 8)))[0][:c] * np.logspace(0, 0.3, c)[:, None]
    z = rng.standard_normal(8)
    residual = slope @ z + rng.standard_normal(c)
    found = condition(jnp.asarray(slope, jnp.float32), jnp.asarray(residual, jnp.float32))
    assert found.factor.dtype == jnp.float32
    # The reference takes what single precision was given.
    mean, cov, _ = dense(np.asarray(slope, np.float32).astype(float), np.asarray(residual, np.float32).astype(float))
    _, axes = np.linalg.eigh(cov)
    scale = np.sqrt(np.sort(np.concatenate([1 / (1 + np.linalg.svd(slope)[1] ** 2), np.ones(8 - c)])))
    factor = axes.T @ np.asarray(found.factor, float)
    np.testing.assert_allclose(np.sqrt((factor**2).sum(1)), scale, rtol=1e-6, atol=3e-7)
    unseen = scale > 0.5
    assert np.abs(axes.T @ (np.asarray(found.mean, float) - mean))[unseen].max() < 1e-3


@pytest.mark.parametrize("c", [3, 40])
def test_columns_that_repeat_each_other_say_nothing_of_the_rest(c):
    """Columns of all sizes that read the same two of eight directions with noise of a millionth of the spread: their
    roundings differ, which is no information about the other six directions."""
    rng = np.random.default_rng(c)
    axes = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    slope = 1e6 * rng.standard_normal((c, 2)) @ axes[:2]
    found = condition(jnp.asarray(slope, jnp.float32), jnp.asarray(slope @ rng.standard_normal(8), jnp.float32))
    unseen = np.sqrt(((axes[2:] @ np.asarray(found.factor, float)) ** 2).sum(1))
    np.testing.assert_allclose(unseen, 1.0, atol=1e-3)
    assert np.isfinite(found.log_mass)
