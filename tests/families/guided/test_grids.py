"""Grids that follow the mass: moments of densities of any scale, place and skewness, and their derivatives.

A grid is accepted when the variance that it sees lies between 0.3 and 1.7 of its frame's. So its edge is at least
reach / √1.7 standard deviations from the mean, and a normal tail beyond that edge bounds what is cut off. The densities
here are prediction × emission, whose tails are no heavier.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from backstream.families.guided.constants import Constant
from backstream.families.guided.grids import MANY, SINGLE, Frame, fit, read
from dense_grids import moments

# Log densities of one coordinate x with parameters (y, a, b), in JAX or NumPy, without the standard normal factor.
KINDS = {
    "normal": lambda np, x, y, a, b: -0.5 * ((y - a * x) / b) ** 2,
    "count": lambda np, x, y, a, b: y * (a * x + b) - np.exp(a * x + b),
    "volatility": lambda np, x, y, a, b: -0.5 * (a * x + b) - 0.5 * y**2 * np.exp(-a * x - b),
    "tail": lambda np, x, y, a, b: -2.0 * np.log1p(((y - a * x) / b) ** 2 / 3),
    "yes or no": lambda np, x, y, a, b: -np.logaddexp(0.0, -y * (a * x + b)),
}
CASES = {
    "standard": ("normal", 0.5, 1.0, 1.0),
    "far away": ("normal", 1e4, 1.0, 1.0),
    "sharp": ("normal", 0.7, 1.0, 1e-6),
    "sharp and far away": ("normal", 3e3, 1.0, 1e-3),
    "flat": ("normal", 0.7, 1.0, 1e6),
    "no count": ("count", 0.0, 1.0, 0.0),
    "a count": ("count", 7.0, 1.0, 0.0),
    "a large count": ("count", 1e6, 1.0, 0.0),
    "a count, steep": ("count", 30.0, 20.0, -3.0),
    "a quiet day": ("volatility", 1e-3, 1.0, 0.0),
    "a wild day": ("volatility", 300.0, 1.0, 0.0),
    "an outlier": ("tail", 1e6, 1.0, 1.0),
    "yes": ("yes or no", 1.0, 3.0, -4.0),
    "no": ("yes or no", -1.0, 1.0, 30.0),
}


def tilted(np, kind, x, *parameters):
    return KINDS[kind](np, x, *parameters) - 0.5 * x**2


class Product(eqx.Module):
    """Densities that factorize in turned coordinates. Their kinds are static, their parameters [r, 3, j] are not."""

    kinds: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    parameters: jax.Array
    turn: Constant = eqx.field(static=True)

    def __call__(self, points):
        coordinates = jnp.einsum("jni,ki->kjn", points, self.turn.value)
        return jnp.stack(
            [
                sum(tilted(jnp, kind, coordinates[k, j], *self.parameters[k, :, j]) for k, kind in enumerate(kinds))
                for j, kinds in enumerate(self.kinds)
            ]
        )


def product(names, r):
    """One density for each name; the other coordinates are those of the next ones."""
    turn = np.linalg.qr(np.random.default_rng(r).standard_normal((r, r)))[0]
    chosen = [[CASES[names[(i + k) % len(names)]] for k in range(r)] for i in range(len(names))]
    parameters = np.array([[case[k][1:] for case in chosen] for k in range(r)]).swapaxes(1, 2)
    return Product(
        tuple(tuple(part[0] for part in case) for case in chosen), jnp.asarray(parameters), Constant(turn)
    ), chosen


def standard(j, r, dtype=float):
    return Frame(jnp.zeros((j, r), dtype), jnp.broadcast_to(jnp.eye(r, dtype=dtype), (j, r, r)))


def reference(case):
    kind, *parameters = case
    return moments(lambda x: tilted(np, kind, x, *parameters))


def tolerances(mesh, r):
    """Of a mean and a variance, in standard deviations, and of a log mass: what a normal tail beyond the edge holds."""
    edge = mesh.reach / 1.7**0.5
    tail = 2 * scipy.stats.norm.sf(edge)
    return edge * tail, edge**2 * tail, r * tail


@pytest.mark.parametrize("meshes", [SINGLE, MANY], ids=["single", "many"])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_moments_are_those_of_quadrature(r, meshes):
    """From a standard normal frame, wherever the mass is, and however narrow the ridge on which it lies."""
    names = list(CASES)
    density, chosen = product(names, r)
    found = jax.jit(lambda density: fit(density, standard(len(names), r), meshes[r]))(density)
    for_mean, for_variance, for_mass = tolerances(meshes[r], r)
    for i, case in enumerate(chosen):
        mean, variance, log_mass = (np.array(part) for part in zip(*map(reference, case), strict=True))
        scale = np.sqrt(variance)
        apart = (density.turn.value @ np.asarray(found.mean[i]) - mean) / scale
        factor = density.turn.value @ np.asarray(found.factor[i]) / scale[:, None]
        assert np.abs(apart).max() < for_mean, (names[i], apart)
        assert np.abs(factor @ factor.T - np.eye(r)).max() < for_variance, (names[i], factor @ factor.T)
        assert abs(found.log_mass[i] - log_mass.sum()) < for_mass, (names[i], found.log_mass[i], log_mass.sum())


def test_a_peak_on_a_wide_law():
    """A Student-t column whose scale is a tenth of the prediction's, up to three standard deviations away from it.

    Here a grid has its limit: a frame that fits the peak cuts off the wide law under it, which holds a few percent of
    the mass. The mean stays within 5 % of a standard deviation, the log mass within 0.03; the standard deviation is
    up to 27 % too small, and is held to 30 %.
    """
    cases = [("tail", y, 1.0, 0.1) for y in (0.0, 1.0, 2.0, 3.0)]
    parameters = jnp.array([[case[1:] for case in cases]]).swapaxes(1, 2)
    density = Product(tuple((case[0],) for case in cases), parameters, ONE)
    for meshes in (SINGLE, MANY):
        found = fit(density, standard(len(cases), 1), meshes[1])
        for i, case in enumerate(cases):
            mean, variance, log_mass = reference(case)
            assert abs(found.mean[i, 0] - mean) < 0.05 * variance**0.5
            assert abs(found.log_mass[i] - log_mass) < 0.03
            assert abs(found.factor[i, 0, 0] / variance**0.5 - 1) < 0.3


ONE = Constant(np.eye(1))


def test_derivatives_are_those_of_quadrature():
    """Of mean, standard deviation and log mass in each parameter, for a frame that had to move: central differences."""
    for name in ("standard", "sharp and far away", "a count", "a large count", "a wild day", "yes"):
        kind, *parameters = CASES[name]

        def moved(parameters, kind=kind):
            found = fit(Product(((kind,),), parameters[None, :, None], ONE), standard(1, 1), SINGLE[1])
            return jnp.stack([found.mean[0, 0], found.factor[0, 0, 0], found.log_mass[0]])

        slopes = np.asarray(jax.jacfwd(moved)(jnp.array(parameters)))
        for i, value in enumerate(parameters):
            step = 1e-4 * max(abs(value), 0.1)
            ends = []
            for sign in (-1, 1):
                other = parameters.copy()
                other[i] = value + sign * step
                mean, variance, log_mass = reference((kind, *other))
                ends.append(np.array([mean, variance**0.5, log_mass]))
            expected = (ends[1] - ends[0]) / (2 * step)
            # The grid cuts off a tail, and with it as much of a derivative.
            unit = reference((kind, *parameters))[1] ** 0.5 / max(abs(value), 0.1)
            assert np.abs(slopes[:, i] - expected).max() < 2e-3 * max(np.abs(expected).max(), unit), (name, i)


class Nowhere(eqx.Module):
    """Finite nowhere; on one side only; at one node."""

    def __call__(self, points):
        x = points[..., 0]
        inside = jnp.stack([x[0] > jnp.inf, x[1] > 0, jnp.abs(x[2] - 30.0) < 4.0])
        return jnp.where(inside, -0.5 * x**2, jnp.array([-jnp.inf, jnp.nan, -jnp.inf])[:, None])


def test_densities_that_are_finite_nowhere_or_in_places():
    """No mass is minus infinity, and not a number at a node is no mass there. What lies far away is found."""
    found = fit(Nowhere(), standard(3, 1), SINGLE[1])
    assert found.log_mass[0] == -np.inf and np.isfinite(found.mean).all() and np.isfinite(found.factor).all()
    # The edge of a density lies between two nodes: it is known to half their distance, and its mass to half a node's.
    assert abs(found.mean[1, 0] - scipy.stats.halfnorm.mean()) < 0.125
    assert abs(found.log_mass[1] - 0.5 * np.log(np.pi / 2)) < 0.125 / np.sqrt(np.pi / 2) * 1.1
    assert 26 < found.mean[2, 0] < 26.2 and abs(found.log_mass[2] - scipy.stats.norm.logsf(26) - 0.919) < 0.5

    def center(a):
        return read(Scaled(a), standard(1, 1), SINGLE[1]).mean.sum()

    ends = [float(center(jnp.asarray(2.0 + step))) for step in (-1e-5, 1e-5)]
    assert float(jax.grad(center)(2.0)) == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-6) and ends[1] < ends[0]


class Scaled(eqx.Module):
    scale: jax.Array

    def __call__(self, points):
        return jnp.where(points[..., 0] > 0, -self.scale * points[..., 0], -jnp.inf)
