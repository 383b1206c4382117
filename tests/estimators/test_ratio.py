"""The recursion in its ratio form, against sums over dense nodes: one state, few rows."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.estimators.base import flatten
from backstream.families.backward import filter_states
from backstream.models.density import log_emission, log_transitions

NODES = jnp.linspace(-6, 6, 161)[:, None]
STEP = NODES[1, 0] - NODES[0, 0]
NUM_ROWS = 4


class Folded(bs.StateSpaceModel):
    """A walk seen as its absolute value: two modes."""

    slope: jax.Array
    noise: jax.Array
    bends: bool = False
    """Whether the transition is not affine."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.slope * (jnp.sin(x) if self.bends else x) + 0.3, 0.6).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.abs(x), self.noise).to_event(1)


P = Folded(jnp.array(0.9), jnp.array(0.5))
BENT = Folded(jnp.array(1.1), jnp.array(0.5), bends=True)
YS = jnp.array([[0.9], [1.2], [jnp.nan], [0.8]])
Q = bs.GuidedMixture.from_model(P, components=2)
TILTED = bs.families.Tilted.create(Q, (2.0,), width=2, last_gain=1.0, key=jax.random.key(5))
KINDS = {
    "own": (P, Q, bs.estimators.OwnKernels()),
    "true dynamics": (BENT, bs.Guided.from_model(BENT), bs.estimators.TrueDynamics(64)),
    "free potentials": (P, TILTED, bs.estimators.FreePotentials(64)),
}


def kernel_matrix(p, q, before, after, kind):
    """log q_{t-1|t}(x_i, x_j) at the nodes."""
    law, kernel = q.marginal(before), q.kernel(p, after)
    if kind == "true dynamics":
        joint = log_transitions(p, NODES, NODES) + jax.vmap(law.log_prob)(NODES)
    else:
        base = kernel.base if kind == "free potentials" else kernel
        joint = jax.lax.map(lambda x: jax.vmap(base.at(law, x).log_prob)(NODES), NODES, batch_size=100)
    if kind == "free potentials":
        joint = joint + jax.vmap(lambda x: jax.vmap(lambda origin: kernel.tilt(origin, x))(NODES))(NODES)
    return joint - jax.nn.logsumexp(joint, axis=1, keepdims=True) - jnp.log(STEP)


@partial(jax.jit, static_argnums=2)
def exact(theta, lam, kind):
    """The ELBO of all rows by the trapezoidal rule, exact to rounding here, and the expectation of Σ x_t². q does not
    move with θ."""
    fixed, q, _ = KINDS[kind]
    p, q = flatten(fixed)[1](theta), flatten(q)[1](lam)
    states = filter_states(fixed, q, YS)

    def at(t):
        return jax.tree.map(lambda leaf: leaf[t], states)

    squares = (NODES**2).sum(1)
    F, H = squares, jax.vmap(lambda x: p.prior().log_prob(x) + log_emission(p, x, YS[0]))(NODES)
    for t in range(1, NUM_ROWS):
        log_kernel = kernel_matrix(fixed, q, at(t - 1), at(t), kind)
        seen = jax.vmap(lambda x, t=t: log_emission(p, x, YS[t]))(NODES)
        inside = H + log_transitions(p, NODES, NODES) - log_kernel
        F = squares + jnp.exp(log_kernel) @ F * STEP
        H = seen + (jnp.exp(log_kernel) * inside).sum(1) * STEP
    log_q = jax.vmap(q.marginal(at(NUM_ROWS - 1)).log_prob)(NODES)
    return (jnp.exp(log_q) * (H - log_q)).sum() * STEP, (jnp.exp(log_q) * F).sum() * STEP


@eqx.filter_jit
def estimates(estimator, p, q, runs, key):
    """ELBO, gradient in θ, gradient in λ and the functional, of many runs."""

    def one(key):
        def step(carry, row):
            return estimator.step(p, q, carry, row[1], key=jax.random.fold_in(key, row[0]))

        _, estimates = jax.lax.scan(step, estimator.init(p, q), (jnp.arange(NUM_ROWS), YS))
        estimate = jax.tree.map(lambda leaf: leaf[-1], estimates)
        total, functional = estimate.total, estimate.functional["xx"].ravel()
        parts = total.elbo[None], flatten(total.model_gradient)[0], flatten(total.gradient)[0], functional
        return jnp.concatenate(parts)

    return jax.lax.map(one, jax.random.split(key, runs), batch_size=20)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "true dynamics" else pytest.mark.slow) for kind in KINDS]
)
def test_elbo_and_gradients_are_those_of_quadrature(kind):
    """The ELBO, its gradient in θ and in λ, and an additive functional. Their bias falls like 1/N: with 80 particles it
    is below a quarter of that with 10, and no more than four standard errors beyond; a right estimator fails in one of
    1 000 seeds. The seed is fixed."""
    p, q, backward = KINDS[kind]
    theta, lam = flatten(p)[0], flatten(q)[0]
    (value, squares), (in_theta, in_lam) = jax.value_and_grad(exact, (0, 1), has_aux=True)(theta, lam, kind)
    expected = np.concatenate([[value], in_theta, in_lam, [squares]])
    assert np.abs(in_lam).max() > 0.01
    found = []
    for particles, runs in ((10, 400), (80, 60)):
        options = {"learn_model": True, "functional": bs.estimators.moments()}
        estimator = bs.estimators.RatioScore(particles, backward, **options)
        values = estimates(estimator, p, q, runs, jax.random.key(particles))
        found.append((np.asarray(values.mean(0)) - expected, np.asarray(values.std(0)) / np.sqrt(runs)))
    (few, _), (many, error) = found
    assert (np.abs(many) < np.abs(few) / 4 + 4 * error).all()
    assert (error < 0.06 * (1 + np.abs(expected))).all(), "too noisy to say anything"


@pytest.mark.parametrize("backward", [bs.estimators.OwnKernels(), bs.estimators.TrueDynamics(3)])
@pytest.mark.parametrize("components", [1, 2])
def test_at_the_optimum_nothing_varies(backward, components):
    """Linear and Gaussian: q is the smoothing law, and V the log-likelihood at every sample, however few there are."""
    p = bs.LinearGaussian.random(2, 3, key=jax.random.key(0))
    _, ys = p.simulate(6, key=jax.random.key(1))
    q = bs.Guided.from_model(p) if components == 1 else bs.GuidedMixture.from_model(p, components=components)
    estimator = bs.estimators.RatioScore(4, backward)

    @eqx.filter_jit
    def run(ys):
        def step(carry, row):
            carry, estimate = estimator.step(p, q, carry, row[1], key=jax.random.fold_in(jax.random.key(3), row[0]))
            return carry, (estimate.total.elbo, carry.V.at_samples)

        _, (elbos, varying) = jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))
        return elbos[-1], varying, jax.vmap(q.log_score)(filter_states(p, q, ys)).sum()

    elbo, varying, log_likelihood = run(ys)
    np.testing.assert_allclose(elbo, log_likelihood, atol=1e-6)
    np.testing.assert_allclose(varying, 0, atol=1e-6)


@pytest.mark.parametrize("estimator", [bs.estimators.RecursiveScore(5), bs.estimators.FixedLag(4, 2)])
def test_estimators_that_need_a_normal_law_say_so(estimator):
    with pytest.raises(TypeError, match="use LogScore"):
        eqx.filter_eval_shape(estimator.init, P, Q)


@pytest.mark.slow
def test_true_dynamics_are_no_worse_than_own_kernels_on_a_network():
    """Five states: the mean of the ELBO and how much it varies over 100 runs. Four standard errors are allowed. A
    normalizer from the samples themselves would lower the ELBO by more."""
    p = bs.models.ChaoticRNN.random(5, key=jax.random.key(3))
    _, ys = p.simulate(12, key=jax.random.key(4))
    q, runs = bs.Guided.from_model(p), 100

    @eqx.filter_jit
    def totals(backward):
        estimator = bs.estimators.RatioScore(40, backward, sensitivity=None)

        def one(key):
            def step(carry, row):
                return estimator.step(p, q, carry, row[1], key=jax.random.fold_in(key, row[0]))

            _, estimates = jax.lax.scan(step, estimator.init(p, q), (jnp.arange(len(ys)), ys))
            return estimates.total.elbo[-1]

        return jax.lax.map(one, jax.random.split(jax.random.key(5), runs), batch_size=20)

    own, true = (np.asarray(totals(kind)) for kind in (bs.estimators.OwnKernels(), bs.estimators.TrueDynamics()))
    spread = own.std(ddof=1)
    error = spread * np.sqrt(2 / runs)
    assert true.mean() > own.mean() - 4 * error
    assert true.std(ddof=1) < (1 + 4 / np.sqrt(runs)) * spread
    assert 4 * error < 0.06 * len(ys), "too noisy to say anything"
