"""Structural models: Kalman filter, smoother and likelihood are those of statsmodels' UnobservedComponents."""

import jax
import numpy as np
import pytest
from statsmodels.tsa.statespace.structural import UnobservedComponents

import backstream as bs
from kalman_reference import Linear, kalman

AGAINST = {
    "local level": (
        {"level": 0.3, "noise": 0.7},
        {"level": "llevel"},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09},
    ),
    "local linear trend": (
        {"level": 0.3, "trend": 0.05, "noise": 0.7},
        {"level": "lltrend"},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09, "sigma2.trend": 0.0025},
    ),
    "smooth trend": (
        {"trend": 0.05, "noise": 0.7},
        {"level": "strend"},
        {"sigma2.irregular": 0.49, "sigma2.trend": 0.0025},
    ),
    "level and seasonal dummies": (
        {"level": 0.3, "seasonal": 7, "seasonal_scale": 0.2, "noise": 0.7},
        {"level": "llevel", "seasonal": 7},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09, "sigma2.seasonal": 0.04},
    ),
    "fixed seasonal dummies": (
        {"level": 0.3, "seasonal": 4, "noise": 0.7},
        {"level": "llevel", "seasonal": 4, "stochastic_seasonal": False},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09},
    ),
    "trigonometric seasonal": (
        {"level": 0.3, "seasonal": 12, "harmonics": 3, "seasonal_scale": 0.2, "noise": 0.7},
        {"level": "llevel", "freq_seasonal": [{"period": 12, "harmonics": 3}]},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09, "sigma2.freq_seasonal_12(3)": 0.04},
    ),
    "every harmonic": (  # statsmodels keeps a second state of the last wave, which nothing reads
        {"level": 0.3, "seasonal": 6, "harmonics": 3, "seasonal_scale": 0.2, "noise": 0.7},
        {"level": "llevel", "freq_seasonal": [{"period": 6, "harmonics": 3}]},
        {"sigma2.irregular": 0.49, "sigma2.level": 0.09, "sigma2.freq_seasonal_6(3)": 0.04},
    ),
    "cycle": (
        {"level": 0.0, "cycle": 9.0, "cycle_damping": 0.9, "cycle_scale": 0.5, "noise": 0.7},
        {"level": "dconstant", "cycle": True, "stochastic_cycle": True, "damped_cycle": True},
        {
            "sigma2.irregular": 0.49,
            "sigma2.cycle": 0.25,
            "frequency.cycle": 2 * np.pi / 9,
            "damping.cycle": 0.9,
        },
    ),
    "AR(2) with regression": (
        {"level": None, "ar": [0.5, -0.3], "ar_scale": 0.8, "regressors": 2, "noise": 0.7},
        {"irregular": True, "autoregressive": 2, "exog": True, "mle_regression": False},
        {"sigma2.irregular": 0.49, "sigma2.ar": 0.64, "ar.L1": 0.5, "ar.L2": -0.3},
    ),
}


@pytest.mark.parametrize("name", AGAINST)
def test_filter_smoother_and_likelihood_are_those_of_statsmodels(name):
    ours, theirs, parameters = AGAINST[name]
    T = 60
    model = bs.structural(**ours, initial_level=1.5, initial_scale=10.0)
    us = jax.random.normal(jax.random.key(1), (T, 2))
    ys = np.asarray(model.simulate(T, us, key=jax.random.key(2))[1])
    p = Linear.read(model, us)
    found, d = kalman(p, ys), len(p.mean0)

    exog = {"exog": np.asarray(us)} if theirs.get("exog") else {}
    reference = UnobservedComponents(ys[:, 0], **(theirs | exog))
    spare = reference.k_states - d
    known = np.eye(reference.k_states)
    known[:d, :d] = p.Q0
    reference.ssm.initialize_known(np.append(p.mean0, np.zeros(spare)), known)
    reference.ssm.loglikelihood_burn = 0
    reference.ssm.tolerance = 0  # it would take the filter's covariances as constant once they hardly change
    result = reference.smooth([parameters[parameter] for parameter in reference.param_names], transformed=True)

    near = {"rtol": 1e-8, "atol": 1e-8}
    np.testing.assert_allclose(found.filtered, result.filtered_state[:d].T, **near)
    np.testing.assert_allclose(found.filtered_cov, np.moveaxis(result.filtered_state_cov[:d, :d], -1, 0), **near)
    np.testing.assert_allclose(found.smoothed, result.smoothed_state[:d].T, **near)
    np.testing.assert_allclose(found.smoothed_cov, np.moveaxis(result.smoothed_state_cov[:d, :d], -1, 0), **near)
    np.testing.assert_allclose(found.log_likelihood, result.llf, **near)
    assert len(parameters) == len(reference.param_names) and spare == (name == "every harmonic")
