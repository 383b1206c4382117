"""Mixtures of normal laws, against sums over dense nodes and against draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.laws.mixture import Mixture, fit_mixture

LAW = Mixture.of(
    jnp.array([0.2, 0.5, 0.3]),
    jnp.array([[-3.0, 1.0], [0.5, 0.0], [4.0, 2.0]]),
    jnp.array([[[0.5, 0.0], [0.2, 1.0]], [[0.8, 0.0], [-0.3, 0.4]], [[0.1, 0.0], [0.0, 2.0]]]),
)


def nodes_and_masses(law, coordinate, low=-15.0, high=15.0, count=200_001):
    """One coordinate's density times the spacing, at dense nodes."""
    nodes = np.linspace(low, high, count)
    weight, mean = np.asarray(law.weight), np.asarray(law.mean)[:, coordinate]
    cov = np.einsum("kai,kbi->kab", law.factor, law.factor)
    scale = np.sqrt(cov[:, coordinate, coordinate])
    density = (weight / scale / np.sqrt(2 * np.pi) * np.exp(-0.5 * ((nodes[:, None] - mean) / scale) ** 2)).sum(1)
    return nodes, density * (nodes[1] - nodes[0])


def test_the_density_has_mass_one_and_the_moments():
    x, y = np.meshgrid(np.arange(-8, 9, 0.05), np.arange(-12, 13, 0.05), indexing="ij")
    points = np.stack([x.ravel(), y.ravel()], 1)
    mass = np.exp(jax.vmap(LAW.log_prob)(jnp.asarray(points))) * 0.05**2
    mean, cov = LAW.moments()
    np.testing.assert_allclose(mass.sum(), 1, atol=1e-6)
    np.testing.assert_allclose(mass @ points, mean, atol=1e-5)
    np.testing.assert_allclose((mass[:, None] * (points - mean)).T @ (points - mean), cov, atol=1e-4)


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.5, 0.95])
def test_quantiles(probability):
    for coordinate in range(2):
        nodes, mass = nodes_and_masses(LAW, coordinate)
        expected = np.interp(probability, np.cumsum(mass), nodes)
        np.testing.assert_allclose(LAW.quantile(probability)[coordinate], expected, atol=2e-3)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_regions_hold_their_level_and_are_the_densest(level):
    for coordinate in range(2):
        nodes, mass = nodes_and_masses(LAW, coordinate)
        found = np.asarray(LAW.regions(level)[coordinate])
        found = found[~np.isnan(found[:, 0])]
        inside = ((nodes[:, None] >= found[:, 0]) & (nodes[:, None] <= found[:, 1])).any(1)
        np.testing.assert_allclose(mass[inside].sum(), level, atol=3e-3)
        densest = np.cumsum(np.sort(mass)[::-1]) <= level
        # Lengths agree: no other set of this probability is shorter.
        assert abs(inside.sum() - densest.sum()) < 0.02 * densest.sum()


def test_separate_modes_have_separate_regions():
    assert np.isfinite(LAW.regions(0.9)[0]).all(1).sum() == 3
    assert np.isfinite(LAW.regions(0.9)[1]).all(1).sum() == 1


def test_draws_have_the_law():
    """Seed fixed. Kolmogorov's distance of 4 000 draws stays below 0.031 in 999 of 1 000 seeds."""
    draws = np.asarray(LAW.sample((4000,), key=jax.random.key(0)))
    for coordinate in range(2):
        ordered = np.sort(draws[:, coordinate])
        points = np.stack([ordered, ordered], 1)
        expected = np.asarray(LAW.cdf(jnp.asarray(points)))[:, coordinate]
        assert np.abs(np.arange(1, 4001) / 4000 - expected).max() < 0.031


def test_expectation_maximization_keeps_moments_and_raises_the_likelihood():
    points = LAW.sample((500,), key=jax.random.key(1))
    weight = jnp.linspace(0.5, 1.5, 500)
    mean = points.mean(0)
    start = Mixture.of(jnp.ones(3), mean + jnp.array([[-1.0, 0], [0, 0], [1.0, 0]]), jnp.stack([jnp.eye(2)] * 3))
    reached = []
    for turns in (1, 5, 20):
        law = fit_mixture(start, points, weight, jnp.zeros((2, 2)), turns)
        share = weight / weight.sum()
        expected = share @ points
        np.testing.assert_allclose(law.moments()[0], expected, atol=1e-9)
        apart = points - expected
        np.testing.assert_allclose(law.moments()[1], (share[:, None] * apart).T @ apart, atol=1e-9)
        reached.append(float(share @ jax.vmap(law.log_prob)(points)))
    assert reached[0] < reached[1] < reached[2]
