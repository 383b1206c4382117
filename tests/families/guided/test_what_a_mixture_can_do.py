"""Everything that estimates with a normal q works with a mixture too, or says in a sentence why not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.estimators import (
    AutodiffThroughWeights,
    BackwardTrajectories,
    Exact,
    FixedLag,
    FreePotentials,
    Frozen,
    KernelRidge,
    LogScore,
    OfflineEstimator,
    RatioScore,
    RecursivePathwise,
    RecursiveScore,
    Regression,
    Renewal,
    TrueDynamics,
    Truncated,
    moments,
)

KEY = jax.random.key(0)
YS = jnp.array([[0.7], [jnp.nan], [0.4]])


class Folded(bs.StateSpaceModel):
    slope: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.slope * x, 0.5).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.abs(x), 0.5).to_event(1)


P = Folded(jnp.array(0.9))
Q = bs.GuidedMixture.from_model(P, components=2)
WORKS = {
    "log score": LogScore(),
    "log score, θ": LogScore(learn_model=True),
    "without a gradient": RatioScore(4, sensitivity=None),
    "γ > 0": RatioScore(4, objective=Renewal(0.8)),
    "truncated sensitivity": RatioScore(4, sensitivity=Truncated(2)),
    "θ": RatioScore(4, learn_model=True),
    "additive functional": RatioScore(4, functional=moments()),
    "true dynamics": RatioScore(4, TrueDynamics(2)),
}
REFUSED = {
    "conjugate recursion": (RecursiveScore(4), "use LogScore"),
    "window": (FixedLag(2, 2), "no reparameterized trajectories"),
    "pathwise recursion": (RecursivePathwise(4), "use LogScore"),
    "regression": (Regression(4, KernelRidge()), "use LogScore"),
    "trajectories": (BackwardTrajectories(2), "no reparameterized trajectories"),
    "through the weights": (AutodiffThroughWeights(4), "use LogScore"),
    "closed form": (Exact(), "needs a LinearGaussian model"),
    "free potentials": (RatioScore(4, FreePotentials(2)), "family Tilted"),
    "one time only": (RatioScore(4, sensitivity=Frozen()), "does not fit GuidedMixture"),
}


def one_row(estimator):
    """The carry before any row, and what one row gives, which is missing. Nothing is compiled."""
    if isinstance(estimator, OfflineEstimator):
        return eqx.filter_eval_shape(lambda: estimator.estimate(P, Q, YS, None, KEY))

    def run():
        start = estimator.init(P, Q)
        return start, estimator.step(P, Q, start, YS[1], key=KEY)

    return eqx.filter_eval_shape(run)


@pytest.mark.parametrize("what", WORKS)
def test_works(what):
    """A carry that stays of one kind, so that a stream can be read, and the gradients that were asked for."""
    estimator = WORKS[what]
    first, (second, estimate) = one_row(estimator)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert [leaf.shape for leaf in jax.tree.leaves(first)] == [leaf.shape for leaf in jax.tree.leaves(second)]
    assert len(jax.tree.leaves(estimate.increment.gradient)) == 1
    assert (estimate.increment.model_gradient is not None) == estimator.learn_model
    assert (estimate.functional is not None) == (getattr(estimator, "functional", None) is not None)


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_with_a_sentence(what):
    estimator, sentence = REFUSED[what]
    with pytest.raises(TypeError, match=sentence):
        one_row(estimator)


@pytest.mark.slow
def test_what_is_carried_along_does_not_change_the_gradient():
    """γ > 0, θ, a functional and a missing row, in one program: ELBO and gradient are those without θ and functional,
    and nothing is said of θ by a row that is missing but through the states."""

    @eqx.filter_jit
    def run(estimator):
        def step(carry, row):
            carry, estimate = estimator.step(P, Q, carry, row[1], key=jax.random.fold_in(KEY, row[0]))
            return carry, (estimate.increment, estimate.functional)

        return jax.lax.scan(step, estimator.init(P, Q), (jnp.arange(3), YS))[1]

    whole, functional = run(RatioScore(4, objective=Renewal(0.8), learn_model=True, functional=moments()))
    alone, none = run(RatioScore(4, objective=Renewal(0.8)))
    np.testing.assert_allclose(whole.elbo, alone.elbo, rtol=1e-9)
    for a, b in zip(jax.tree.leaves(whole.gradient), jax.tree.leaves(alone.gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert none is None and all(len(np.unique(leaf)) > 1 for leaf in jax.tree.leaves(functional))
    assert np.abs(whole.model_gradient.slope[1:]).min() > 1e-6  # no transition leads to the first row
