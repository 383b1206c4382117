"""Linear Gaussian models through the guided family: the Kalman filter, smoother and likelihood from the first row."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.families import Guided
from backstream.families.backward import filter_states
from backstream.models import LinearGaussian
from guided_reference import LinearModel, constant, exact
from toys import Toy

T = 25


def linear(name):
    """A model, its inputs, and its matrices."""
    rng = np.random.default_rng(len(name))

    def random_cov(n):
        root = rng.standard_normal((n, n))
        return root @ root.T / n + 0.2 * np.eye(n)

    if name in ("diagonal", "correlated", "many columns"):
        d, dy = (4, 7) if name == "many columns" else (3, 3)
        A, B = 0.4 * rng.standard_normal((d, d)), rng.standard_normal((dy, d))
        R = np.diag(rng.random(dy) + 0.2) if name == "diagonal" else random_cov(dy)
        given = rng.standard_normal(d), random_cov(d), A, random_cov(d), B, R
        noise = np.sqrt(np.diag(R)) if name == "diagonal" else R
        mean0, Q0, A, Q, B, R = given
        model = LinearGaussian(*map(jnp.asarray, (mean0, Q0, A, B, Q, noise)))
        return model, None, constant(*given, T)
    if name == "second-order autoregression":
        A, scale, B = np.array([[0.6, 0.3], [1.0, 0.0]]), np.array([0.5, 0.0]), np.array([[1.0, 0.0]])
        model = Toy(
            lambda x, u: dist.Normal(x[0], 0.7),
            lambda x, u: dist.Normal(A @ x, scale, validate_args=False).to_event(1),
            d=2,
        )
        return model, None, constant(np.zeros(2), np.eye(2), A, np.diag(scale**2), B, 0.49 * np.eye(1), T)
    if name == "constant velocity":
        step = 0.3
        F, G = np.array([[1.0, step], [0.0, 1.0]]), np.array([[step**2 / 2, 0.0], [step, 0.0]])
        A, L, B = np.kron(np.eye(2), F), np.kron(np.eye(2), G), np.kron(np.eye(2), [[1.0, 0.0]])
        model = Toy(
            lambda x, u: dist.Normal(B @ x, 0.2).to_event(1),
            lambda x, u: dist.MultivariateNormal(A @ x, scale_tril=L, validate_args=False),
            d=4,
        )
        return model, None, constant(np.zeros(4), np.eye(4), A, L @ L.T, B, 0.04 * np.eye(2), T)
    if name == "steps of unequal length":
        us = rng.random(T) * 2
        us[0] = 0.0
        kept = np.exp(-us)
        model = Toy(
            lambda x, u: dist.Normal(x + u, 0.5).to_event(1),
            lambda x, u: dist.Normal(jnp.exp(-u) * x, jnp.sqrt(1 - jnp.exp(-2 * u)), validate_args=False).to_event(1),
        )
        eye = np.eye(1)[None]
        matrices = LinearModel(
            np.zeros(1), np.eye(1), kept[:, None, None] * eye, (1 - kept**2)[:, None, None] * eye,
            np.repeat(eye, T, 0), 0.25 * np.repeat(eye, T, 0),
        )  # fmt: skip
        return model, us, matrices
    model = bs.structural(
        level=0.3, trend=0.05, seasonal=4, seasonal_scale=0.1, ar=[0.5, -0.3], ar_scale=0.4, regressors=2, noise=0.6,
        initial_scale=2.0,
    )  # fmt: skip
    us = rng.standard_normal((T, 2))
    us[0] = 0.0
    parts = [model.dense(jnp.asarray(u)) for u in us]
    mean0, Q0, A, _, Q, R = map(np.asarray, parts[0])
    whole = constant(mean0, Q0, A, Q, parts[0].B, R, T)
    return model, us, whole._replace(B=np.array([part.B for part in parts]))


NAMES = [
    *("diagonal", "correlated", "many columns", "second-order autoregression", "constant velocity"),
    *("steps of unequal length", "structural"),
]


@pytest.mark.parametrize("name", NAMES)
def test_linear_gaussian_models_are_exact(name):
    """Filter, smoother and the log score of each row to 1e-8, with rows and single columns that are missing; singular
    noise and inputs that are zero in the first row among them."""
    model, us, matrices = linear(name)
    us = None if us is None else jnp.asarray(us)
    ys = np.array(model.simulate(T, us, key=jax.random.key(1))[1])
    if name == "steps of unequal length":
        ys -= np.asarray(us)[:, None]  # what is known is taken out of the reference's rows
    ys[5:9] = np.nan
    ys[12, 0] = ys[20, -1] = np.nan
    seen = ys + np.asarray(us)[:, None] if name == "steps of unequal length" else ys
    q = Guided.from_model(model, None if us is None else us[0])
    assert q.exact
    expected = exact(matrices, ys)
    near = {"rtol": 1e-8, "atol": 1e-8}
    filtered, smoothed = bs.filter(model, q, seen, us), bs.smooth(model, q, seen, us)
    np.testing.assert_allclose(filtered.mean, expected.filtered, **near)
    np.testing.assert_allclose(filtered.cov, expected.filtered_cov, **near)
    np.testing.assert_allclose(smoothed.mean, expected.smoothed, **near)
    np.testing.assert_allclose(smoothed.cov, expected.smoothed_cov, **near)
    states = jax.jit(lambda ys, us: filter_states(model, q, ys, us))(jnp.asarray(seen), us)
    np.testing.assert_allclose(jax.vmap(q.log_score)(states), expected.log_scores, **near)


def test_outliers_gaps_and_a_far_start_are_no_matter():
    """A first row 10⁴ standard deviations from the prior, a gap of 1 000 rows, an outlier of 10⁶: the same
    recursions."""
    model, _, matrices = linear("second-order autoregression")
    A, Q, B, R = (np.asarray(part[0]) for part in matrices[2:])
    ys = np.array(model.simulate(1100, key=jax.random.key(2))[1])
    ys[0], ys[30], ys[40:1040] = 1e4, 1e6, np.nan
    found = bs.filter(model, Guided.from_model(model), ys)
    mean, cov = matrices.mean0, matrices.Q0
    for t, y in enumerate(ys):
        if t > 0:
            mean, cov = A @ mean, A @ cov @ A.T + Q
        if np.isfinite(y).all():
            gain = cov @ B.T @ np.linalg.inv(B @ cov @ B.T + R)
            mean, cov = mean + gain @ (y - B @ mean), (np.eye(2) - gain @ B) @ cov
        assert np.abs((found.mean[t] - mean) / np.sqrt(np.diag(cov))).max() < 1e-6
        np.testing.assert_allclose(found.cov[t], cov, rtol=1e-8, atol=1e-12)
