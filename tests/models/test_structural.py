"""Structural models: what they say of themselves, their laws, their parameters, and the errors a user meets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to

import backstream as bs
from backstream.learning.parameters import ModelParameters
from backstream.models import check_model, check_observations, log_emission
from backstream.models.structural.stationary import coefficients, covariance, partial_autocorrelations, stationary
from backstream.runs.model_registry import find
from kalman_reference import Linear

# Two-sided: a standard normal is beyond it once in 15 million draws. Seeds are fixed.
Z_LIMIT = 5.3

WHOLE = {
    "level": 0.3, "trend": 0.05, "seasonal": [4, 10.5], "harmonics": [0, 2], "seasonal_scale": [0.2, 0.0],
    "cycle": 5.0, "cycle_damping": 0.9, "cycle_scale": 0.25, "ar": [0.5, -0.3], "ar_scale": 0.4,
    "regressors": 3, "regressor_scale": [0.0, 0.1, 0.2], "noise": 0.6, "initial_scale": 2.0,
}  # fmt: skip
"""A model with every kind of component."""


# ---- what the model says of itself -----------------------------------------------------------------------------------
def test_a_model_says_what_it_is():
    said = repr(bs.structural(**WHOLE, family="student", df=3.5))
    assert said.splitlines() == [
        "Structural: 16 states, student with the signal as location, noise_scale 0.6, df 3.5",
        "  level: local linear trend, level_scale 0.3, trend_scale 0.05",
        "  seasonal4: dummies, seasonal_scale 0.2",
        "  seasonal10.5: 2 fixed harmonics",
        "  cycle: damped wave, cycle_period 5, cycle_damping 0.9, cycle_scale 0.25",
        "  ar: order 2, ar [0.5, -0.3], ar_scale 0.4",
        "  regressors: 3 coefficients, 1 constant, regressor_scale [0.1, 0.2]",
    ]
    printed = jax.jit(lambda level: len(repr(bs.structural(level=level))))  # repr of a model of tracers
    assert printed(0.3) > 0
    assert "Shape" in repr(jax.tree.map(eqx.is_inexact_array, bs.structural(**WHOLE)))


def test_states_have_names():
    model = bs.structural(**WHOLE)
    assert model.state_names == (
        *("level", "slope", "seasonal4", "seasonal4_lag1", "seasonal4_lag2"),
        *("seasonal10.5_cos1", "seasonal10.5_sin1", "seasonal10.5_cos2", "seasonal10.5_sin2"),
        *("cycle", "cycle_conjugate", "ar", "ar_lag1", "regressor0", "regressor1", "regressor2"),
    )
    assert [part.name for part in model.components] == [
        "level",
        "seasonal4",
        "seasonal10.5",
        "cycle",
        "ar",
        "regressors",
    ]
    two = bs.structural(level=None, cycle=[5.0, 30.0], cycle_scale=0.1)
    assert two.state_names == ("cycle0", "cycle0_conjugate", "cycle1", "cycle1_conjugate")


def test_the_components_add_up_to_the_signal():
    model = bs.structural(**WHOLE)
    xs, us = jax.random.normal(jax.random.key(0), (5, 16)), jax.random.normal(jax.random.key(1), (5, 3))
    parts = model.decompose(xs, us)
    assert list(parts) == [part.name for part in model.components]
    np.testing.assert_allclose(parts["seasonal10.5"], xs[:, 5] + xs[:, 7], rtol=1e-12)
    np.testing.assert_allclose(parts["regressors"], (xs[:, 13:] * us).sum(1), rtol=1e-12)
    signal = jax.vmap(lambda x, u: model.emission(x, u).mean)(xs, us)
    np.testing.assert_allclose(sum(parts.values()), signal[:, 0], rtol=1e-12)
    with pytest.raises(ValueError, match=r"has 16 states.*\(5, 15\)"):
        model.decompose(xs[:, :15], us)


def test_dense_matrices_are_those_of_the_laws():
    model, us = bs.structural(**WHOLE), jnp.array([[1.0, -2.0, 0.5]])
    read = Linear.read(model, us)
    for name, matrix in model.dense(us[0])._asdict().items():
        expected = getattr(read, name)
        np.testing.assert_allclose(
            matrix, expected[0] if name == "B" else expected, rtol=1e-12, atol=1e-14, err_msg=name
        )
    with pytest.raises(ValueError, match="the family 'poisson' has no emission matrices"):
        bs.structural(family="poisson").dense()


# ---- its laws --------------------------------------------------------------------------------------------------------
def test_cycles_and_autoregressions_start_from_their_stationary_law():
    model = bs.structural(level=None, cycle=9.0, cycle_scale=0.5, ar=[0.4, -0.3, 0.2, 0.1], ar_scale=0.7)
    _, Q0, A, _, Q, _ = model.dense()
    np.testing.assert_allclose(A @ Q0 @ A.T + Q, Q0, atol=1e-14)
    one = bs.structural(level=None, ar=[0.6], ar_scale=0.8).prior()
    np.testing.assert_allclose(one.variance, 0.64 / (1 - 0.36), rtol=1e-14)


def test_each_state_has_the_noise_of_its_component():
    model = bs.structural(**WHOLE)
    scales = dict(zip(model.state_names, np.sqrt(model.transition(jnp.zeros(16)).variance), strict=True))
    moving = {
        "level": 0.3, "slope": 0.05, "seasonal4": 0.2, "cycle": 0.25, "cycle_conjugate": 0.25, "ar": 0.4,
        "regressor1": 0.1, "regressor2": 0.2,
    }  # fmt: skip
    assert {name: scale for name, scale in scales.items() if scale > 0} == pytest.approx(moving, rel=1e-14)
    two = bs.structural(seasonal=[3, 6.5], harmonics=[0, 1], seasonal_scale=[0.1, 0.2]).dense().Q
    np.testing.assert_allclose(np.diag(two), np.square([0, 0.1, 0, 0.2, 0.2]), rtol=1e-14)


def test_the_prior_is_what_the_user_sets():
    set_scale = {"level": 3.0, "slope": 0.2, "seasonal": 0.5, "regressors": 7.0}
    model = bs.structural(
        level=0.1, trend=0.1, seasonal=3, regressors=1, initial_level=50.0, initial_scale=set_scale
    )  # fmt: skip
    np.testing.assert_allclose(model.prior().mean, [50.0, 0, 0, 0, 0])
    np.testing.assert_allclose(model.prior().variance, np.square([3.0, 0.2, 0.5, 0.5, 7.0]), rtol=1e-14)
    for scale, expected in ((4.0, [4.0, 0.4]), ({"slope": 1.0}, [200.0, 1.0]), (None, [200.0, 20.0])):
        prior = bs.structural(level=2.0, trend=0.1, noise=1.0, initial_scale=scale).prior()
        np.testing.assert_allclose(prior.variance, np.square(expected), rtol=1e-14)
    np.testing.assert_allclose(bs.structural(family="binary").prior().variance, 25.0, rtol=1e-14)


def test_the_default_prior_follows_the_units():
    scales = {"level": 0.3, "trend": 0.02, "noise": 0.5}
    small = bs.structural(**scales).prior().variance
    large = bs.structural(**{name: 1000 * value for name, value in scales.items()}).prior().variance
    np.testing.assert_allclose(large, 1e6 * small, rtol=1e-12)


def test_simulation_has_the_moments_of_the_matrices():
    """Of 20 000 draws: 14 z-scores of means and covariances of Y_0, …, Y_3, each within Z_LIMIT."""
    model, n, T = bs.structural(**WHOLE), 20_000, 4
    us = jax.random.normal(jax.random.key(0), (T, 3))
    keys = jax.random.split(jax.random.key(1), n)
    states, ys = jax.jit(jax.vmap(lambda key: model.simulate(T, us, key=key)))(keys)
    p = Linear.read(model, us)
    powers = [np.linalg.matrix_power(p.A, t) for t in range(T)]
    covs = [p.Q0]
    for _ in range(T - 1):
        covs.append(p.A @ covs[-1] @ p.A.T + p.Q)
    expected = np.array(
        [[p.B[s, 0] @ powers[max(s - t, 0)] @ covs[min(s, t)] @ powers[max(t - s, 0)].T @ p.B[t, 0] for t in range(T)]
         for s in range(T)]
    ) + p.R * np.eye(T)  # fmt: skip
    mean = [p.B[t, 0] @ powers[t] @ p.mean0 for t in range(T)]
    white = np.linalg.solve(np.linalg.cholesky(expected), (np.asarray(ys[..., 0]) - mean).T)
    second = (white @ white.T - n * np.eye(T)) / np.sqrt(n * (1 + np.eye(T)))
    scores = [*white.sum(1) / np.sqrt(n), *second[np.triu_indices(T)]]
    assert len(scores) == 14 and np.abs(scores).max() < Z_LIMIT
    # What has no noise of its own is exact.
    named = dict(zip(model.state_names, np.moveaxis(np.asarray(states), -1, 0), strict=True))
    for state in ("ar", "seasonal4"):
        np.testing.assert_array_equal(named[f"{state}_lag1"][:, 1:], named[state][:, :-1])
    np.testing.assert_array_equal(named["regressor0"][:, 1:], named["regressor0"][:, :-1])
    assert (named["regressor1"][:, 1:] != named["regressor1"][:, :-1]).all()


def laws_of_scipy(signal):
    mean = np.exp(signal)
    return {
        "normal": ({"noise": 0.6}, scipy.stats.norm(signal, 0.6), -0.7),
        "student": ({"noise": 0.6, "df": 3.0}, scipy.stats.t(3.0, signal, 0.6), 2.5),
        "poisson": ({}, scipy.stats.poisson(mean), 4),
        "negbin": ({"dispersion": 0.5}, scipy.stats.nbinom(2.0, 1 / (1 + 0.5 * mean)), 4),
        "binary": ({}, scipy.stats.bernoulli(1 / (1 + np.exp(-signal))), 1),
    }


@pytest.mark.parametrize("family", ["normal", "student", "poisson", "negbin", "binary"])
def test_the_families_are_the_laws_they_say(family):
    model = bs.structural(level=0.1, seasonal=3, family=family)
    _, ys = model.simulate(9, key=jax.random.key(0))
    assert ys.shape == (9, 1) and np.isfinite(ys).all()
    assert check_model(model)[:3] == (3, 1, True)
    check_observations(model, np.asarray(ys))

    x = jnp.array([0.9, -0.4, 5.0])
    given, law, y = laws_of_scipy(0.5)[family]
    model = bs.structural(level=0.1, seasonal=3, family=family, **given)
    expected = law.logpdf(y) if family in ("normal", "student") else law.logpmf(y)
    np.testing.assert_allclose(log_emission(model, x, jnp.array([float(y)])), expected, rtol=1e-10)
    np.testing.assert_allclose(model.emission(x).variance, law.var(), rtol=1e-10)
    assert log_emission(model, x, jnp.array([jnp.nan])) == 0


def test_float32_stays_float32():
    for family in ("normal", "negbin"):
        settings = {name: value for name, value in WHOLE.items() if name != "noise"}
        model = bs.structural(**settings, family=family)
        model = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if eqx.is_array(leaf) else leaf, model)
        us = jnp.zeros((4, 3), jnp.float32)
        states, ys = jax.jit(lambda model, us: model.simulate(4, us, key=jax.random.key(0)))(model, us)
        assert states.dtype == ys.dtype == jnp.float32
        assert model.transition(states[0], us[0]).variance.dtype == jnp.float32
    assert bs.structural(level=jnp.float32(0.1), ar=np.float32([0.5]), ar_scale=1.0).ar.dtype == jnp.float32


# ---- its parameters --------------------------------------------------------------------------------------------------
def test_parameters_keep_to_their_constraints_whatever_the_step():
    model = bs.structural(**WHOLE)
    parameters = ModelParameters(model)
    raw = parameters.unconstrained()
    for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(parameters.model(raw)), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-12)
    for step in (-4.0, 4.0):
        moved = parameters.model(jax.tree.map(lambda leaf, step=step: leaf + step, raw))
        for name in ("level_scale", "trend_scale", "seasonal_scale", "cycle_scale", "ar_scale", "regressor_scale"):
            assert (getattr(moved, name) > 0).all() and (getattr(moved, name) != getattr(model, name)).all()
        assert moved.cycle_period > 2 and 0 < moved.cycle_damping < 1
        assert np.abs(np.roots([1, *-np.asarray(moved.ar)])).max() < 1
        assert np.isfinite(moved.prior(jnp.zeros(3)).covariance_matrix).all()


def test_only_what_can_be_learned_is_a_parameter():
    """A scale of 0 is a choice: the model has no such noise, and learning cannot bring it back."""
    fixed = bs.structural(level=0.0, trend=0.0, seasonal=12, regressors=2)
    arrays = eqx.filter(fixed, eqx.is_inexact_array)
    assert sum(leaf.size for leaf in jax.tree.leaves(arrays)) == fixed.noise_scale.size == 1
    whole = eqx.filter(bs.structural(**WHOLE), eqx.is_inexact_array)
    assert sum(leaf.size for leaf in jax.tree.leaves(whole)) == 12


def test_derivatives_in_the_parameters_are_those_of_differences():
    arrays, static = eqx.partition(bs.structural(**WHOLE), eqx.is_inexact_array)
    u = jnp.ones(3)

    def total(arrays):
        return sum((matrix**2).sum() for matrix in eqx.combine(arrays, static).dense(u))

    vector, rebuild = ravel_pytree(arrays)
    at = jax.jit(lambda vector: total(rebuild(vector)))
    found, step = np.asarray(jax.jit(jax.grad(at))(vector)), 1e-5
    for i, slope in enumerate(found):
        ends = [float(at(vector.at[i].add(sign * step))) for sign in (-1, 1)]
        assert slope != 0 and slope == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-4)


def test_a_model_can_be_made_inside_a_transformation():
    def level_noise(scale):
        return bs.structural(level=scale, seasonal=4, noise=2 * scale).dense()

    np.testing.assert_allclose(jax.jit(level_noise)(0.5).Q0, level_noise(0.5).Q0)
    np.testing.assert_allclose(jax.grad(lambda scale: level_noise(scale).Q[0, 0])(0.5), 1.0)


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_stationary_autoregressions(order):
    raw = 1.5 * jax.random.normal(jax.random.key(order), (order,))
    transform = biject_to(stationary)
    phi = transform(raw)
    assert np.abs(np.roots([1, *-np.asarray(phi)])).max(initial=0) < 1 and stationary(phi)
    np.testing.assert_allclose(transform.inv(phi), raw, rtol=1e-8)
    np.testing.assert_allclose(coefficients(partial_autocorrelations(phi)), phi, rtol=1e-10)
    if order:
        companion = np.eye(order, k=-1)
        companion[0] = phi
        noise = np.zeros((order, order))
        noise[0, 0] = 1
        cov = np.asarray(covariance(phi))
        np.testing.assert_allclose(companion @ cov @ companion.T + noise, cov, rtol=1e-8)
        assert not stationary(phi.at[-1].set(1.01))


# ---- errors, and the command line ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"level": -0.1}, "level must be a standard deviation, 0 or more, but is -0.1"),
        ({"level": True}, "level must be a finite number, not True"),
        ({"level": float("nan")}, "level must be a finite number, not nan"),
        ({"level": np.array([0.1, 0.2])}, r"level must be one number, not \[0.1, 0.2\]"),
        ({"level": None, "trend": 0.1}, "trend is 0.1, but the model has no level"),
        ({"level": None}, "The model has no component"),
        ({"seasonal": 1}, "seasonal must be a whole number from 2 on where there are no harmonics, not 1.0"),
        ({"seasonal": 365.25}, "seasonal must be a whole number .* not 365.25"),
        ({"seasonal": [7, 7]}, r"seasonal must hold different periods, but is \[7.0, 7.0\]"),
        ({"seasonal": 12, "harmonics": 7}, "harmonics must be at most half of the period 12.0, not 7"),
        ({"seasonal": 12, "harmonics": 1.5}, "harmonics must be a whole number, 0 or more, not 1.5"),
        (
            {"seasonal": [7, 12], "seasonal_scale": [1, 2, 3]},
            r"seasonal_scale must be one number or 2, not \[1, 2, 3\]",
        ),
        ({"seasonal_scale": 0.1}, "seasonal_scale is 0.1, but the model has no seasonal"),
        ({"harmonics": 2}, "harmonics is 2, but the model has no seasonal"),
        ({"cycle": 2.0, "cycle_scale": 1.0}, "cycle must be a period of more than 2 steps, not 2.0"),
        ({"cycle": 9.0}, "A cycle needs cycle_scale"),
        ({"cycle": 9.0, "cycle_scale": 0.0}, "cycle_scale must be positive, but is 0.0"),
        ({"cycle": 9.0, "cycle_scale": 1.0, "cycle_damping": 1.0}, "cycle_damping must lie strictly between 0 and 1"),
        ({"cycle_damping": 0.9}, "cycle_damping is 0.9, but the model has no cycle"),
        ({"ar": [0.5, 0.6], "ar_scale": 1.0}, r"coefficients of a stationary autoregression, but is \[0.5, 0.6\]"),
        ({"ar": [0.5]}, "An autoregression needs ar_scale"),
        ({"ar": [], "ar_scale": 1.0}, "ar must hold at least one coefficient"),
        ({"ar_scale": 1.0}, "ar_scale is 1.0, but the model has no ar"),
        ({"regressors": -1}, "regressors must be a whole number, 0 or more, not -1"),
        ({"regressors": 2, "regressor_scale": [0.1]}, r"regressor_scale must be one number or 2, not \[0.1\]"),
        ({"regressor_scale": 0.1}, "regressor_scale is 0.1, but the model has no regressors"),
        ({"noise": 0.0}, "noise must be positive, but is 0.0"),
        ({"family": "gauss"}, "family must be one of normal, student, poisson, negbin, binary, not 'gauss'"),
        ({"family": "poisson", "noise": 1.0}, "noise is 1.0, but the family 'poisson' has no such parameter"),
        ({"df": 3.0}, "df is 3.0, but the family 'normal' has no such parameter"),
        ({"family": "student", "df": -1.0}, "df must be positive, but is -1.0"),
        ({"initial_scale": 0.0}, "initial_scale must be positive, but is 0.0"),
        ({"initial_scale": {"level": -1.0}}, r"initial_scale\['level'\] must be positive, but is -1.0"),
        ({"initial_scale": {"levels": 1.0}}, "initial_scale has the keys level, slope, .* not 'levels'"),
        ({"initial_level": float("inf")}, "initial_level must be a finite number, not inf"),
    ],
)
def test_bad_values_are_named_at_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        bs.structural(**settings)


def test_inputs_that_do_not_fit_are_named():
    model = bs.structural(regressors=2)
    with pytest.raises(ValueError, match="has 2 regressors: pass inputs of as many columns"):
        check_model(model)
    with pytest.raises(ValueError, match=r"inputs must have as many columns, but their shape is \(3,\)"):
        model.emission(jnp.zeros(3), jnp.zeros(3))
    assert check_model(bs.structural(), jnp.zeros(5))[:3] == (1, 1, True)  # inputs that nothing reads


def test_the_command_line_makes_it_from_plain_values():
    settings = {"level": 0.1, "seasonal": [4, 10.5], "harmonics": [0, 2], "ar": [0.5, -0.2], "ar_scale": 0.3}
    model, choice = find("structural", settings)
    assert model.state_names == bs.structural(**settings).state_names
    assert find(choice.name, choice.parameters, choice.identity)[1] == choice


def test_numpy_scalars_are_plain_numbers():
    """A level read from an array is a constant of the prior, not a parameter that is learned."""
    plain, scalar = (bs.structural(level=0.1, noise=0.5, initial_level=value) for value in (20.0, np.float64(20.0)))
    assert jax.tree.structure(plain) == jax.tree.structure(scalar)
