"""Models: what they say about themselves, and their densities with missing values."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.extend.core import jaxprs_in_params

from backstream.models import (
    ChaoticRNN,
    Growth,
    LinearGaussian,
    ModelShape,
    StateSpaceModel,
    StochasticVolatility,
    check_model,
    check_observations,
    log_emission,
    log_prior,
    log_transitions,
    log_transitions_at,
    obs_dim,
    state_dim,
)

# Two-sided: a standard normal is beyond it once in 15 million draws. Seeds are fixed.
Z_LIMIT = 5.3


def spread(key, dim):
    """A random covariance."""
    root = jax.random.normal(key, (dim, dim)) / dim**0.5
    return root @ root.T + 0.2 * jnp.eye(dim)


def full_linear_gaussian():
    keys = jax.random.split(jax.random.key(3), 5)
    return LinearGaussian(
        mean0=jnp.array([1.0, -2.0]),
        Q0=spread(keys[0], 2),
        A=jnp.array([[0.5, 0.2], [-0.1, 0.7]]),
        B=jax.random.normal(keys[1], (3, 2)),
        Q=spread(keys[2], 2),
        R=spread(keys[3], 3),
    )


MODELS = {
    "diagonal LG": (LinearGaussian.random(4, 3, key=jax.random.key(0)), None, ModelShape(4, 3, True)),
    "full LG": (full_linear_gaussian(), None, ModelShape(2, 3, True)),
    "chaotic RNN": (ChaoticRNN.random(3, key=jax.random.key(0)), None, ModelShape(3, 3, True)),
    "volatility": (
        StochasticVolatility(jnp.array([-1.0, 0.5]), jnp.array([0.9, 0.5]), jnp.array([0.3, 1.0])),
        None,
        ModelShape(2, 2, True),
    ),
    "growth": (Growth(), 3.0, ModelShape(1, 1, True)),
}


@pytest.fixture(params=MODELS, ids=str)
def case(request):
    return MODELS[request.param]


def test_shapes_and_simulation(case):
    model, u, shape = case
    assert check_model(model, u) == shape
    assert (state_dim(model, u), obs_dim(model, u)) == shape[:2]
    inputs = None if u is None else jnp.arange(7.0)
    states, observations = jax.jit(lambda key: model.simulate(7, inputs, key=key))(jax.random.key(0))
    assert states.shape == (7, shape.state_dim) and observations.shape == (7, shape.obs_dim)
    assert np.isfinite(states).all() and np.isfinite(observations).all()


def test_float32_models_draw_float32(case):
    model, u, _ = case
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if eqx.is_array(leaf) else leaf, model)
    inputs = None if u is None else jnp.arange(4, dtype=jnp.float32)
    states, observations = jax.jit(lambda key: model.simulate(4, inputs, key=key))(jax.random.key(0))
    assert states.dtype == observations.dtype == jnp.float32

    def densities(x, y, xs):
        at = log_transitions_at(model, xs[:, None], xs, u)
        return log_prior(model, x, u), log_emission(model, x, y, u), log_transitions(model, xs, xs, u), at

    kinds = jax.eval_shape(densities, states[0], observations[0], states)
    assert {kind.dtype for kind in kinds} == {jnp.dtype(jnp.float32)}


def test_transitions_of_all_pairs_are_those_of_the_double_loop(case):
    model, u, shape = case
    x_prev = jax.random.normal(jax.random.key(1), (5, shape.state_dim))
    x = jax.random.normal(jax.random.key(2), (3, shape.state_dim))
    one = jax.jit(lambda a, b: model.transition(a, u).log_prob(b))
    naive = np.array([[one(a, b) for a in x_prev] for b in x])
    np.testing.assert_allclose(jax.jit(partial(log_transitions, model))(x_prev, x, u), naive, rtol=1e-12)
    index = np.array([[0, 4], [3, 3], [2, 1]])
    sampled = jax.jit(partial(log_transitions_at, model))(x_prev[index], x, u)
    np.testing.assert_allclose(sampled, np.take_along_axis(naive, index, 1), rtol=1e-12)


def test_the_transition_is_computed_once_for_each_origin():
    """K whitenings, not K·N triangular solves, even where the covariance depends on the origin."""

    class Scaled(StateSpaceModel):
        def prior(self, u=None):
            return dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))

        def transition(self, x, u=None):
            return dist.MultivariateNormal(x, scale_tril=jnp.exp(x[0]) * jnp.array([[1.0, 0.0], [0.5, 2.0]]))

        def emission(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

    x_prev, x = jax.random.normal(jax.random.key(0), (5, 2)), jax.random.normal(jax.random.key(1), (7, 2))
    one = jax.jit(lambda a, b: Scaled().transition(a).log_prob(b))
    naive = [[one(a, b) for a in x_prev] for b in x]
    np.testing.assert_allclose(jax.jit(partial(log_transitions, Scaled()))(x_prev, x), naive, rtol=1e-12)
    jaxpr = jax.make_jaxpr(lambda a, b: log_transitions(Scaled(), a, b))(x_prev, x)
    solves = [equation for equation in eqns(jaxpr.jaxpr) if "triangular_solve" in equation.primitive.name]
    assert [equation.outvars[0].aval.shape for equation in solves] == [(5, 2, 2)]


def eqns(jaxpr):
    """All equations, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from eqns(inner)


def z_scores(draws, mean, cov):
    """Of the sample mean and of the sample covariance of Gaussian draws, in the coordinates where they are standard."""
    white = np.linalg.solve(np.linalg.cholesky(cov), (np.asarray(draws) - mean).T)
    n, d = white.shape[1], len(white)
    second = (white @ white.T - n * np.eye(d)) / np.sqrt(n * (1 + np.eye(d)))
    return np.concatenate([white.sum(1) / np.sqrt(n), second.ravel()])


@pytest.mark.parametrize("model", [full_linear_gaussian(), LinearGaussian.random(2, 3, key=jax.random.key(5))])
def test_linear_gaussian_simulates_its_own_moments(model):
    mean0, Q0, A, B, Q, R = (np.asarray(value) for value in model.dense())
    states, observations = jax.jit(jax.vmap(lambda key: model.simulate(2, key=key)))(
        jax.random.split(jax.random.key(9), 20_000)
    )
    joint = np.concatenate([states[:, 0], states[:, 1], observations[:, 1]], axis=1)
    d = len(mean0)
    # (X_0, X_1, Y_1) = M (X_0, ν, ε)
    M = np.block(
        [
            [np.eye(d), np.zeros((d, d + len(R)))],
            [A, np.eye(d), np.zeros((d, len(R)))],
            [B @ A, B, np.eye(len(R))],
        ]
    )
    blocks = np.zeros((len(M), len(M)))
    for start, block in ((0, Q0), (d, Q), (2 * d, R)):
        blocks[start : start + len(block), start : start + len(block)] = block
    scores = z_scores(joint, M[:, :d] @ mean0, M @ blocks @ M.T)
    assert np.abs(scores).max() < Z_LIMIT


def test_the_papers_random_model():
    model = LinearGaussian.random(10, 10, key=jax.random.key(0))
    assert model.A.shape == (10,) and model.A.min() >= 0.8 and model.A.max() <= 0.97
    assert model.B.shape == (10, 10) and model.B.min() >= 0 and model.B.max() <= 1
    for covariance in (model.dense().Q0, model.dense().Q, model.dense().R):
        np.testing.assert_allclose(covariance, 0.1 * np.eye(10), atol=1e-15)


def test_chaotic_rnn_is_the_papers():
    model = ChaoticRNN.random(40, key=jax.random.key(0))
    W = np.asarray(model.W)
    # 40 ΣW² is χ² with 1600 degrees of freedom.
    assert abs(40 * (W**2).sum() - 1600) / np.sqrt(2 * 1600) < Z_LIMIT
    x = np.linspace(-1, 1, 40)
    mean = x + 0.001 / 0.025 * (2.5 * W @ np.tanh(x) - x)
    np.testing.assert_allclose(model.transition(jnp.asarray(x)).mean, mean, rtol=1e-12)
    np.testing.assert_allclose(model.transition(jnp.asarray(x)).variance, 0.01, rtol=1e-12)
    np.testing.assert_allclose(model.prior().variance, 0.01, rtol=1e-12)
    # 0.1 · t₂: P(|T| < 1) = 1/√3 for two degrees of freedom.
    noise = model.emission(jnp.zeros(40)).sample(jax.random.key(1), (2000,))
    share, n = np.mean(np.abs(noise) < 0.1), 80_000
    assert abs(share - 3**-0.5) / np.sqrt(3**-0.5 * (1 - 3**-0.5) / n) < Z_LIMIT
    assert len(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))) == 1


def test_volatility_is_stationary():
    model = MODELS["volatility"][0]
    states, observations = jax.jit(jax.vmap(lambda key: model.simulate(2, key=key)))(
        jax.random.split(jax.random.key(2), 20_000)
    )
    variance = np.asarray(model.sigma) ** 2 / (1 - np.asarray(model.phi) ** 2)
    for t in range(2):
        assert np.abs(z_scores(states[:, t], np.asarray(model.mu), np.diag(variance))).max() < Z_LIMIT
    standard = np.asarray(observations[:, 1]) / np.exp(np.asarray(states[:, 1]) / 2)
    assert np.abs(z_scores(standard, np.zeros(2), np.eye(2))).max() < Z_LIMIT


def test_growth_needs_the_time():
    with pytest.raises(ValueError, match="needs the time"):
        Growth().transition(jnp.zeros(1))
    mean = Growth().transition(jnp.array([2.0]), 5).mean
    np.testing.assert_allclose(mean, 1 + 10 + 8 * np.cos(6.0), rtol=1e-12)


# ---- missing values ---------------------------------------------------------------------------------------------


def test_missing_coordinates_are_left_out_where_the_emission_factorizes():
    model = ChaoticRNN.random(3, key=jax.random.key(0))
    x, y = jnp.array([0.1, -0.2, 0.3]), jnp.array([0.0, jnp.nan, 1.0])
    single = dist.StudentT(2.0, x, 0.1).log_prob(jnp.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(log_emission(model, x, y), single[0] + single[2], rtol=1e-13)
    gradient = jax.jit(jax.grad(lambda x: log_emission(model, x, y)))(x)
    assert np.isfinite(gradient).all() and gradient[1] == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_missing_row_says_nothing(name):
    model, u, shape = MODELS[name]
    x, y = jnp.ones(shape.state_dim), jnp.full(shape.obs_dim, jnp.nan)
    value, slope = jax.jit(jax.value_and_grad(lambda x: log_emission(model, x, y, u)))(x)
    assert value == 0 and (slope == 0).all()
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    slopes = jax.jit(jax.grad(lambda arrays: log_emission(eqx.combine(arrays, static), x, y, u)))(arrays)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes))


def test_the_placeholder_lies_in_the_support():
    """At y = 0 the density of a LogNormal is NaN, and so would be its gradient."""

    class Positive(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(x, 1.0).to_event(1)

        def emission(self, x, u=None):
            return dist.LogNormal(x, 1.0).to_event(1)

    y = jnp.array([jnp.nan, 2.0])
    value, slope = jax.jit(jax.value_and_grad(lambda x: log_emission(Positive(), x, y)))(jnp.zeros(2))
    np.testing.assert_allclose(value, dist.LogNormal(0.0, 1.0).log_prob(2.0), rtol=1e-12)
    np.testing.assert_allclose(slope, [0.0, np.log(2.0)], rtol=1e-12)


def test_observations_that_cannot_be_are_named():
    model = full_linear_gaussian()
    rows = np.zeros((4, 3))
    check_observations(model, rows)
    rows[1] = np.nan
    check_observations(check_model(model), rows)
    with pytest.raises(ValueError, match=r"rows of 3 columns.*\(4, 2\)"):
        check_observations(model, rows[:, :2])
    rows[2, 1] = np.nan
    check_observations(model, rows)
    with pytest.raises(ValueError, match="row 102, column 1 is missing"):
        check_observations(ModelShape(2, 3, partial_rows=False), rows, first_row=100)
    check_observations(ModelShape(2, 3, partial_rows=True), rows)
    rows[3, 2] = -np.inf
    with pytest.raises(ValueError, match="row 3, column 2 is infinite: -inf"):
        check_observations(ModelShape(2, 3, partial_rows=True), rows)


def test_the_sign_of_a_scale_does_not_matter():
    """θ may walk through zero: the model with −s is the model with s."""
    model = full_linear_gaussian()
    flipped = eqx.tree_at(lambda m: m.transition_scale, model, model.transition_scale * jnp.array([-1.0, 1.0]))
    x = jnp.array([0.3, -0.4])
    np.testing.assert_allclose(flipped.transition(x).log_prob(2 * x), model.transition(x).log_prob(2 * x), rtol=1e-12)
    np.testing.assert_allclose(flipped.dense().Q, model.dense().Q, rtol=1e-12)
