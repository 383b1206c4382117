"""Expectation propagation over columns whose directions overlap.

It is exact for normal columns. For others it has a fixed point near the posterior: the sweeps must reach the point that
slow sweeps over dense quadrature reach, and that point is compared with a dense grid of all states.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from backstream.families.guided.propagation import TOLERANCE, propagate
from guided_reference import expectation_propagation

# Log densities of a column with the linear predictor s.
KINDS = {
    "normal": lambda s, y, b: -0.5 * ((y - s) / b) ** 2 - jnp.log(b) - 0.5 * jnp.log(2 * jnp.pi),
    "student": lambda s, y, b: -2.0 * jnp.log1p(((y - s) / b) ** 2 / 3) - jnp.log(b),
    "count": lambda s, y, b: y * (s + b) - jnp.exp(s + b),
    "binary": lambda s, y, b: -jnp.logaddexp(0.0, -y * b * s),
}
B = np.random.default_rng(0).standard_normal((6, 3))
"""What the columns read of three states."""

CASES = {
    "counts": (["count"] * 4, [(3.0, 0.0), (0.0, 0.0), (1.0, 0.5), (6.0, 0.0)]),
    "large counts": (["count"] * 4, [(30.0, 0.0), (0.0, 0.0), (1000.0, 0.5), (6.0, 0.0)]),
    "binary": (["binary"] * 6, [(1.0, 1.0), (-1.0, 2.0), (1.0, 3.0), (1.0, 1.0), (-1.0, 1.0), (1.0, 2.0)]),
    "student": (["student"] * 4, [(0.5, 0.7), (1.0, 0.5), (-0.3, 0.6), (2.0, 1.0)]),
    "mixed": (["normal", "student", "count", "binary"], [(0.5, 0.7), (1.0, 0.5), (4.0, 0.0), (1.0, 2.0)]),
}


class Columns(eqx.Module):
    """Groups of one column each, along directions of unit length."""

    kinds: tuple[str, ...] = eqx.field(static=True)
    parameters: jax.Array
    size: jax.Array
    """Of what a column reads."""

    def __call__(self, s, lift):
        terms = [KINDS[kind](self.size[j] * s[j, :, 0], *self.parameters[j]) for j, kind in enumerate(self.kinds)]
        return jnp.stack(terms)


def case(kinds, parameters, columns=B):
    columns = columns[: len(kinds)]
    size = np.linalg.norm(columns, axis=1)
    directions = jnp.asarray((columns / size[:, None])[:, None])
    return Columns(tuple(kinds), jnp.asarray(parameters), jnp.asarray(size)), directions


def dense(kinds, parameters, columns=B, points=91, end=6.5):
    """Mean, covariance and log mass on a grid of all three states."""
    axis = np.linspace(-end, end, points)
    z = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    log_p = -0.5 * (z**2).sum(1) - 1.5 * np.log(2 * np.pi)
    for kind, given, column in zip(kinds, parameters, columns, strict=False):
        log_p += np.asarray(KINDS[kind](z @ column, *given))
    weight = np.exp(log_p - log_p.max())
    log_mass = log_p.max() + np.log(weight.sum()) + 3 * np.log(axis[1] - axis[0])
    weight /= weight.sum()
    mean = weight @ z
    return mean, (z - mean).T @ (weight[:, None] * (z - mean)), log_mass


def converged(kinds, parameters, columns=B):
    densities = [
        lambda s, kind=kind, given=given: np.asarray(KINDS[kind](s, *given))
        for kind, given in zip(kinds, parameters, strict=True)
    ]
    return expectation_propagation(densities, columns[: len(kinds)])


@pytest.mark.parametrize(("name", "dtype"), [*((name, jnp.float64) for name in CASES), ("large counts", jnp.float32)])
def test_sweeps_reach_the_fixed_point(name, dtype):
    """As near as they say: they end when no mean and no log scale moves by more than a tolerance. The log mass is
    stationary there: 0.002. A count of 1 000 among small ones says a thousand times more than all other columns."""
    kinds, parameters = CASES[name]
    density, directions = jax.tree.map(lambda leaf: leaf.astype(dtype), case(kinds, parameters))
    found = jax.jit(propagate)(density, directions)
    mean, cov, log_mass = converged(kinds, parameters)
    root = np.linalg.inv(np.linalg.cholesky(cov))
    assert np.abs(root @ (found.mean - mean)).max() < TOLERANCE
    found_cov = np.asarray(found.factor @ found.factor.T)
    assert np.abs(root @ found_cov @ root.T - np.eye(3)).max() < 2 * TOLERANCE
    assert abs(found.log_mass - log_mass) < 0.002


@pytest.mark.parametrize("name", CASES)
def test_the_fixed_point_is_near_the_posterior(name):
    """Of dense quadrature. No bound is known. Log-concave columns: means, covariances and log mass to 0.005. Student-t
    columns alone, where several explanations compete: 0.1."""
    kinds, parameters = CASES[name]
    mean, cov, log_mass = converged(kinds, parameters)
    expected, expected_cov, expected_mass = dense(kinds, parameters)
    scale = np.sqrt(np.diag(expected_cov))
    allowed = 0.1 if name == "student" else 0.005
    assert np.abs((mean - expected) / scale).max() < allowed
    assert np.abs((cov - expected_cov) / np.outer(scale, scale)).max() < allowed
    assert abs(log_mass - expected_mass) < allowed


def test_normal_columns_are_exact():
    """Six of them on three states. Grids of 17 nodes reach 4.8 standard deviations where they fit well, and less where
    they were placed before the last sweep moved the mass: 1e-4 in the moments, 1e-3 in the log mass."""
    parameters = [(0.5, 0.7), (1.0, 0.05), (-0.3, 0.6), (2.0, 1.0), (0.2, 0.4), (9.0, 1.0)]
    found = jax.jit(propagate)(*case(["normal"] * 6, parameters))
    y, noise = np.array(parameters).T
    spread = B @ B.T + np.diag(noise**2)
    gain = np.linalg.solve(spread, B).T
    cov = np.eye(3) - gain @ B
    scale = np.sqrt(np.diag(cov))
    np.testing.assert_allclose((found.mean - gain @ y) / scale, 0, atol=1e-4)
    np.testing.assert_allclose(
        found.factor @ found.factor.T / np.outer(scale, scale), cov / np.outer(scale, scale), atol=1e-4
    )
    np.testing.assert_allclose(found.log_mass, scipy.stats.multivariate_normal(cov=spread).logpdf(y), atol=1e-3)


def test_groups_of_two_directions():
    """Columns with a location and a log scale of their own: two groups of two directions, which share one. The
    posterior of a scale is skew, and it is shared: expectation propagation is 6 % of a standard deviation away."""

    def columns(y, s, lift):
        location, log_scale = s[..., 0], s[..., 1]
        return -0.5 * ((y[:, None] - location) * jnp.exp(-log_scale)) ** 2 - log_scale

    y = np.array([1.5, -0.4])
    eye = np.eye(3)
    directions = np.stack([eye[[0, 1]], [[0.6, 0.0, 0.8], [0.0, 1.0, 0.0]]])
    found = jax.jit(propagate)(jax.tree_util.Partial(columns, jnp.asarray(y)), jnp.asarray(directions))
    axis = np.linspace(-6, 6, 91)
    z = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    log_p = -0.5 * (z**2).sum(1) - 1.5 * np.log(2 * np.pi)
    for value, rows in zip(y, directions, strict=True):
        location, log_scale = rows @ z.T
        log_p += -0.5 * ((value - location) * np.exp(-log_scale)) ** 2 - log_scale
    weight = np.exp(log_p - log_p.max())
    log_mass = log_p.max() + np.log(weight.sum()) + 3 * np.log(axis[1] - axis[0])
    weight /= weight.sum()
    mean = weight @ z
    cov = (z - mean).T @ (weight[:, None] * (z - mean))
    scale = np.sqrt(np.diag(cov))
    assert np.abs((found.mean - mean) / scale).max() < 0.06
    assert np.abs(np.sqrt(np.diag(found.factor @ found.factor.T)) / scale - 1).max() < 0.06
    assert abs(found.log_mass - log_mass) < 0.02


def test_a_column_that_reads_nothing_and_one_that_cannot_be():
    """A direction of zeros leaves all as it is. A column that is possible nowhere leaves no mass."""
    kinds, parameters = CASES["counts"]
    density, directions = case(kinds, parameters)
    silent = jnp.concatenate([directions, jnp.zeros((1, 1, 3))])
    more = Columns((*density.kinds, "count"), jnp.asarray([*parameters, (2.0, 0.0)]), jnp.append(density.size, 1.0))
    found, alone = propagate(more, silent), propagate(density, directions)
    np.testing.assert_allclose(found.mean, alone.mean, atol=1e-10)
    np.testing.assert_allclose(found.log_mass, alone.log_mass - 1.0, atol=1e-6)  # 2 · 0 − e⁰
    impossible = Columns(density.kinds, density.parameters.at[1].set(jnp.nan), density.size)
    assert propagate(impossible, directions).log_mass == -jnp.inf


def test_an_outlier_of_a_million_is_survived():
    """Among four Student-t columns: the others decide."""
    kinds, parameters = CASES["student"]
    found = propagate(*case(kinds, [*parameters[:3], (1e6, 1.0)]))
    mean, cov, _ = dense(kinds[:3], parameters[:3])
    assert np.abs((found.mean - mean) / np.sqrt(np.diag(cov))).max() < 0.06


def test_derivatives_are_those_of_differences():
    """The rule is that of one more sweep with the sites held: for the log mass, which is stationary in the sites, it is
    the derivative itself, to 0.5 %. For means it leaves out what the sweeps after it would add: 2 % of the largest
    entry."""
    kinds, parameters = CASES["counts"]
    density, directions = case(kinds, parameters)

    def all_of(parameters):
        found = propagate(eqx.tree_at(lambda d: d.parameters, density, parameters), directions)
        return jnp.concatenate([found.mean, found.log_mass[None]])

    along = jnp.asarray(np.random.default_rng(1).standard_normal((4, 2)))
    slope = jax.jvp(all_of, (density.parameters,), (along,))[1]
    step = 1e-3
    ends = []
    for sign in (-1, 1):
        moved = np.asarray(density.parameters + sign * step * along)
        mean, _, log_mass = dense(kinds, moved)
        ends.append(np.append(mean, log_mass))
    expected = (ends[1] - ends[0]) / (2 * step)
    assert np.abs(slope - expected).max() < 0.02 * np.abs(expected).max()
    assert abs(slope[-1] - expected[-1]) < 0.005 * abs(expected[-1])
