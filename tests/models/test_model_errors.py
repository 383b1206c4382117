"""The errors a user meets who writes a model, and what a model may leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from backstream.models import (
    ChaoticRNN,
    Growth,
    LinearGaussian,
    StateSpaceModel,
    StochasticVolatility,
    check_model,
)
from backstream.models.base import emission_law, prior_law, transition_law


def test_a_forgotten_to_event_is_named():
    class Forgetful(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(x, 1.0)

        def emission(self, x, u=None):
            return x

    with pytest.raises(ValueError, match=r"transition returns 3 separate distributions.*\.to_event\(1\)"):
        check_model(Forgetful())


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (lambda x: x, "emission must return a numpyro distribution, not"),
        (lambda x: dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(2), r"its event shape is \(2, 3\)"),
        (lambda x: dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(1), r"its batch shape is \(2,\)"),
    ],
)
def test_emissions_of_the_wrong_kind_are_named(law, sentence):
    class Wrong(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

        def emission(self, x, u=None):
            return law(x)

    with pytest.raises(ValueError, match=sentence):
        check_model(Wrong())


def test_a_transition_of_the_wrong_size_is_named():
    class Wrong(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(3), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(x[:2], 1.0).to_event(1)

        def emission(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

    with pytest.raises(ValueError, match=r"the event shape of the prior, \(3,\), but its event shape is \(2,\)"):
        check_model(Wrong())


def linear_gaussian(**changes):
    one = jnp.ones(2)
    return LinearGaussian(**({"mean0": 0 * one, "Q0": one, "A": one, "B": jnp.eye(2), "Q": one, "R": one} | changes))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: linear_gaussian(A=jnp.ones(3)), r"A must have shape \(2,\) or \(2, 2\), not \(3,\)"),
        (lambda: linear_gaussian(B=jnp.ones((3, 4))), r"B must have shape \(3, 2\), not \(3, 4\)"),
        (lambda: linear_gaussian(mean0=jnp.zeros((2, 1))), r"mean0 must be a vector.*\(2, 1\)"),
        (lambda: linear_gaussian(Q=jnp.array([1.0, -1.0])), r"Q, a vector of standard deviations, must be positive"),
        (lambda: linear_gaussian(R=jnp.ones((2, 2))), r"R, a covariance, must be positive definite"),
        (lambda: linear_gaussian(Q0=jnp.array([[1.0, 0.5], [0.0, 1.0]])), "Q0, a covariance, must be symmetric"),
        (lambda: linear_gaussian(R=jnp.ones(3)), r"R must be standard deviations of shape \(2,\)"),
        (lambda: LinearGaussian.random(2, 2, low=1.0, high=0.5, key=jax.random.key(0)), "low must be at most high"),
        (
            lambda: LinearGaussian.random(2, 2, variance=0.0, key=jax.random.key(0)),
            "variance must be positive, not 0.0",
        ),
        (lambda: ChaoticRNN(jnp.ones((2, 3))), r"W must be a square matrix, but has shape \(2, 3\)"),
        (lambda: ChaoticRNN(jnp.eye(2), tau=-1.0), r"tau must be positive, but is -1.0"),
        (lambda: StochasticVolatility(jnp.zeros(2), jnp.ones(2), jnp.ones(2)), "phi must lie strictly between"),
        (lambda: StochasticVolatility(jnp.zeros(2), jnp.zeros(1), jnp.ones(2)), r"shapes \(2,\), \(1,\) and \(2,\)"),
        (lambda: StochasticVolatility(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1)), "sigma must be positive"),
        (lambda: Growth(transition_scale=-1.0), "transition_scale must be positive, but is -1.0"),
        (lambda: Growth().simulate(0, key=jax.random.key(0)), "num_steps must be at least 1, not 0"),
    ],
)
def test_bad_values_are_named_at_construction(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_integers_become_floats():
    model = LinearGaussian(*(np.array(value) for value in ([0, 0], [1, 1], [1, 1], [[1, 0]], [1, 1], [1])))
    kinds = {leaf.dtype for leaf in jax.tree.leaves(model)}
    assert kinds == {jnp.dtype(float)} and Growth(transition_scale=3).transition_scale.dtype == float


def test_models_can_be_made_inside_a_transformation():
    batch = jax.vmap(lambda key: ChaoticRNN.random(2, key=key).W)(jax.random.split(jax.random.key(0), 3))
    assert batch.shape == (3, 2, 2)
    slope = jax.grad(lambda s: linear_gaussian(Q=s * jnp.ones(2)).prior().log_prob(jnp.zeros(2)))(2.0)
    assert slope == 0


class WithoutInputs(StateSpaceModel):
    def prior(self):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x):
        return dist.Normal(0.5 * x, 0.1).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x if u is None else x + u, 0.2).to_event(1)


class WithMore(WithoutInputs):
    def prior(self, u=None):
        return dist.Normal(super().prior().mean + 3.0, 1.0).to_event(1)


def test_a_method_may_leave_the_inputs_out():
    x, u = jnp.ones(1), jnp.full(1, 7.0)
    for model, start in ((WithoutInputs(), 0.0), (WithMore(), 3.0)):
        assert prior_law(model, u).mean == model.prior().mean == start
        assert transition_law(model, x, u).mean == model.transition(x).mean == 0.5
        assert emission_law(model, x, u).mean == 8.0
        assert check_model(model, u) == check_model(model)


def test_a_method_with_too_few_arguments_is_an_error():
    class NoState(WithoutInputs):
        def transition(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return dist.Normal(jnp.zeros(1), 0.1).to_event(1)

    with pytest.raises(TypeError, match="transition"):
        NoState().simulate(2, key=jax.random.key(0))
