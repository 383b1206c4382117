"""What every family keeps to: precision, derivatives, missing rows, and what it says of its kernels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from backstream.families import Conjugate, Kalman, PerStep, Recurrent, TanhCell
from backstream.families.backward import filter_states, first_state
from backstream.families.linear import LinearDynamics
from backstream.laws.gaussian import Gaussian
from backstream.models import ChaoticRNN, StochasticVolatility
from small_models import cast, linear_model, single

KEY = jax.random.key(0)

# ---- what every family keeps to -----------------------------------------------------------------------------------

VOLATILITY = StochasticVolatility(jnp.zeros(3), jnp.full(3, 0.9), jnp.full(3, 0.3))
CHAOTIC = ChaoticRNN.random(3, key=KEY)
DYNAMICS_3 = LinearDynamics.create(jnp.zeros(3), jnp.ones(3), jnp.full(3, 0.9), jnp.full(3, 0.3))
LINEAR, LINEAR_FULL = linear_model(False), linear_model(True)
FAMILIES = {
    "Kalman": (LINEAR, lambda: Kalman.from_model(LINEAR)),
    "Kalman, full": (LINEAR_FULL, lambda: Kalman.from_model(LINEAR_FULL)),
    "Conjugate": (LINEAR, lambda: Conjugate.create(3, 2, 8, key=KEY)),
    "Conjugate, full": (LINEAR, lambda: Conjugate.create(3, 2, 8, full_transition=True, key=KEY)),
    "Recurrent": (LINEAR, lambda: Recurrent.create(3, 2, 8, key=KEY)),
    "Recurrent, diagonal": (LINEAR, lambda: Recurrent.create(3, 2, 8, cell=TanhCell, diagonal=True, key=KEY)),
    "PerStep": (LINEAR, lambda: PerStep.create(3, 2, 8, key=KEY)),
    "PerStep, full": (LINEAR, lambda: PerStep.create(3, 2, 8, full_precision=True, key=KEY)),
}


@pytest.fixture(params=FAMILIES, ids=str)
def case(request):
    p, make = FAMILIES[request.param]
    return p, make()


def stream(q):
    ys = np.random.default_rng(0).normal(size=(5, q.obs_dim))
    ys[1, 0] = np.nan
    ys[3] = np.nan
    return jnp.asarray(ys)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_dtype_is_kept(case, dtype):
    p, q = cast(case, dtype)
    ys = stream(q).astype(dtype)

    def everything(ys):
        states = filter_states(p, q, ys)
        state = jax.tree.map(lambda leaf: leaf[-1], states)
        psi = q.kernel(p, state).potential(jnp.zeros(q.state_dim, dtype))
        made = states, q.marginal(state), psi, (q.marginal(state) * psi).moments()
        return eqx.filter(made, eqx.is_inexact_array)

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(everything, ys))} == {jnp.dtype(dtype)}


def test_made_in_float32():
    made = [
        Conjugate.create(3, 2, 8, key=KEY, dtype=jnp.float32),
        Recurrent.create(3, 2, 8, key=KEY, dtype=jnp.float32),
        PerStep.create(3, 2, 8, key=KEY, dtype=jnp.float32),
        Kalman.from_model(single(linear_model(True))),
        Kalman.random(single(linear_model(True)), key=KEY),
    ]
    for q in made:
        kinds = {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(q, eqx.is_inexact_array))}
        assert kinds == {jnp.dtype(jnp.float32)}, type(q).__name__


def test_gradients_under_jit_and_vmap_are_those_of_differences(case):
    """Of a function of everything the family says, with respect to λ along a direction, over a stream with gaps."""
    p, q = case
    ys = stream(q)
    arrays, static = eqx.partition(q, eqx.is_inexact_array)
    x = jnp.linspace(-1, 1, q.state_dim)

    def value(arrays, ys):
        q = eqx.combine(arrays, static)
        states = filter_states(p, q, ys)
        psi = q.kernel(p, jax.tree.map(lambda leaf: leaf[-1], states)).potential(x)
        return (jax.vmap(lambda state: q.marginal(state).eta)(states).sum(0) * psi.eta).sum()

    batch = jnp.stack([ys, ys + 1])
    at = jax.jit(jax.vmap(jax.value_and_grad(value), in_axes=(None, 0)))
    values, gradients = at(arrays, batch)
    lam, rebuild = ravel_pytree(arrays)
    direction, step = jax.random.normal(jax.random.key(3), lam.shape), 1e-5
    for i in range(2):
        ends = [at(rebuild(lam + sign * step * direction), batch)[0][i] for sign in (-1, 1)]
        slope = ravel_pytree(jax.tree.map(lambda leaf, i=i: leaf[i], gradients))[0] @ direction
        np.testing.assert_allclose(slope, (ends[1] - ends[0]) / (2 * step), rtol=1e-4, atol=1e-6 * np.abs(values[i]))


def test_a_missing_row_leaves_a_proper_filter(case):
    """The filter is still proper: finite, with a positive definite covariance."""
    p, q = case

    @jax.jit
    def predicted(y):
        return q.marginal(q.update(p, first_state(p, q, y), jnp.full(q.obs_dim, jnp.nan))).moments()

    mean, cov = predicted(stream(q)[0])
    assert np.isfinite(mean).all() and np.linalg.eigvalsh(cov).min() > 0


def test_second_component_of_the_potential_does_not_depend_on_x(case):
    """`out_axes=None` is refused by JAX for anything batched: estimators then factorize once for all particles."""
    p, q = case
    kernel = q.kernel(p, first_state(p, q, stream(q)[0]))
    xs = jax.random.normal(KEY, (6, q.state_dim))

    def components(x):
        potential = kernel.potential(x)
        return potential.eta1, potential.eta2

    apart = jax.vmap(components, out_axes=(0, None))
    if isinstance(q, Recurrent):
        with pytest.raises(ValueError, match="out_axes"):
            apart(xs)
        return
    eta1, eta2 = apart(xs)
    assert eta1.shape == (6, q.state_dim)
    assert np.linalg.eigvalsh(Gaussian(eta1[0], eta2).precision).min() > -1e-12


def test_affine_is_what_the_families_say(case):
    p, q = case
    kernel = q.kernel(p, first_state(p, q, stream(q)[0]))
    line = jnp.linspace(-2, 2, 5)[:, None] * jnp.arange(1.0, q.state_dim + 1)
    potential = jax.jit(jax.vmap(kernel.potential))(line)
    bend = max(np.abs(np.diff(potential.eta1, n=2, axis=0)).max(), np.abs(np.diff(potential.eta2, axis=0)).max())
    assert (bend < 1e-10) == q.affine
