"""Laws of the state that are not normal: as normal parts, and in the filter, against densities and dense grids."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.families.backward import filter_states
from backstream.families.guided.noise import Noise, Parts, known_parts
from backstream.families.guided.noise_fit import find_noise
from benchmarks.zoo.references.grid import grid_smoother
from toys import Toy

CHOICE = dist.CategoricalProbs(jnp.array([0.9, 0.1]))
WIDE, X = jnp.array([0.1, 2.0]), jnp.array([0.4, -1.0])
TWO = jnp.stack([jnp.eye(2), 4 * jnp.eye(2) + 0.5])


def parts_of(law) -> Parts:
    parts = known_parts(law)
    assert parts is not None
    return parts


def log_density(parts, x):
    each = jax.vmap(lambda mean, cov: dist.MultivariateNormal(mean, cov).log_prob(x))(parts.mean, parts.dense())
    return jax.nn.logsumexp(parts.log_weight + each)


def jumps(x, u=None):
    return dist.MixtureSameFamily(CHOICE, dist.Normal(x[:, None], WIDE)).to_event(1)


@pytest.mark.parametrize(
    ("law", "count"),
    [
        (jumps(X), 4),
        (dist.MixtureSameFamily(CHOICE, dist.Normal(0.0, WIDE)).expand([2]).to_event(1), 4),
        (dist.MixtureSameFamily(CHOICE, dist.MultivariateNormal(jnp.stack([X, -X]), TWO)), 2),
        (dist.MixtureSameFamily(CHOICE, dist.Normal(jnp.stack([X, -X]), WIDE[:, None]).to_event(1)), 2),
        (dist.Mixture(CHOICE, [dist.Normal(X, 0.2), dist.Normal(-X, 1.5)]).to_event(1), 4),
        (dist.Mixture(CHOICE, [dist.Normal(X, 0.2).to_event(1), dist.Normal(-X, WIDE).to_event(1)]), 2),
    ],
)
def test_a_mixture_is_read_exactly(law, count):
    parts = parts_of(law)
    assert len(parts.log_weight) == count
    for x in (X, -X, jnp.array([3.0, 0.1])):
        np.testing.assert_allclose(log_density(parts, x), law.log_prob(x), rtol=1e-6)


@pytest.mark.parametrize("choice", [CHOICE, dist.CategoricalProbs(jnp.array([0.2, 0.7, 0.1]))])
def test_many_coordinates_leave_their_main_part_one_at_a_time(choice):
    """Six coordinates, each a mixture: where at most one is outside its main part it is exact; the moments always."""
    d, k = 6, choice.probs.shape[-1]
    own = dist.Normal(jnp.linspace(-1, 1, d * k).reshape(d, k), jnp.linspace(0.1, 2, k))
    law = dist.MixtureSameFamily(choice, own).to_event(1)
    parts = parts_of(law)
    weight, cov = np.exp(parts.log_weight), parts.dense()
    assert len(weight) == d + 2
    np.testing.assert_allclose(weight.sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(weight @ parts.mean, law.mean, atol=1e-6)
    apart = parts.mean - weight @ parts.mean
    variance = np.diagonal(np.einsum("m,mij->ij", weight, cov) + apart.T @ (weight[:, None] * apart))
    np.testing.assert_allclose(variance, law.variance, rtol=1e-5)
    main = int(choice.probs.argmax())
    np.testing.assert_allclose(parts.mean[0], own.mean[:, main], rtol=1e-6)
    np.testing.assert_allclose(weight[0], choice.probs[main] ** d, rtol=1e-5)


def divergence(law, parts, reach=2000.0):
    """KL(law ‖ parts) in one dimension, by quadrature."""
    angle = np.linspace(-1, 1, 4001) * np.arcsinh(reach)
    z, w = np.sinh(angle), np.cosh(angle) * (angle[1] - angle[0])
    log_p = np.asarray(jax.vmap(law.log_prob)(jnp.asarray(z)[:, None]))
    log_q = np.asarray(jax.vmap(lambda x: log_density(parts, x))(jnp.asarray(z)[:, None]))
    mass = np.exp(log_p) * w
    return float((np.where(mass > 0, mass, 0) * np.where(mass > 0, log_p - log_q, 0)).sum())


@pytest.mark.parametrize(("df", "most"), [(2.0, 2e-3), (3.0, 3e-4), (5.0, 3e-4), (30.0, 3e-4)])
def test_a_student_law_is_near_its_parts(df, most):
    law = dist.StudentT(df, jnp.array([0.3]), 0.7).to_event(1)
    assert 0 <= divergence(law, parts_of(law)) < most
    vector = dist.MultivariateStudentT(df, jnp.array([0.3]), jnp.array([[0.7]]))
    np.testing.assert_allclose(log_density(parts_of(vector), X[:1]), log_density(parts_of(law), X[:1]), rtol=1e-6)


class Skewed(dist.Distribution):
    """A law with draws and a density only: loc − scale log E, with E exponential."""

    support = dist.constraints.real  # pyright: ignore[reportAssignmentType]

    def __init__(self, loc, scale):
        self.loc, self.scale = loc, scale
        super().__init__(jnp.shape(loc), ())

    def sample(self, key: Any, sample_shape=()):
        return self.loc + self.scale * jax.random.gumbel(key, (*sample_shape, *self.batch_shape))

    def log_prob(self, value):
        z = (value - self.loc) / self.scale
        return -z - jnp.exp(-z) - jnp.log(self.scale)


@pytest.mark.parametrize(
    ("make", "known", "most"),
    [
        (lambda x: dist.Laplace(x, 0.4).to_event(1), True, 5e-3),
        (lambda x: dist.Logistic(2 * x, 0.4).to_event(1), True, 1e-3),
        (lambda x: Skewed(x, 0.4).to_event(1), False, 1e-3),
    ],
)
def test_a_law_of_another_shape_is_fitted_once(make, known, most):
    noise = find_noise(make, jnp.array([[0.0], [1.0], [-2.0]]), known, jnp.result_type(float))
    assert noise.count == 4
    law = make(jnp.array([0.7]))
    assert divergence(law, noise.parts(law, jnp.result_type(float)), 100.0) < most


def test_what_cannot_be_parts_is_one():
    """A normal law; one whose shape changes with the state; and one with too many combinations."""

    def find(make, d=1):
        return find_noise(make, jnp.eye(3, d), True, jnp.result_type(float))

    assert find(lambda x: dist.Normal(x, 0.3).to_event(1)) == Noise(True)
    assert find(lambda x: dist.Beta(jnp.exp(x) + 1, 2.0).to_event(1)) == Noise(True)
    assert find(lambda x: dist.StudentT(3.0, x, 0.3).to_event(1), 20) == Noise(True)


class Pair(Toy):
    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)


@pytest.mark.parametrize(
    ("law", "straight", "when_bent"),
    [(lambda m: dist.StudentT(3.0, m, 0.3).to_event(1), 16, 4), (lambda m: dist.Laplace(m, 0.3).to_event(1), 16, 4)],
)
def test_a_transition_that_bends_has_few_parts(law, straight, when_bent):
    """Each of seven pieces of each component is moved by all of them."""

    def emit(x, u):
        return dist.Normal(x, 0.5).to_event(1)

    counts = [
        bs.Guided.from_model(Pair(emit, move)).plan.transition.noise.count
        for move in (lambda x, u: law(0.9 * x), lambda x, u: law(jnp.sin(x)))
    ]
    assert counts == [straight, when_bent]


def test_fitted_parts_of_many_coordinates_leave_their_main_part_one_at_a_time():
    def make(x):
        return dist.Laplace(x, 0.4).to_event(1)

    noise = find_noise(make, jnp.eye(3, 6), True, jnp.result_type(float))
    parts = noise.parts(make(jnp.arange(6.0)), jnp.result_type(float))
    assert noise.count == len(parts.log_weight) == 8
    weight = np.exp(parts.log_weight)
    apart = parts.mean - np.arange(6.0)
    np.testing.assert_allclose(weight @ apart, 0.0, atol=1e-4)
    np.testing.assert_allclose(weight @ (parts.cov + apart**2), 2 * 0.4**2, rtol=1e-3)


def test_the_first_rows_are_exact():
    """Jumps, seen with normal noise: a mixture of two Kalman updates. Moments of both states, and the log score."""
    p = Toy(lambda x, u: dist.Normal(x, 0.5).to_event(1), jumps)
    q = bs.Guided.from_model(p)
    before = q.update(p, q.init(p), jnp.array([0.2]))
    after = q.update(p, before, jnp.array([1.6]))
    (m,), ((V,),) = q.moments(before)
    w, S = np.array([0.9, 0.1]), V + np.asarray(WIDE) ** 2
    mass = w * np.exp(dist.Normal(m, jnp.sqrt(S + 0.25)).log_prob(1.6))
    share, gain, back = mass / mass.sum(), S / (S + 0.25), V / S
    mean, var = m + gain * (1.6 - m), S * (1 - gain)
    total = share @ mean
    np.testing.assert_allclose(after.log_score, np.log(mass.sum()), rtol=1e-6)
    np.testing.assert_allclose(q.moments(after)[0], [total], rtol=1e-6)
    np.testing.assert_allclose(q.moments(after)[1], [[share @ (var + mean**2) - total**2]], rtol=1e-6)
    earlier = share @ (m + back * (mean - m))
    np.testing.assert_allclose(after.kernel.mean + after.kernel.gain @ after.mean, [earlier], rtol=1e-6)


def student(x, u):
    return dist.StudentT(3.0, x, 0.3).to_event(1)


def outliers(x, u):
    return dist.MixtureSameFamily(CHOICE, dist.Normal(x[:, None], jnp.array([0.5, 4.0]))).to_event(1)


def bent(x, u):
    return student(x + 0.3 * jnp.sin(2 * x), u)


@pytest.mark.parametrize(
    ("move", "emit", "components"),
    [
        (student, lambda x, u: dist.Normal(x, 0.5).to_event(1), 1),
        (jumps, lambda x, u: dist.Normal(x, 0.5).to_event(1), 4),
        (bent, lambda x, u: dist.Normal(x, 0.5).to_event(1), 1),
        (lambda x, u: dist.Normal(0.95 * x, 0.3).to_event(1), outliers, 1),
    ],
)
def test_filter_and_smoother_are_near_a_dense_grid(move, emit, components):
    """Over 150 rows: errors within 3 % of the exact posterior's, and the log score within 0.005 nats a row."""
    p = Toy(emit, move)
    states, ys = p.simulate(150, key=jax.random.key(1))
    exact, _ = grid_smoother(p, jnp.linspace(states.min() - 8, states.max() + 8, 900), ys, None)
    q = bs.Guided.from_model(p) if components == 1 else bs.GuidedMixture.from_model(p, components=components)
    rows = jax.jit(lambda ys: filter_states(p, q, ys, None))(ys)
    assert abs(float((rows.log_score - exact.log_score).mean())) < 0.005
    smoothed = bs.smooth(p, q, ys, key=jax.random.key(0))
    for limit, mean in ((exact.filtered_mean, jax.vmap(q.moments)(rows)[0]), (exact.smoothed_mean, smoothed.mean)):
        assert ((mean - states) ** 2).mean() < 1.03**2 * ((limit - states) ** 2).mean()


class TwoPlaces(Toy):
    def prior(self, u=None):
        return dist.MixtureSameFamily(CHOICE, dist.Normal(jnp.array([[-3.0, 3.0]]), 0.5)).to_event(1)


@pytest.mark.parametrize("make", [bs.Guided.from_model, bs.GuidedMixture.from_model])
def test_a_prior_in_parts_is_read_in_parts(make):
    p = TwoPlaces(lambda x, u: dist.Normal(x, 1.0).to_event(1), jumps)
    q = make(p)
    state = q.update(p, q.init(p), jnp.array([1.0]))
    log_mass = jnp.log(jnp.array([0.9, 0.1])) + dist.Normal(jnp.array([-3.0, 3.0]), 1.25**0.5).log_prob(1.0)
    np.testing.assert_allclose(q.log_score(state), jax.nn.logsumexp(log_mass), rtol=1e-4)
    mean = jax.nn.softmax(log_mass) @ jnp.array([-3 + 0.2 * 4, 3 - 0.2 * 2])
    np.testing.assert_allclose(q.moments(state)[0], [mean], rtol=1e-4)


@pytest.mark.parametrize("move", [jumps, lambda x, u: dist.Normal(x + jnp.sin(3 * x), 0.3).to_event(1)])
def test_an_impossible_row_leaves_the_prediction(move):
    p = Toy(lambda x, u: dist.Poisson(jnp.exp(x)).to_event(1), move)
    q = bs.Guided.from_model(p)
    before = q.update(p, q.init(p), jnp.array([1.0]))
    missing, impossible = (q.update(p, before, jnp.array([y])) for y in (jnp.nan, -1.0))
    assert bool(impossible.failed) and not bool(missing.failed)
    np.testing.assert_allclose(impossible.mean, missing.mean, rtol=1e-6)
    np.testing.assert_allclose(impossible.factor, missing.factor, rtol=1e-6)
