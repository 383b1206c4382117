"""Many columns that read more than three directions of the state: one row against importance sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from backstream.families import Guided
from backstream.families.guided import wide_updates
from backstream.families.guided.wide_updates import Joint, Regressed, RegressedNormal, RegressedStudent
from backstream.models import StateSpaceModel

RNG = np.random.default_rng(0)
D, COLUMNS = 5, 40
A, B = 0.7 * RNG.standard_normal((8, D)), 0.7 * RNG.standard_normal((COLUMNS, 8))
CHOL = 0.4 * np.linalg.cholesky(np.eye(COLUMNS) + 0.3 * np.eye(COLUMNS, k=1) + 0.3 * np.eye(COLUMNS, k=-1))


class Network(StateSpaceModel):
    emit: object

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(D), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return self.emit(B @ jnp.tanh(A @ x))


def with_moving_scale(s):
    return dist.MultivariateStudentT(3.0, s, CHOL * jnp.exp(0.1 * s[0]))


KINDS = {
    "normal": (lambda s: dist.MultivariateNormal(s, scale_tril=CHOL), RegressedNormal),
    "student": (lambda s: dist.StudentT(2.5, s, 0.3).to_event(1), Regressed),
    "joint student": (lambda s: dist.MultivariateStudentT(3.0, s, CHOL), RegressedStudent),
}


def sampled(p, y, near, points=20_000):
    """Mean, standard deviations and log mass of prior × emission, from a wide law around the mode next to `near`."""

    def log_product(x):
        return p.prior().log_prob(x) + p.emission(x).log_prob(y)

    def newton(_, x):
        step = jnp.linalg.solve(-jax.hessian(log_product)(x) + 0.3 * jnp.eye(D), jax.grad(log_product)(x))
        return x + step * jnp.minimum(1.0, 0.5 / jnp.linalg.norm(step))

    x = jax.lax.fori_loop(0, 30, newton, near)
    L = jnp.linalg.cholesky(jnp.linalg.inv(-jax.hessian(log_product)(x)))
    wide = dist.MultivariateStudentT(5.0, x, 1.2 * L)
    xs = wide.sample(jax.random.key(1), (points,))
    log_weight = np.asarray(jax.vmap(log_product)(xs) - wide.log_prob(xs))
    weight = np.exp(log_weight - log_weight.max())
    assert weight.sum() ** 2 / (weight**2).sum() > 0.2 * points
    mean = (weight / weight.sum()) @ np.asarray(xs)
    scale = np.sqrt((weight / weight.sum()) @ (np.asarray(xs) - mean) ** 2)
    return mean, scale, log_weight.max() + np.log(weight.mean())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "student" else pytest.mark.slow) for name in KINDS]
)
def test_what_many_columns_say_together(name):
    """The prediction is far wider than the posterior, and the emission bends over it: a line through all of it is not
    enough. Means to a fifth of a posterior standard deviation, scales to a quarter."""
    emit, update = KINDS[name]
    p = Network(emit)
    q = Guided.from_model(p)
    assert isinstance(q.plan.update, update)
    xs, ys = p.simulate(1, key=jax.random.key(3))
    y = ys[0].astype(float)
    mean, scale, log_mass = sampled(p, y, xs[0])
    state = jax.jit(lambda y: q.update(p, q.init(p), y))(y)
    np.testing.assert_allclose((state.mean - mean) / scale, 0.0, atol=0.2)
    np.testing.assert_allclose(np.sqrt(np.diagonal(q.moments(state)[1])) / scale, 1.0, atol=0.25)
    assert abs(state.log_score - log_mass) < 0.1


def test_a_scale_that_moves_with_the_state_is_not_taken_for_a_fixed_one():
    assert isinstance(Guided.from_model(Network(with_moving_scale)).plan.update, Joint)


def test_a_students_normal_laws_add_up_to_it():
    """One column and a line: the moments are those of quadrature, and the log mass too."""
    slope, residual, df = jnp.array([[1.5]]), jnp.array([3.0]), jnp.asarray(3.0)
    found = wide_updates._mixed_precision(df, slope, residual, 1)
    z = np.linspace(-12, 12, 20001)
    log_p = dist.Normal(0, 1).log_prob(z) + dist.StudentT(3.0, 1.5 * z, 1.0).log_prob(3.0)
    weight = np.exp(np.asarray(log_p))
    mass = weight.sum() * (z[1] - z[0])
    mean = (weight @ z) / weight.sum()
    scale = np.sqrt((weight @ (z - mean) ** 2) / weight.sum())
    np.testing.assert_allclose([found.mean[0], found.factor[0, 0], found.log_mass], [mean, scale, np.log(mass)], 2e-3)
