"""The recursive score estimator against a loop-by-loop reading of the paper's equations."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
from backstream.estimators import (
    AcceptReject,
    BackwardSampling,
    Forward,
    Frozen,
    Increment,
    LeaveOneOut,
    MomentCorrected,
    NoBaseline,
    Quadratic,
    RecursiveScore,
    Renewal,
    ReverseScore,
    SameSample,
    Scan,
    SelfNormalized,
    Truncated,
)
from backstream.estimators.base import flatten
from backstream.estimators.recursive.weights import AbstractWeights, SampledPairs
from backstream.families import Guided, Kalman
from backstream.families.backward import first_state
from backstream.models import ChaoticRNN, LinearGaussian, StateSpaceModel

D, DY, T, N = 2, 2, 5, 6


def model():
    return LinearGaussian.random(D, DY, key=jax.random.key(3))


def family():
    return Kalman.random(model(), key=jax.random.key(4))


def observations(num_steps=T):
    return model().simulate(num_steps, key=jax.random.key(5))[1]


def oracle_lambda(q):
    """λ, or a gradient like it, in the oracle's order."""
    own = q.dynamics
    parts = [own.A, q.B.ravel(), own.noise.log_scale, q.emission_noise.log_scale, own.mean0, own.prior.log_scale]
    return np.concatenate([np.asarray(part) for part in parts])


def oracle_model():
    m = model().dense()
    return oracle.LinearGaussian(*(np.asarray(part) for part in (m.A, m.B, m.Q, m.R, m.mean0, m.Q0)))


def draws(key, num_steps, num_particles):
    """The standard normal draws that the estimator makes at each step from the keys fold_in(key, t)."""
    keys = [jax.random.fold_in(key, t) for t in range(num_steps)]
    keys = [keys[0]] + [jax.random.split(k)[0] for k in keys[1:]]
    return [np.asarray(jax.random.normal(k, (num_particles, D))) for k in keys]


def run(estimator, ys, key):
    """The estimates at every step, with λ held still."""
    p, q = model(), family()

    @jax.jit
    def whole(ys):
        def step(carry, scanned):
            t, y = scanned
            return estimator.step(p, q, carry, y, key=jax.random.fold_in(key, t))

        return jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))[1]

    return whole(ys)


def gradients(estimate):
    """[T, P], in the oracle's order."""
    return np.array([oracle_lambda(jax.tree.map(lambda g, t=t: g[t], estimate.gradient)) for t in range(T)])


def compare(estimate, expected, gamma):
    """Total and increments; the oracle differentiates numerically, so gradients agree to about 1e-8."""
    np.testing.assert_allclose(estimate.total.elbo, expected.elbos, rtol=1e-9)
    np.testing.assert_allclose(gradients(estimate.total), expected.gradients, rtol=1e-6, atol=1e-7)
    if gamma == 1:
        change = np.diff(expected.gradients, axis=0, prepend=0)
        np.testing.assert_allclose(np.cumsum(estimate.increment.elbo), expected.elbos, rtol=1e-9)
    else:
        change = (1 - gamma) * expected.gradients
        np.testing.assert_allclose(estimate.increment.elbo, (1 - gamma) * expected.elbos, rtol=1e-9)
    np.testing.assert_allclose(gradients(estimate.increment), change, rtol=1e-6, atol=1e-7)


def loops(key, **options):
    lam, ys = oracle_lambda(family()), np.asarray(observations())
    return oracle.recursive_score(oracle_model(), oracle.kalman_family(D, DY), lam, ys, draws(key, T, N), **options)


NAMES = {LeaveOneOut: "leave-one-out", SameSample: "same", NoBaseline: "none"}
CASES = [(baseline, None, gamma) for baseline in NAMES for gamma in (1.0, 0.7)]
CASES += [(LeaveOneOut, depth, 1.0) for depth in (1, 2, 3)] + [(SameSample, 2, 0.7), (LeaveOneOut, None, 0.0)]


@pytest.mark.parametrize(("baseline", "depth", "gamma"), CASES)
def test_equals_the_loops(baseline, depth, gamma):
    """Proposition 1 with its errata, all weights: the estimator is the plain reading of the equations, to rounding."""
    key = jax.random.key(6)
    sensitivity = Forward() if depth is None else Truncated(depth)
    estimator = RecursiveScore(N, SelfNormalized(), sensitivity, baseline(), Renewal(gamma))
    expected = loops(key, baseline=NAMES[baseline], depth=depth, gamma=gamma)
    compare(run(estimator, observations(), key), expected, gamma)


class GivenPairs(AbstractWeights):
    """Backward sampling with indices that are known: those of draw k for particle i are (i + k) mod N."""

    def pairs(self, kernels, z, *, key):
        sampled = BackwardSampling(2).pairs(kernels, z, key=key)
        index = (jnp.arange(len(z))[:, None] + jnp.arange(2)) % len(z)
        log_psi = jnp.take_along_axis(kernels.potential @ sampled.statistics.T, index, 1)
        return SampledPairs(log_psi, index, sampled.statistics, kernels, sampled.ess(), sampled.acceptance())

    def marginal(self, z):
        return BackwardSampling(2).marginal(z)

    def num_draws(self, num_particles):
        return 2


@pytest.mark.parametrize("baseline", NAMES)
def test_sampled_pairs_equal_the_loops(baseline):
    """The same with M = 2 draws for each particle: Algorithm 1."""
    key = jax.random.key(7)
    index = (np.arange(N)[:, None] + np.arange(2)) % N
    expected = loops(key, baseline=NAMES[baseline], weights=[index] * T)
    compare(run(RecursiveScore(N, GivenPairs(), baseline=baseline()), observations(), key), expected, 1.0)


@pytest.mark.parametrize(("cross", "gamma", "cap"), [(False, 0.8, 0.5), (True, 1.0, 0.2)])
def test_corrected_weights_equal_the_loops(cross, gamma, cap):
    """Regression on the sufficient statistics, importance sampling on the residual; the cap is active in places."""
    key, ridge = jax.random.key(8), 0.05
    expected = oracle.moment_corrected(
        oracle_model(),
        oracle.kalman_family(D, DY),
        oracle_lambda(family()),
        np.asarray(observations()),
        draws(key, T, N),
        gamma=gamma,
        ridge=ridge,
        cap=cap,
        cross=cross,
    )
    weights = MomentCorrected(Quadratic(cross), ridge, cap)
    compare(run(RecursiveScore(N, weights, objective=Renewal(gamma)), observations(), key), expected, gamma)


def test_increment_is_renewal_without_forgetting():
    """γ = 1 is the paper's objective, bit for bit."""
    key, ys = jax.random.key(9), observations()
    paper, renewal = (run(RecursiveScore(N, objective=o), ys, key) for o in (Increment(), Renewal(1.0)))
    for a, b in zip(jax.tree.leaves(paper), jax.tree.leaves(renewal), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_forward_equals_truncation_beyond_the_start():
    key, ys = jax.random.key(10), observations()
    exact, replayed = (run(RecursiveScore(N, sensitivity=s), ys, key) for s in (Forward(), Truncated(T)))
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(replayed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


CHAOTIC = ChaoticRNN.random(3, key=jax.random.key(3))


@pytest.mark.parametrize(
    ("score", "p", "q"),
    [
        (RecursiveScore(N), model(), family()),
        (RecursiveScore(N, MomentCorrected(), objective=Renewal(0.8)), model(), family()),
        (RecursiveScore(N, BackwardSampling(2), baseline=SameSample()), model(), family()),
        (RecursiveScore(N, baseline=NoBaseline()), model(), family()),
        pytest.param(RecursiveScore(N), CHAOTIC, Guided.from_model(CHAOTIC), marks=pytest.mark.slow),
    ],
    ids=["all", "corrected and renewed", "sampled", "bare", "reads the model"],
)
def test_in_reverse_it_is_the_same(score, p, q):
    """`ReverseScore` draws what the recursion draws, and gives what its increments add up to. That holds the forward
    sensitivities to reverse differentiation, those of a potential that depends on the state before among them."""
    ys, key = p.simulate(T, key=jax.random.key(5))[1], jax.random.key(11)

    @jax.jit
    def added_up():
        def step(carry, scanned):
            t, y = scanned
            carry, estimate = score.step(p, q, carry, y, key=jax.random.fold_in(key, t))
            return carry, estimate.increment

        _, increments = jax.lax.scan(step, score.init(p, q), (jnp.arange(T), ys))
        return jax.tree.map(lambda leaf: leaf.sum(0), increments)

    forward, reverse = added_up(), jax.jit(lambda: ReverseScore(score)(p, q, ys, key=key))()
    for a, b in zip(jax.tree.leaves(forward), jax.tree.leaves(reverse), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_a_family_with_fewer_parameters_than_its_state_has():
    """For it the sensitivity is carried column by column, which the test above holds to reverse differentiation."""
    q = Guided.from_model(CHAOTIC)
    state = first_state(CHAOTIC, q, jnp.zeros(3))
    size = flatten(state)[0].size
    assert flatten(q)[0].size == 1 < size
    rows = jax.random.normal(jax.random.key(0), (size, 1))
    half, whole, none = (
        Forward(discount).advance(CHAOTIC, q, rows, state, jnp.ones(3), None).J for discount in (0.5, 1.0, 0.0)
    )
    np.testing.assert_allclose(half, 0.5 * (whole + none), rtol=1e-9)
    assert np.abs(whole - none).max() > 0.1


def test_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="num_particles must be at least 1, not 0"):
        RecursiveScore(0)
    with pytest.raises(ValueError, match="LeaveOneOut needs at least 2 draws"):
        RecursiveScore(1)
    with pytest.raises(ValueError, match="LeaveOneOut needs at least 2 draws"):
        RecursiveScore(10, BackwardSampling(1))
    with pytest.raises(ValueError, match="at least 1, not 0"):
        AcceptReject(0)
    with pytest.raises(ValueError, match=r"depth .* must be at least 1, not 0"):
        Truncated(0)
    with pytest.raises(ValueError, match=r"gamma must lie between 0 and 1, not at 1\.5"):
        Renewal(1.5)
    with pytest.raises(ValueError, match="4 particles cannot be regressed on 5 features without a ridge"):
        MomentCorrected(ridge=0.0).marginal(jnp.zeros((4, D)))
    with pytest.raises(ValueError, match=r"differentiates through all states: it cannot do Truncated"):
        ReverseScore(RecursiveScore(4, sensitivity=Truncated(2)))
    with pytest.raises(ValueError, match="no learn_model and no functional"):
        ReverseScore(RecursiveScore(4, learn_model=True))
    with pytest.raises(TypeError, match="Frozen does not fit Kalman"):
        RecursiveScore(4, sensitivity=Frozen()).init(model(), family())


def test_bad_input_is_named():
    """At the first call: sizes that do not fit, infinities, a model whose methods return the wrong event shape."""
    p, q, ys, key = model(), family(), np.array(observations()), jax.random.key(0)
    estimator = RecursiveScore(4)
    with pytest.raises(ValueError, match=r"2 columns in this model, but its shape is \(3,\)"):
        estimator.step(p, q, estimator.init(p, q), jnp.zeros(3), key=key)
    with pytest.raises(ValueError, match="model has 3 states, the family Kalman has 2"):
        estimator.init(LinearGaussian.random(3, 2, key=key), q)
    ys[3, 1] = np.inf
    with pytest.raises(ValueError, match="row 3, column 1 is infinite"):
        Scan(estimator)(p, q, ys, key=key)

    class Forgetful(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(2), 1.0)

        def transition(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

        def emission(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

    with pytest.raises(ValueError, match=r"prior returns 2 separate distributions .* add \.to_event\(1\)"):
        estimator.init(Forgetful(), q)
