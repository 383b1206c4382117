"""The closed-form ELBO: it is the reference of all other tests, so it is compared with what shares nothing with it."""

import cuthbert
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuthbert.gaussian import kalman

import dense
from backstream.estimators.base import flatten
from backstream.estimators.reference.exact import Exact, exact_elbo, exact_log_likelihood
from backstream.families import Conjugate, Kalman, Recurrent
from backstream.models import ChaoticRNN, LinearGaussian

T = 6

value = eqx.filter_jit(exact_elbo)
estimate = eqx.filter_jit(Exact(learn_model=True))


def full_model(d=2, dy=3):
    """A linear-Gaussian model with nothing diagonal and nothing centered."""
    rng = np.random.default_rng(0)

    def covariance(n):
        root = rng.normal(size=(n, n))
        return 0.3 * root @ root.T + 0.2 * np.eye(n)

    A = 0.9 * np.linalg.qr(rng.normal(size=(d, d)))[0]
    B = rng.normal(size=(dy, d))
    return LinearGaussian(rng.normal(size=d), covariance(d), A, B, covariance(d), covariance(dy))


def diagonal_model():
    return LinearGaussian.random(3, 2, key=jax.random.key(0))


def data(p, num_steps=T, missing=False):
    ys = np.array(p.simulate(num_steps, key=jax.random.key(1))[1])
    if missing:
        ys[0, 0] = ys[2] = ys[4, 1] = np.nan
    return jnp.asarray(ys)


def families(p):
    """Families with affine kernels, all of them off the optimum."""
    d, dy = p.mean0.shape[0], p.dense().B.shape[0]
    return [
        Kalman.random(p, key=jax.random.key(2)),
        Kalman.from_model(full_model(d, dy)),
        Conjugate.create(d, dy, width=4, key=jax.random.key(3)),
    ]


@jax.jit
def cuthbert_log_likelihood(p, ys):
    """cuthbert's filter has its prior one step before the first observation: that step stands still."""
    mean0, Q0, A, B, Q, R = p.dense()
    zero, chol_Q, chol_R = jnp.zeros_like(mean0), jnp.linalg.cholesky(Q), jnp.linalg.cholesky(R)

    def dynamics(inputs):
        t, _ = inputs
        return jnp.where(t == 0, jnp.eye(len(A)), A), zero, jnp.where(t == 0, 0.0, chol_Q)

    def emission(inputs):
        return B, jnp.zeros(len(B)), chol_R, inputs[1]

    engine = kalman.build_filter(mean0, jnp.linalg.cholesky(Q0), dynamics, emission)
    states = cuthbert.filter(engine, (jnp.arange(len(ys)), ys), engine.init_prepare())
    return states.log_normalizing_constant[-1]


@pytest.mark.parametrize("p", [diagonal_model(), full_model()], ids=["diagonal", "full"])
def test_at_the_optimum_it_is_cuthberts_log_likelihood(p):
    ys = data(p, 40)
    expected = cuthbert_log_likelihood(p, ys)
    np.testing.assert_allclose(eqx.filter_jit(exact_log_likelihood)(p, ys), expected, rtol=1e-8)


@pytest.mark.parametrize("p", [diagonal_model(), full_model()], ids=["diagonal", "full"])
def test_missing_observations_are_integrated_out(p):
    """Rows and single coordinates, with diagonal and with full noise: the oracle drops them from a dense Gaussian."""
    ys = data(p, missing=True)
    found = estimate(p, Kalman.from_model(p), ys)
    np.testing.assert_allclose(found.elbo, dense.log_likelihood(p, ys), rtol=1e-10)
    np.testing.assert_allclose(flatten(found.gradient)[0], 0.0, atol=1e-8)


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("which", range(3), ids=["kalman", "kalman-full", "conjugate"])
def test_off_the_optimum_it_is_the_dense_elbo(which, missing):
    p = diagonal_model()
    q, ys = families(p)[which], data(p, missing=missing)
    found = value(p, q, ys)
    np.testing.assert_allclose(found, dense.elbo(p, q, ys), rtol=1e-9)
    assert found < dense.log_likelihood(p, ys)


def test_one_observation():
    p = full_model()
    q, ys = Kalman.from_model(full_model()), data(p, 1)
    np.testing.assert_allclose(value(p, q, ys), dense.log_likelihood(p, ys), rtol=1e-10)


@pytest.mark.parametrize("which", [0, 2], ids=["kalman", "conjugate"])
def test_gradients_are_finite_differences_of_the_dense_elbo(which):
    """Of the oracle, which no derivative of ours has touched, along random directions in λ and in θ."""
    p = diagonal_model()
    q, ys = families(p)[which], data(p, missing=True)
    found = estimate(p, q, ys)
    rng = np.random.default_rng(5)
    for module, gradient, oracle in (
        (q, found.gradient, lambda q: dense.elbo(p, q, ys)),
        (p, found.model_gradient, lambda p: dense.elbo(p, q, ys)),
    ):
        vector, rebuild = flatten(module)
        for _ in range(2):
            direction, step = rng.normal(size=vector.size), 1e-5
            ends = (oracle(rebuild(vector + sign * step * direction)) for sign in (1, -1))
            slope = -np.diff(list(ends))[0] / (2 * step)
            np.testing.assert_allclose(flatten(gradient)[0] @ direction, slope, rtol=1e-5)


def test_it_works_inside_jit_and_grad():
    p, ys = diagonal_model(), data(diagonal_model())
    q = families(p)[0]
    vector, rebuild = flatten(q)

    @jax.jit
    def twice(v):
        return jax.grad(lambda v: Exact()(p, rebuild(v), ys).elbo)(v)

    np.testing.assert_allclose(twice(vector), flatten(estimate(p, q, ys).gradient)[0], rtol=1e-9)


def test_precision_follows_lambda_and_survives_a_distant_origin():
    """The same data moved by 1000 in float32: x itself keeps four digits there, and H is expanded where x is."""
    p = LinearGaussian(jnp.zeros(2), jnp.ones(2), jnp.eye(2), jnp.eye(2), 0.3 * jnp.ones(2), 0.5 * jnp.ones(2))
    ys = data(p, 50)
    q = Kalman.create(jnp.zeros(2), jnp.ones(2), jnp.eye(2), jnp.eye(2), 0.5 * jnp.ones(2), 0.3 * jnp.ones(2))

    def moved(module, offset, where):
        return eqx.tree_at(where, module, where(module) + offset)

    def single(tree):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, tree)

    here = value(p, q, ys)
    p, q = moved(p, 1000.0, lambda p: p.mean0), moved(q, 1000.0, lambda q: q.dynamics.mean0)
    np.testing.assert_allclose(value(p, q, ys + 1000.0), here, rtol=1e-9)
    found = estimate(single(p), single(q), single(ys + 1000.0))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32")}
    np.testing.assert_allclose(found.elbo, here, rtol=3e-4)


def test_what_has_no_closed_form_is_refused():
    p, ys = diagonal_model(), data(diagonal_model())
    recurrent = Recurrent.create(3, 2, width=4, key=jax.random.key(0))
    with pytest.raises(TypeError, match="those of Recurrent are not"):
        Exact()(p, recurrent, ys)
    square = LinearGaussian.random(3, 3, key=jax.random.key(0))
    with pytest.raises(TypeError, match="not ChaoticRNN"):
        Exact()(ChaoticRNN.random(3, key=jax.random.key(0)), Kalman.from_model(square), data(square))
