"""Plans: which update a model gets, which predictors its law has, what is seen of other inputs and of far states."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.families.guided.laws import Row
from backstream.families.guided.noise import Noise
from backstream.families.guided.plan import make_plan
from backstream.learning import build
from backstream.models import ChaoticRNN, Growth, LinearGaussian, StochasticVolatility
from backstream.models.laws import columns_of
from toys import Censored, Toy

SEVEN = jax.random.normal(jax.random.key(0), (7, 7))


def net(x):
    """Four functions, each of all states."""
    return SEVEN[:4] @ jnp.tanh(SEVEN @ x)


def plan(p, u=None, dtype=jnp.float64):
    return make_plan(p, u, dtype)


def kind(found):
    update = found.update
    if type(update).__name__ != "Propagated":
        return type(update).__name__
    groups, rank = len(update.groups.members.value), update.groups.rank
    return f"{groups} × {rank}, {'predictors' if update.predictors else 'model'}"


# ---- which update ----------------------------------------------------------------------------------------------------
EMISSIONS = {
    "normal": (3, lambda x, u: dist.Normal(SEVEN[:5, :3] @ x, 0.5).to_event(1), "Closed"),
    "correlated normal": (3, lambda x, u: dist.MultivariateNormal(x, jnp.eye(3) + 0.5), "Closed"),
    "low-rank normal": (
        3,
        lambda x, u: dist.LowRankMultivariateNormal(2 * x, jnp.ones((3, 1)), jnp.ones(3)),
        "Closed",
    ),
    "normal, curved": (2, lambda x, u: dist.Normal(jnp.sin(x), 0.5).to_event(1), "1 × 2, model"),
    "normal, sigmoid": (1, lambda x, u: dist.Normal(jax.nn.sigmoid(2 * x), 0.1).to_event(1), "1 × 1, predictors"),
    "normal, exponential": (1, lambda x, u: dist.Normal(jnp.exp(x), 0.1).to_event(1), "1 × 1, predictors"),
    "normal, curved, one column": (5, lambda x, u: dist.Normal(jnp.sin(x[:1]), 0.5).to_event(1), "1 × 1, model"),
    "normal, curved, columns apart": (5, lambda x, u: dist.Normal(jnp.sin(x), 0.5).to_event(1), "5 × 1, model"),
    "normal, all states": (7, lambda x, u: dist.Normal(net(x), 0.5).to_event(1), "RegressedNormal"),
    "correlated normal, all states": (
        7,
        lambda x, u: dist.MultivariateNormal(net(x), jnp.eye(4) + 0.5),
        "RegressedNormal",
    ),
    "Student-t, all states": (7, lambda x, u: dist.StudentT(3.0, net(x), 0.5).to_event(1), "Regressed"),
    "Poisson": (1, lambda x, u: dist.Poisson(jnp.exp(x)).to_event(1), "1 × 1, predictors"),
    "Poisson, two columns": (
        2,
        lambda x, u: dist.Poisson(jnp.exp(SEVEN[:2, :2] @ x)).to_event(1),
        "1 × 2, predictors",
    ),
    "Poisson, many columns": (
        5,
        lambda x, u: dist.Poisson(jnp.exp(SEVEN[:6, :5] @ x)).to_event(1),
        "6 × 1, predictors",
    ),
    "Poisson, pairs of columns": (
        4,
        lambda x, u: dist.Poisson(jnp.exp(jnp.repeat(x, 2))).to_event(1),
        "4 × 1, predictors",
    ),
    "scale and location": (
        6,
        lambda x, u: dist.Normal(x[:3], jnp.exp(0.5 * x[3:])).to_event(1),
        "3 × 2, predictors",
    ),
    "labels": (2, lambda x, u: dist.Categorical(logits=SEVEN[:4, :2] @ x), "1 × 2, model"),
    "labels, all states": (7, lambda x, u: dist.Categorical(logits=SEVEN[:5] @ x), "Joint"),
    "simplex": (3, lambda x, u: dist.Dirichlet(jnp.exp(x)), "1 × 3, model"),
    "simplex, all states": (5, lambda x, u: dist.Dirichlet(jnp.exp(x)), "Joint"),
    "correlated, noise of the state": (
        2,
        lambda x, u: dist.MultivariateNormal(x, jnp.exp(x[0]) * (jnp.eye(2) + 0.5)),
        "1 × 2, model",
    ),
    "a law that hides its parameters": (5, lambda x, u: Censored(x[1:], 0.5).to_event(1), "4 × 1, model"),
    "nothing of the state": (2, lambda x, u: dist.Normal(jnp.zeros(1), 1.0).to_event(1), "1 × 1, model"),
}


@pytest.mark.parametrize("name", EMISSIONS)
def test_each_model_gets_its_update(name):
    d, emit, wanted = EMISSIONS[name]
    assert kind(plan(Toy(emit, d=d))) == wanted


def test_float32_gets_the_same_updates():
    for name in ("normal", "Poisson, two columns", "scale and location", "normal, curved"):
        d, emit, wanted = EMISSIONS[name]
        assert kind(plan(Toy(emit, d=d), dtype=jnp.float32)) == wanted


def test_models_of_the_library():
    for model, u, wanted, affine in (
        (LinearGaussian.random(4, 3, key=jax.random.key(0)), None, "Closed", True),
        (StochasticVolatility(jnp.zeros(2), jnp.full(2, 0.9), jnp.ones(2)), None, "1 × 2, predictors", True),
        (ChaoticRNN.random(5, key=jax.random.key(0)), None, "5 × 1, predictors", False),
        (Growth(), 0.0, "1 × 1, model", False),
        (
            bs.structural(level=0.1, trend=0.1, seasonal=4, ar=[0.5, 0.2], ar_scale=0.1),
            None,
            "Closed",
            True,
        ),
        (bs.structural(level=0.1, trend=0.1, seasonal=4, family="negbin"), None, "1 × 1, predictors", True),
    ):
        found = plan(model, u)
        assert (kind(found), found.transition.affine) == (wanted, affine), model
        assert found.exact == (wanted == "Closed" and affine)


@pytest.mark.parametrize("heavy", ["prior", "transition", "neither"])
def test_only_normal_states_are_exact(heavy):
    """Heavy tails with an affine mean and a constant variance are approximated."""

    class Level(bs.StateSpaceModel):
        def prior(self, u=None):
            return (dist.Laplace if heavy == "prior" else dist.Normal)(jnp.zeros(1), 1.0).to_event(1)

        def transition(self, x, u=None):
            return (dist.Laplace if heavy == "transition" else dist.Normal)(x, 0.1).to_event(1)

        def emission(self, x, u=None):
            return dist.Normal(x, 0.5).to_event(1)

    found = plan(Level())
    assert kind(found) == "Closed" and found.transition.affine
    assert found.exact == (heavy == "neither")


# ---- predictors ------------------------------------------------------------------------------------------------------
def two(x):
    """Two affine functions of three states."""
    return jnp.array([0.2, -0.4]) + SEVEN[:2, :3] @ x


PREDICTED = {
    "normal, scale of the state": (lambda x: dist.Normal(two(x)[:1], jnp.exp(two(x)[1:])), 2, {"identity", "log"}),
    "Student-t": (lambda x: dist.StudentT(3.0, two(x), 0.5), 1, {"identity"}),
    "Poisson": (lambda x: dist.Poisson(jnp.exp(two(x))), 1, {"log"}),
    "NegativeBinomial2": (lambda x: dist.NegativeBinomial2(jnp.exp(two(x)), 3.0), 1, {"log"}),
    "Bernoulli, logits": (lambda x: dist.Bernoulli(logits=two(x)), 1, {"identity"}),
    "Bernoulli, probs": (lambda x: dist.Bernoulli(probs=jax.nn.sigmoid(two(x))), 1, {"logit"}),
    "Gamma": (lambda x: dist.Gamma(2.0, jnp.exp(two(x))), 1, {"log"}),
    "LogNormal": (lambda x: dist.LogNormal(two(x), 0.5), 1, {"identity"}),
    "VonMises": (lambda x: dist.VonMises(two(x), 4.0), 1, {"identity"}),
    "Binomial": (lambda x: dist.Binomial(10, logits=two(x)), 1, {"identity"}),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_predictors_are_found_and_give_the_laws_own_density(name):
    """The law with the predictors of another state has the density that the model has at that state."""
    law_at, count, links = PREDICTED[name]
    p = Toy(lambda x, u: law_at(x).to_event(1), d=3)
    found = plan(p).update.predictors
    assert found.count == count and {leaf.link for leaf in found.leaves} == links
    here, there = jnp.array([0.3, -0.2, 0.5]), jnp.array([-0.7, 0.4, 1.1])
    y = p.emission(there).sample(jax.random.key(1))
    row = Row(y, jnp.ones(y.shape, bool))
    swapped = found.log_prob(p.emission(here), found.of(p.emission(there)), row)
    np.testing.assert_allclose(swapped, columns_of(p.emission(there)).log_prob(y), rtol=1e-10)


def test_a_relation_that_holds_with_the_first_inputs_only_is_none():
    """Location u₀ x and log scale u₁ x: with any one u they are multiples of each other, but not with all."""
    p = Toy(lambda x, u: dist.Normal(u[0] * x, jnp.exp(u[1] * x)).to_event(1))
    assert plan(p, jnp.array([1.0, 2.0])).update.predictors.count == 2
    same = Toy(lambda x, u: dist.Normal(u[0] * x, jnp.exp(2 * u[0] * x)).to_event(1))
    assert plan(same, jnp.array([1.0, 2.0])).update.predictors.count == 1


# ---- inputs ----------------------------------------------------------------------------------------------------------
def test_inputs_that_are_zero_in_the_first_row_hide_nothing():
    """Coefficients as states, y = u · x: the first row reads none of them, later rows one combination each."""
    zero = jnp.zeros(5)
    assert kind(plan(Toy(lambda x, u: dist.Normal(u @ x, 0.5), d=5), zero)) == "Closed"
    assert kind(plan(Toy(lambda x, u: dist.Poisson(jnp.exp(u @ x)), d=5), zero)) == "1 × 1, predictors"


def test_directions_that_depend_on_inputs_are_not_fixed():
    """sin(u · x) reads another direction with every u: a grid along those that were seen would miss all others."""
    u = jnp.array([1.0, 0.5, -0.3, 0.2, 0.1])
    assert kind(plan(Toy(lambda x, u: dist.Normal(jnp.sin(u @ x), 0.5), d=5), u)) == "RegressedNormal"
    assert kind(plan(Toy(lambda x, u: dist.Normal(jnp.sin(u[:2] @ x), 0.5), d=2), u)) == "1 × 2, model"
    assert kind(plan(Toy(lambda x, u: dist.Normal(jnp.sin(u[0] * x[1]), 0.5), d=5), u)) == "1 × 1, model"


def test_a_switch_that_is_off_in_the_first_row_is_seen():
    def emit(x, u):
        return dist.Normal(jnp.where(u == 1, jnp.sin(x), x), 0.5).to_event(1)

    for off in (jnp.asarray(0.0), jnp.asarray(0), jnp.asarray(False)):
        assert kind(plan(Toy(emit), off)) == "1 × 1, model"
    assert not plan(Toy(drift_or_sine, drift_or_sine), jnp.asarray(0)).transition.affine


def drift_or_sine(x, u):
    return dist.Normal(jnp.where(u == 1, jnp.sin(x), x), 0.5).to_event(1)


def test_a_transition_may_be_affine_with_each_input():
    """Steps of unequal length, of no length in the first row: with one input an affine map, with others another."""

    def decay(x, u):
        kept = jnp.exp(-u)
        return dist.Normal(kept * x, jnp.sqrt(1 - kept**2)).to_event(1)

    def undefined(x, u):
        return dist.Normal((1 - jnp.exp(-u)) / u * x, jnp.sqrt(u)).to_event(1)

    normal = EMISSIONS["normal"][1]
    for move in (decay, undefined):
        for u in (0.0, 0.5):
            assert plan(Toy(normal, move, d=3), jnp.asarray(u)).transition == (True, Noise(known=True))
    assert not plan(Toy(normal, lambda x, u: dist.Normal(x + u * x**2, 0.1).to_event(1), d=3), 0.0).transition.affine
    assert not plan(Toy(normal, lambda x, u: dist.Normal(x, jnp.exp(u * x)).to_event(1), d=3), 0.0).transition.affine


# ---- far states, steps -----------------------------------------------------------------------------------------------
BENT_FAR_AWAY = {
    "clip": lambda x: jnp.clip(x, -5.0, 5.0),
    "abs": lambda x: jnp.abs(x + 5.0),
    "rectified": lambda x: jax.nn.relu(x + 5.0),
}


@pytest.mark.parametrize("name", BENT_FAR_AWAY)
def test_what_bends_far_from_the_prior_is_noticed(name):
    """Five standard deviations away: a plan that saw only the prior would take it as linear."""
    bent = BENT_FAR_AWAY[name]
    found = plan(Toy(lambda x, u: dist.Normal(bent(x), 0.5).to_event(1), d=2))
    assert kind(found) == "1 × 2, model"
    moved = plan(Toy(EMISSIONS["normal"][1], lambda x, u: dist.Normal(bent(x), 0.5).to_event(1), d=3))
    assert not moved.transition.affine


def test_steps_are_noticed_although_their_derivative_is_zero():
    """A threshold in the mean, in the scale and in the transition; each has the slopes of an affine function."""
    threshold = Toy(
        lambda x, u: dist.Normal(x + jnp.sign(x[0]), 0.5).to_event(1),
        lambda x, u: dist.Normal(0.5 * x + jnp.sign(x), 0.3).to_event(1),
        d=2,
    )
    found = plan(threshold)
    assert kind(found) == "1 × 2, model" and not found.transition.affine
    regimes = Toy(lambda x, u: dist.Normal(x[:1], jnp.where(x[4] > 0, 1.0, 3.0)).to_event(1), d=5)
    assert kind(plan(regimes)) == "1 × 2, model"
    basis = plan(regimes).update.groups.basis.value[0]
    assert np.abs(basis[:, [1, 2, 3]]).max() == 0 and np.abs(basis[:, [0, 4]]).max(0).min() > 0.1
    with pytest.raises(ValueError, match="emission changes in steps along more than three directions"):
        plan(Toy(lambda x, u: dist.Categorical(logits=jnp.sign(SEVEN[:5] @ x)), d=7))


def test_slopes_whose_squares_overflow_in_single_precision():
    """Of rates far from the prior. No direction is lost, and no warning is shown."""
    p = Toy(lambda x, u: dist.Poisson(jnp.exp(3 * x)).to_event(1), d=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kind(plan(p, dtype=jnp.float32)) == "5 × 1, predictors"


# ---- parameters that are learned -------------------------------------------------------------------------------------
class Factors(bs.StateSpaceModel):
    """A factor of zero hides a bend, and the two parameters of the emission are related by a third."""

    bend: jax.Array
    ratio: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x + self.bend * jnp.sin(x), 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, jnp.exp(self.ratio * x)).to_event(1)


@pytest.mark.parametrize("learned", ["bend", "ratio"])
def test_a_plan_holds_for_other_parameters_where_they_are_learned(learned):
    p = Factors(jnp.zeros(1), jnp.full(1, 0.5))
    settings = bs.Settings(learn_parameters=(learned,))
    (_, still, _), (_, moving, _) = build(p, bs.Settings()), build(p, settings)
    assert still.plan.transition.affine and still.plan.update.predictors.count == 1
    assert moving.plan.transition.affine == (learned != "bend")
    assert moving.plan.update.predictors.count == (2 if learned == "ratio" else 1)


@pytest.mark.parametrize(
    "p",
    [
        LinearGaussian.random(3, 2, key=jax.random.key(0)),
        ChaoticRNN.random(4, key=jax.random.key(0)),
        StochasticVolatility(jnp.array([0.2]), jnp.array([0.95]), jnp.array([0.3])),
        bs.structural(level=0.3, trend=0.01, seasonal=[4], ar=[0.5, 0.2], ar_scale=0.1, family="poisson"),
        bs.structural(level=0.3, trend=0.01, seasonal=[4], ar=[0.5, 0.2], ar_scale=0.1, noise=0.5),
    ],
    ids=["linear", "networks", "volatility", "counts", "structural"],
)
def test_a_plan_that_holds_for_other_parameters_stays_as_it_is(p):
    (_, still, _), (_, moving, _) = build(p, bs.Settings()), build(p, bs.Settings(learn_model=True))
    assert type(moving.plan.update) is type(still.plan.update) and moving.exact == still.exact
    assert kind(moving.plan) == kind(still.plan)
