"""Maximum likelihood on all rows at once, of the log score of the guided filter."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to

import backstream as bs
from backstream.learning.parameters import ModelParameters
from backstream.models.structural.stationary import stationary


class Offline(NamedTuple):
    """The estimate in the unconstrained parameters, its covariance and the mean log score it reaches."""

    theta: np.ndarray
    covariance: np.ndarray
    log_score: float


@eqx.filter_jit
def mean_log_score(raw, rebuild, parameters, q, ys, inputs):
    """Of the rows given those before them, at one θ."""
    p = parameters.model(rebuild(raw))

    def step(state, row):
        state = q.update(p, state, *row)
        return state, q.log_score(state)

    u0 = jax.tree.map(lambda leaf: leaf[0], inputs)
    return jax.lax.scan(step, q.init(p, u0), (ys, inputs))[1].mean()


@eqx.filter_jit
def value_and_gradient(raw, rebuild, parameters, q, ys, inputs):
    """Forward derivatives: few parameters, many rows."""
    value, push = jax.linearize(lambda raw: mean_log_score(raw, rebuild, parameters, q, ys, inputs), raw)
    return value, jax.vmap(push)(jnp.eye(len(raw)))


def maximum_likelihood(start: bs.StateSpaceModel, q: Any, ys: np.ndarray, inputs: Any) -> Offline:
    """From `start`, best the truth."""
    parameters = ModelParameters(start)
    raw, rebuild = ravel_pytree(parameters.unconstrained())
    rebuild = jax.tree_util.Partial(rebuild)
    both = functools.partial(
        value_and_gradient, rebuild=rebuild, parameters=parameters, q=q, ys=jnp.asarray(ys), inputs=inputs
    )

    theta, covariance = newton(lambda raw: both(raw)[1], np.asarray(raw), len(ys))
    return Offline(theta, covariance, float(both(jnp.asarray(theta))[0]))


def newton(slope: Callable[[Any], Any], raw: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of a mean log score by Newton steps from a θ nearby, until they are below a hundredth of a standard
    error; and its covariance. `slope` is the gradient, from which the second derivatives are taken by differences."""
    hessian = np.stack(
        [np.asarray(slope(jnp.asarray(raw + h)) - slope(jnp.asarray(raw - h))) / 2e-3 for h in 1e-3 * np.eye(len(raw))]
    )
    covariance = np.linalg.inv(-(hessian + hessian.T) / 2) / rows
    for _ in range(10):
        step = rows * covariance @ np.asarray(slope(jnp.asarray(raw)))
        raw = raw + step
        if (np.abs(step) < 0.01 * np.sqrt(np.diag(covariance))).all():
            return raw, covariance
    raise ArithmeticError("Newton steps did not converge.")


def unobserved_components(name: str, ys: np.ndarray, inputs: Any) -> np.ndarray | None:
    """What statsmodels finds on the same rows, as the unconstrained parameters of `name`; None where it has no such
    model."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    kinds: dict[str, dict[str, Any]] = {
        "local level": {"level": "local level"},
        "local linear trend": {"level": "local linear trend"},
        "seasonal": {"level": "local level", "seasonal": 4},
        "AR(2) with regression": {"irregular": True, "autoregressive": 2, "exog": inputs},
    }
    if name not in kinds:
        return None
    found = UnobservedComponents(np.asarray(ys)[:, 0], **kinds[name]).fit(disp=False, maxiter=500)
    values = dict(zip(found.model.param_names, found.params, strict=True))
    order = ["sigma2.level", "sigma2.trend", "sigma2.seasonal", "sigma2.ar", "sigma2.irregular"]
    scales = [0.5 * np.log(max(values[key], 1e-12)) for key in order if key in values]
    if "ar.L1" not in values:
        return np.array(scales)
    ar = biject_to(stationary).inv(jnp.array([values["ar.L1"], values["ar.L2"]]))
    return np.concatenate([np.asarray(ar), scales])
