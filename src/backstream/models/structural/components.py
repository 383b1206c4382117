"""Components of a structural model: how the states of each one move, start and enter the signal.

A `scale` of None is a noise that the model does not have: the standard deviation is 0 and no parameter.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, ArrayLike, Float

from backstream.models.structural import stationary

Scalar = Float[Array, ""]
Number = float | int | Scalar


class Component(NamedTuple):
    """X_t = A X_{t-1} + N(0, diag(scale²)), of which the signal has loading · X_t."""

    name: str
    kind: str
    """What it is, in words."""
    parameters: Mapping[str, Float[Array, "..."]]
    """What can be learned, by the names of the model's fields."""
    states: tuple[str, ...]
    A: Float[ArrayLike, "n n"]
    scale: Float[ArrayLike, " n"]
    """Standard deviations, 0 for a state without a noise of its own."""
    loading: Float[ArrayLike, " n"] | None
    """None where the inputs are the loading."""
    prior_mean: Float[ArrayLike, " n"]
    prior_scale: Float[ArrayLike, " n"] | Float[ArrayLike, "n n"]
    """Standard deviations, or a lower-triangular factor of the covariance."""


def level(scale: Scalar | None, mean0: Number, prior_scale: Number) -> Component:
    """A constant, or a random walk."""
    return Component(
        name="level",
        kind="constant" if scale is None else "random walk",
        parameters=_given(level_scale=scale),
        states=("level",),
        A=np.eye(1),
        scale=_stacked([scale]),
        loading=np.ones(1),
        prior_mean=jnp.array([mean0]),
        prior_scale=jnp.array([prior_scale]),
    )


def trend(
    level_scale: Scalar | None,
    slope_scale: Scalar | None,
    mean0: Number,
    prior_scale: Number,
    slope_prior_scale: Number,
) -> Component:
    """A level that a slope is added to at each step."""
    return Component(
        name="level",
        kind="straight line" if level_scale is None and slope_scale is None else "local linear trend",
        parameters=_given(level_scale=level_scale, trend_scale=slope_scale),
        states=("level", "slope"),
        A=np.array([[1.0, 1.0], [0.0, 1.0]]),
        scale=_stacked([level_scale, slope_scale]),
        loading=_first(2),
        prior_mean=jnp.array([mean0, 0.0]),
        prior_scale=jnp.array([prior_scale, slope_prior_scale]),
    )


def dummies(period: int, scale: Scalar | None, prior_scale: Number) -> Component:
    """One effect for each season; the effects of a whole period add up to the noise."""
    name, n = f"seasonal{period}", period - 1
    A = np.eye(n, k=-1)
    A[0] = -1.0
    return Component(
        name=name,
        kind="fixed dummies" if scale is None else "dummies",
        parameters=_given(seasonal_scale=scale),
        states=_lagged(name, n),
        A=A,
        scale=_stacked([scale] + [None] * (n - 1)),
        loading=_first(n),
        prior_mean=np.zeros(n),
        prior_scale=jnp.full(n, prior_scale),
    )


def harmonics(period: float, count: int, scale: Scalar | None, prior_scale: Number) -> Component:
    """A sum of `count` waves of periods period, period/2, …. A wave of period 2 is one state, any other is two."""
    name = f"seasonal{period:g}"
    blocks, loading, states = [], [], []
    for k in range(1, count + 1):
        alternates = 2 * k == period
        blocks.append(-jnp.eye(1) if alternates else _rotation(2 * np.pi * k / period))
        loading += [1.0] if alternates else [1.0, 0.0]
        states += [f"{name}_cos{k}"] if alternates else [f"{name}_cos{k}", f"{name}_sin{k}"]
    n = len(states)
    return Component(
        name=name,
        kind=f"{count} {'fixed ' if scale is None else ''}harmonic{'s' if count > 1 else ''}",
        parameters=_given(seasonal_scale=scale),
        states=tuple(states),
        A=block_diag(*blocks),
        scale=_stacked([scale] * n),
        loading=np.array(loading),
        prior_mean=np.zeros(n),
        prior_scale=jnp.full(n, prior_scale),
    )


def cycle(name: str, period: Scalar, damping: Scalar, scale: Scalar) -> Component:
    """A wave of wandering height and phase, with its stationary law as prior."""
    spread = scale / jnp.sqrt(1 - damping**2)
    return Component(
        name=name,
        kind="damped wave",
        parameters={"cycle_period": period, "cycle_damping": damping, "cycle_scale": scale},
        states=(name, f"{name}_conjugate"),
        A=damping * _rotation(2 * jnp.pi / period),
        scale=_stacked([scale, scale]),
        loading=_first(2),
        prior_mean=np.zeros(2),
        prior_scale=jnp.stack([spread, spread]),
    )


def autoregression(phi: Float[Array, " p"], scale: Scalar) -> Component:
    """AR(p): the last p values are the state, with their stationary law as prior."""
    p = len(phi)
    covariance = scale**2 * stationary.covariance(phi)
    return Component(
        name="ar",
        kind=f"order {p}",
        parameters={"ar": phi, "ar_scale": scale},
        states=_lagged("ar", p),
        A=jnp.concatenate([phi[None], jnp.eye(p, dtype=phi.dtype)[:-1]]),
        scale=_stacked([scale] + [None] * (p - 1)),
        loading=_first(p),
        prior_mean=np.zeros(p),
        prior_scale=jnp.sqrt(covariance[0]) if p == 1 else jnp.linalg.cholesky(covariance),
    )


def regression(scales: Sequence[Scalar | None], prior_scale: Number) -> Component:
    """The coefficients of the inputs: constants, or random walks."""
    n = len(scales)
    moving = [scale for scale in scales if scale is not None]
    return Component(
        name="regressors",
        kind=f"{n} coefficient{'s' if n > 1 else ''}, {n - len(moving)} constant",
        parameters={"regressor_scale": jnp.stack(moving)} if moving else {},
        states=tuple(f"regressor{k}" for k in range(n)),
        A=np.eye(n),
        scale=_stacked(scales),
        loading=None,
        prior_mean=np.zeros(n),
        prior_scale=jnp.full(n, prior_scale),
    )


def _given(**parameters: Scalar | None) -> dict[str, Float[Array, "..."]]:
    return {name: value for name, value in parameters.items() if value is not None}


def _stacked(scales: Sequence[Scalar | None]) -> Float[Array, " n"]:
    return jnp.stack([jnp.zeros(()) if scale is None else scale for scale in scales])


def _first(n: int) -> Float[np.ndarray, " n"]:
    return np.eye(n)[0]


def _lagged(name: str, n: int) -> tuple[str, ...]:
    return (name, *(f"{name}_lag{k}" for k in range(1, n)))


def _rotation(angle: Float[ArrayLike, ""]) -> Float[Array, "2 2"]:
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([[cos, sin], [-sin, cos]])
