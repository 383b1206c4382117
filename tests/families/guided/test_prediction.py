"""Predictions: moments of the transition under a normal law, the backward kernel, cutting and merging."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from backstream.families.guided.components import FIRST, SECOND, Pieces, cut, cut_finely, merge
from backstream.families.guided.noise import Noise
from backstream.families.guided.prediction import AffineLaw, Transition, backward_kernel, predict
from toys import Toy

RNG = np.random.default_rng(0)
KNOWN = Transition(affine=False, noise=Noise(known=True))


def law_before(d, scale=0.6):
    """Mean and lower factor of q_{t-1}."""
    rng = np.random.default_rng(d)
    factor = np.tril(scale * (0.3 * rng.standard_normal((d, d)) + np.eye(d)))
    return rng.standard_normal(d), factor


def predicted(move, mean, factor, transition=KNOWN, inflation=1.0):
    p = Toy(None, move, d=len(mean))
    return predict(p, transition, jnp.asarray(mean), jnp.asarray(factor), None, jnp.asarray(inflation))


def by_quadrature(mean_at, noise_at, mean, factor, points):
    """Mean, D = E[f zᵀ] and W of the transition by a dense tensor rule."""
    d = len(mean)
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    z = np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), -1).reshape(-1, d)
    w = np.stack(np.meshgrid(*[weights / weights.sum()] * d, indexing="ij"), -1).reshape(-1, d).prod(1)
    f = np.array([mean_at(x) for x in mean + z @ factor.T])
    Q = np.einsum("n,nij->ij", w, np.array([noise_at(x) for x in mean + z @ factor.T]))
    moved = w @ f
    slope = (f - moved).T @ (w[:, None] * z)
    left = f - moved - z @ slope.T
    return moved, slope, Q + left.T @ (w[:, None] * left)


# ---- moments ---------------------------------------------------------------------------------------------------------
def turning(np, x):
    """A smooth function, and a covariance of the state with correlations: a matrix B(x) times its own transpose."""
    d = len(x)
    root = np.eye(d) * (0.3 + 0.1 * np.sin(x)) + 0.1 * np.ones((d, d))
    return np.sin(x) + 0.3 * x * np.cos(x[::-1]), root @ root.T


@pytest.mark.parametrize(("d", "points", "tolerance"), [(1, 60, 1e-10), (2, 30, 1e-5), (3, 14, 1e-2)])
def test_moments_are_those_of_dense_quadrature(d, points, tolerance):
    """With 21, 9 and 5 points along an axis, relative to the predicted standard deviations. For functions as smooth as
    these, of frequency 1 under laws of standard deviation σ = 0.6 to 0.9, a rule of n points is off by about σ²ⁿ/n!."""
    mean, factor = law_before(d)

    def move(x, u):
        return dist.MultivariateNormal(*turning(jnp, x))

    found = predicted(move, mean, factor)
    expected = by_quadrature(lambda x: turning(np, x)[0], lambda x: turning(np, x)[1], mean, factor, points)
    scale = np.sqrt(np.diag(expected[1] @ expected[1].T + expected[2]))
    assert np.abs((found.mean - expected[0]) / scale).max() < tolerance
    assert np.abs((found.slope - expected[1]) / scale[:, None]).max() < tolerance
    assert np.abs((found.rest - expected[2]) / np.outer(scale, scale)).max() < tolerance
    cov = found.slope @ found.slope.T + found.rest
    np.testing.assert_allclose(found.factor @ found.factor.T, cov, rtol=1e-10, atol=1e-12)


class Quadratic:
    """f_k(x) = a_k + B_k x + ½ (L⁻¹(x − m))ᵀ H_k (L⁻¹(x − m)): its moments are known."""

    def __init__(self, d, crossed):
        rng = np.random.default_rng(10 + d)
        self.mean, self.factor = law_before(d)
        self.a, self.B, H = rng.standard_normal(d), rng.standard_normal((d, d)), rng.standard_normal((d, d, d))
        self.H = 0.5 * (H + H.swapaxes(1, 2)) if crossed else np.einsum("ki,ij->kij", H[:, :, 0], np.eye(d))
        self.Q = np.eye(d) + 0.3

    def move(self, x, u):
        z = jax.scipy.linalg.solve_triangular(self.factor, x - self.mean, lower=True)
        curved = 0.5 * jnp.einsum("kij,i,j->k", self.H, z, z)
        return dist.MultivariateNormal(self.a + self.B @ x + curved, self.Q)

    def moments(self):
        mean = self.a + self.B @ self.mean + 0.5 * np.trace(self.H, axis1=1, axis2=2)
        return mean, self.B @ self.factor, self.Q + 0.5 * np.einsum("kij,lij->kl", self.H, self.H)


@pytest.mark.parametrize(("d", "crossed"), [(1, True), (2, True), (3, True), (5, False)])
def test_quadratics_are_exact(d, crossed):
    """Up to three states any; beyond, those without products of two axes of the law."""
    f = Quadratic(d, crossed)
    found = predicted(f.move, f.mean, f.factor)
    for ours, theirs in zip(found[0:1] + found[2:4], f.moments(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_products_of_axes_are_left_out_beyond_three_states():
    """Mean and slope are exact all the same, and the covariance lacks what they add, and no more."""
    f = Quadratic(5, crossed=True)
    found, (mean, slope, rest) = predicted(f.move, f.mean, f.factor), f.moments()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.slope, slope, rtol=1e-10)
    off_axis = f.H * (1 - np.eye(5))
    np.testing.assert_allclose(rest - found.rest, 0.5 * np.einsum("kij,lij->kl", off_axis, off_axis), atol=1e-9)


def test_noise_that_depends_on_many_states_is_averaged_over_the_points():
    """The mean over m ± √3 σ along each axis: positive whatever the noise is, exact where it is affine in the state. Of
    squares along all axes it sees three, where five states have five."""
    mean, factor = law_before(5)

    def move(x, u):
        z = jax.scipy.linalg.solve_triangular(factor, x - mean, lower=True)
        return dist.MultivariateNormal(x, (1 + 0.1 * z[0] + 0.2 * z @ z) * jnp.eye(5))

    np.testing.assert_allclose(predicted(move, mean, factor).rest, (1 + 3 * 0.2) * np.eye(5), atol=1e-9)


@pytest.mark.parametrize("d", [2, 5])
def test_the_affine_path_is_the_general_one(d):
    """On an affine transition with correlated noise, and with a factor on the noise."""
    mean, factor = law_before(d)
    A, Q = RNG.standard_normal((d, d)), np.eye(d) + 0.4

    def move(x, u):
        return dist.MultivariateNormal(A @ x + 1.0, Q)

    affine, general = (predicted(move, mean, factor, Transition(a, Noise(True)), 1.7) for a in (True, False))
    for ours, theirs in zip(affine, general, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(affine.mean, A @ mean + 1.0, rtol=1e-12)
    np.testing.assert_allclose(affine.rest, 1.7 * Q, rtol=1e-12)
    np.testing.assert_allclose(affine.slope, A @ factor, rtol=1e-12)


def test_a_law_without_moments_is_read_from_draws():
    """A Cauchy transition has neither mean nor variance: location and a finite spread, smooth in the state."""
    mean, factor = law_before(2)

    def move(x, u):
        return dist.Cauchy(2 * x, 0.1).to_event(1)

    found = predicted(move, mean, factor, Transition(False, Noise(known=False)))
    np.testing.assert_allclose(found.mean, 2 * mean, atol=0.1)
    np.testing.assert_allclose(found.slope, 2 * factor, rtol=1e-6, atol=1e-12)
    # Draws are cut at four quartile distances, 0.4 for this scale.
    assert np.sqrt(np.diag(found.rest)).min() > 0.1 and np.sqrt(np.diag(found.rest)).max() < 0.9


# ---- the backward kernel ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", [1, 3, 5])
def test_the_kernel_is_the_conditional_of_the_joint_law(d):
    mean, factor = law_before(d)
    move = Toy(None, lambda x, u: dist.MultivariateNormal(*turning(jnp, x)), d=d).move
    found = predicted(move, mean, factor)
    kernel = backward_kernel(jnp.asarray(mean), jnp.asarray(factor), found)
    P, D, W = factor @ factor.T, np.asarray(found.slope), np.asarray(found.rest)
    cross, after = factor @ D.T, D @ D.T + W
    gain = cross @ np.linalg.inv(after)
    np.testing.assert_allclose(kernel.gain, gain, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(kernel.mean, mean - gain @ found.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(kernel.cov, P - gain @ cross.T, rtol=1e-8, atol=1e-10)


def test_the_kernel_of_a_transition_without_noise():
    """It leads back to where it came from, and its covariance is no less than zero."""
    mean, factor = law_before(3)
    A = RNG.standard_normal((3, 3)) + 2 * np.eye(3)

    def move(x, u):
        return dist.Normal(A @ x, jnp.zeros(3), validate_args=False).to_event(1)

    found = predicted(move, mean, factor, Transition(True, Noise(True)))
    kernel = backward_kernel(jnp.asarray(mean), jnp.asarray(factor), found)
    np.testing.assert_allclose(kernel.gain, np.linalg.inv(A), rtol=1e-6)
    np.testing.assert_allclose(kernel.mean, np.zeros(3), atol=1e-6)
    assert np.linalg.eigvalsh(kernel.cov).min() > -1e-16 and np.abs(kernel.cov).max() < 1e-12


# ---- cutting and merging ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", [1, 5])
def test_bend_is_the_share_of_variance_that_no_line_explains(d):
    """x + z²/2 along one axis: the square has a variance of ½."""
    mean, factor = law_before(d)

    def move(x, u):
        z = jax.scipy.linalg.solve_triangular(factor, x - mean, lower=True)
        return dist.MultivariateNormal(x + 0.5 * jnp.zeros(d).at[-1].set(z[-1] ** 2), 0.1 * jnp.eye(d))

    found = predicted(move, mean, factor)
    cov = factor @ factor.T + 0.1 * np.eye(d)
    cov[-1, -1] += 0.5
    expected = np.zeros(d)
    expected[-1] = 0.5 * np.linalg.inv(cov)[-1, -1]
    np.testing.assert_allclose(found.bend, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("bend", [0.005, 0.02, 3.0])
def test_pieces_add_up_to_the_law_that_was_cut(bend):
    mean, factor = law_before(3)
    bends = jnp.array([0.0, bend, 0.0])
    log_weight, piece = cut(jnp.asarray(mean), jnp.asarray(factor), bends)
    means, factors = (np.array(part) for part in zip(*(piece(jnp.asarray(i)) for i in range(FIRST.count)), strict=True))
    weight = np.exp(log_weight)
    np.testing.assert_allclose(weight.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(weight @ means, mean, rtol=1e-12)
    covs = factors @ factors.swapaxes(1, 2) + np.einsum("ji,jk->jik", means - mean, means - mean)
    np.testing.assert_allclose(np.einsum("j,jik->ik", weight, covs), factor @ factor.T, rtol=1e-12)
    # All of it along the axis that bends: a whole cut leaves little of the variance there.
    narrower = factors[0][1:, 1] / factor[1:, 1]
    np.testing.assert_allclose(narrower**2, 1 - FIRST.centers * min(bend / 0.02, 1), rtol=1e-12)
    np.testing.assert_allclose(factors[0][:, [0, 2]], factor[:, [0, 2]], rtol=1e-15)


def test_with_one_state_the_piece_that_bends_most_is_cut_again():
    """The transition bends over all, then only over what lies right of the middle."""

    def bends(pieces):
        return jnp.where(pieces.mean > (0 if len(pieces.mean) == 1 else 1.1), 0.5, 0.0)

    found = cut_finely(jnp.array([1.0]), jnp.array([[2.0]]), bends)
    weight, mean, factor = np.exp(found.log_weight), np.asarray(found.mean[:, 0]), np.asarray(found.factor[:, 0, 0])
    assert len(weight) == FIRST.count + SECOND.count - 1
    np.testing.assert_allclose([weight.sum(), weight @ mean], 1.0, rtol=1e-12)
    np.testing.assert_allclose(weight @ (factor**2 + (mean - 1) ** 2), 4.0, rtol=1e-12)
    once = 2 * np.sqrt(1 - FIRST.centers)
    narrow = np.isclose(factor, once * np.sqrt(1 - SECOND.centers))
    np.testing.assert_allclose(factor[~narrow], once)
    assert narrow.sum() == SECOND.count
    # The heaviest of those that bend is the first right of the middle.
    points, _ = np.polynomial.hermite_e.hermegauss(FIRST.count)
    expected = 1 + 2 * np.sqrt(FIRST.centers) * points[FIRST.count // 2 + 1]
    np.testing.assert_allclose(weight[narrow] @ mean[narrow] / weight[narrow].sum(), expected, rtol=1e-12)


@pytest.mark.parametrize("bend", [0.005, 0.02, 3.0])
def test_with_two_states_a_law_is_cut_once(bend):
    mean, factor = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.0], [0.3, 3.0]])
    found = cut_finely(mean, factor, lambda pieces: jnp.full_like(pieces.mean, bend).at[:, 0].set(0.0))
    log_share, piece = cut(mean, factor, jnp.array([0.0, bend]))
    middle = FIRST.count // 2
    order = [middle, *range(middle), *range(middle + 1, FIRST.count)]
    means, factors = jax.vmap(piece)(jnp.array(order))
    for one, other in zip(found, (log_share[np.array(order)], means, factors), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_merging_keeps_the_joint_moments():
    """Of X_t, and of X_{t-1} given it: the regression under the mixture of all pieces."""
    rng, j, d = np.random.default_rng(3), 4, 3
    weight = rng.random(j) * 1e-7
    means, factors = rng.standard_normal((j, d)), np.tril(rng.standard_normal((j, d, d))) + 2 * np.eye(d)
    gains, centers, spreads = rng.standard_normal((j, d, d)), rng.standard_normal((j, d)), np.zeros((j, d, d))
    spreads[:] = [np.eye(d) * (i + 0.5) for i in range(j)]
    merged = merge(
        Pieces(*map(jnp.asarray, (np.log(weight), means, factors))),
        AffineLaw(*map(jnp.asarray, (centers, gains, spreads))),
    )
    share, covs = weight / weight.sum(), factors @ factors.swapaxes(1, 2)
    before = centers + np.einsum("jab,jb->ja", gains, means)
    joint_means = np.concatenate([before, means], 1)
    crosses = gains @ covs
    joint = np.block([[gains @ covs @ gains.swapaxes(1, 2) + spreads, crosses], [crosses.swapaxes(1, 2), covs]])
    mean = share @ joint_means
    apart = joint_means - mean
    cov = np.einsum("j,jab->ab", share, joint) + apart.T @ (share[:, None] * apart)
    gain = cov[:d, d:] @ np.linalg.inv(cov[d:, d:])
    np.testing.assert_allclose(merged.log_mass, np.log(weight.sum()), rtol=1e-12)
    np.testing.assert_allclose(merged.mean, mean[d:], rtol=1e-10)
    np.testing.assert_allclose(merged.factor @ merged.factor.T, cov[d:, d:], rtol=1e-10)
    np.testing.assert_allclose(merged.kernel.gain, gain, rtol=1e-8)
    np.testing.assert_allclose(merged.kernel.mean, mean[:d] - gain @ mean[d:], rtol=1e-8)
    np.testing.assert_allclose(merged.kernel.cov, cov[:d, :d] - gain @ cov[d:, :d], rtol=1e-8, atol=1e-10)
