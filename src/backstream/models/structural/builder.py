"""`structural`: from plain numbers to a structural model, with errors that name what is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from backstream.models.matrices import known
from backstream.models.structural.model import FAMILIES, Season, Shape, Structural
from backstream.models.structural.stationary import partial_autocorrelations

Numbers = ArrayLike | Sequence[ArrayLike]

PARAMETERS = {"noise_scale": 1.0, "df": 4.0, "dispersion": 1.0}
"""The parameters of the families, where they are not given."""

WIDE, WIDE_LOG = 100.0, 5.0
"""The prior's standard deviation: in the largest scale that is given, and for a log rate or log odds."""

SLOPE = 0.1
"""That of the slope, against that of the level."""


def structural(
    *,
    level: ArrayLike | None = 0.0,
    trend: ArrayLike | None = None,
    seasonal: Numbers | None = None,
    seasonal_scale: Numbers | None = None,
    harmonics: Numbers | None = None,
    cycle: Numbers | None = None,
    cycle_damping: Numbers | None = None,
    cycle_scale: Numbers | None = None,
    ar: Numbers | None = None,
    ar_scale: ArrayLike | None = None,
    regressors: int = 0,
    regressor_scale: Numbers | None = None,
    family: str = "normal",
    noise: ArrayLike | None = None,
    df: ArrayLike | None = None,
    dispersion: ArrayLike | None = None,
    initial_level: float | int = 0.0,
    initial_scale: float | int | Mapping[str, float] | None = None,
) -> Structural:
    """A structural time-series model: one observed column whose signal is a sum of components.

    A scale is the standard deviation of a noise at each step, in the units of the signal. A scale of 0 is no noise
    (a constant level, a seasonal pattern that repeats itself) and is not learned; any other is a parameter.

    >>> model = structural(level=0.1, trend=0.01, seasonal=12, seasonal_scale=0.05, noise=0.5)
    >>> model.state_names[:4]
    ('level', 'slope', 'seasonal12', 'seasonal12_lag1')

    Args:
        level: Scale of the level, a random walk. None for no level.
        trend: Scale of the slope that is added to the level at each step. `level=0, trend=0.01` is a smooth trend.
        seasonal: Period of a seasonal pattern, or several periods.
        seasonal_scale: Scale of its changes: 0 unless given. One for all periods, or one for each.
        harmonics: Number of waves that make up the pattern, of periods `seasonal`, `seasonal / 2` and so on. The
            period need not be a whole number then. None or 0 for dummies: one effect for each season.
        cycle: Mean period of a stochastic cycle, or several.
        cycle_damping: Factor by which a cycle decays at each step, between 0 and 1: 0.95 unless given.
        cycle_scale: Scale of its noise.
        ar: Coefficients of a stationary autoregression, that of lag 1 first.
        ar_scale: Scale of its noise.
        regressors: Number of inputs that enter the signal, each with a coefficient.
        regressor_scale: Scale of the coefficients, random walks: 0, constants, unless given. One for all, or one for
            each.
        family: Law of an observation: "normal" or "student" around the signal, "poisson" or "negbin" (negative
            binomial) with the signal as log mean, "binary" with the signal as log odds of 1.
        noise: Scale of "normal" and "student": 1 unless given.
        df: Degrees of freedom of "student": 4 unless given.
        dispersion: Of "negbin", whose variance is mean + dispersion · mean²: 1 unless given.
        initial_level: Prior mean of the level.
        initial_scale: Prior standard deviation of the level, of each seasonal state and of each coefficient, and a
            tenth of it for the slope; or a mapping with any of the keys level, slope, seasonal and regressors.
            Unless given, 100 times the largest scale of the model; for counts and binary data, 5. Cycles and
            autoregressions start from their stationary law. None of these is learned.

    Raises:
        ValueError: A value makes no sense, or belongs to a component that the model does not have.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}.")
    _require_owner("trend", trend, "level", level)
    _require_owner("regressor_scale", regressor_scale, "regressors", regressors or None)
    levels = [] if level is None else _scales("level", level, 1)
    slopes = [] if trend is None else _scales("trend", trend, 1)
    seasons, season_scales = _seasons(seasonal, harmonics, seasonal_scale)
    wandering = 0.0 if regressor_scale is None else regressor_scale
    coefficients = _scales("regressor_scale", wandering, _whole("regressors", regressors))
    shape = Shape(family, _moves(levels), _moves(slopes), seasons, _moves(coefficients))
    if not (levels or seasons or coefficients) and cycle is None and ar is None:
        raise ValueError("The model has no component: give a level, seasonal, cycle, ar or regressors.")
    theta = {
        "level_scale": _learned(levels),
        "trend_scale": _learned(slopes),
        "seasonal_scale": _learned(season_scales),
        "regressor_scale": _learned(coefficients),
        **_cycles(cycle, cycle_damping, cycle_scale),
        **_autoregression(ar, ar_scale),
        **_family(family, {"noise_scale": noise, "df": df, "dispersion": dispersion}),
    }
    dtype = jnp.result_type(float, *(value for values in theta.values() for value in values))
    arrays = {name: jnp.asarray(values, dtype).reshape(len(values)) for name, values in theta.items()}
    return Structural(
        shape=shape,
        **arrays,
        initial_level=_finite("initial_level", initial_level),
        initial_scale=_initial_scale(initial_scale, family, arrays),
    )


# ---- components ------------------------------------------------------------------------------------------------------
def _seasons(
    seasonal: Numbers | None, harmonics: Numbers | None, scale: Numbers | None
) -> tuple[tuple[Season, ...], list[Any]]:
    """What the seasonal components are, and their scales."""
    _require_owner("harmonics", harmonics, "seasonal", seasonal)
    _require_owner("seasonal_scale", scale, "seasonal", seasonal)
    if seasonal is None:
        return (), []
    periods = [float(period) for period in _entries("seasonal", seasonal)]
    if len(set(periods)) < len(periods):
        raise ValueError(f"seasonal must hold different periods, but is {periods}.")
    counts = _entries("harmonics", 0 if harmonics is None else harmonics, len(periods))
    scales = _scales("seasonal_scale", 0.0 if scale is None else scale, len(periods))
    seasons = []
    for period, count, moves in zip(periods, counts, _moves(scales), strict=True):
        count = _whole("harmonics", count)
        if count == 0 and not (period >= 2 and period.is_integer()):
            raise ValueError(f"seasonal must be a whole number from 2 on where there are no harmonics, not {period}.")
        if count > 0 and 2 * count > period:
            raise ValueError(f"harmonics must be at most half of the period {period}, not {count}.")
        seasons.append(Season(period, count, moves))
    return tuple(seasons), scales


def _cycles(cycle: Numbers | None, damping: Numbers | None, scale: Numbers | None) -> dict[str, list[Any]]:
    _require_owner("cycle_damping", damping, "cycle", cycle)
    _require_owner("cycle_scale", scale, "cycle", cycle)
    if cycle is None:
        return {"cycle_period": [], "cycle_damping": [], "cycle_scale": []}
    periods = _entries("cycle", cycle)
    dampings = _entries("cycle_damping", 0.95 if damping is None else damping, len(periods))
    if scale is None:
        raise ValueError("A cycle needs cycle_scale, the standard deviation of its noise.")
    for period in periods:
        if known(period) and not period > 2:
            raise ValueError(f"cycle must be a period of more than 2 steps, not {period}.")
    for value in dampings:
        if known(value) and not 0 < value < 1:
            raise ValueError(f"cycle_damping must lie strictly between 0 and 1, but is {value}.")
    scales = [_positive("cycle_scale", value) for value in _entries("cycle_scale", scale, len(periods))]
    return {"cycle_period": periods, "cycle_damping": dampings, "cycle_scale": scales}


def _autoregression(ar: Numbers | None, scale: ArrayLike | None) -> dict[str, list[Any]]:
    _require_owner("ar_scale", scale, "ar", ar)
    if ar is None:
        return {"ar": [], "ar_scale": []}
    phi = _entries("ar", ar)
    if not phi:
        raise ValueError("ar must hold at least one coefficient.")
    if scale is None:
        raise ValueError("An autoregression needs ar_scale, the standard deviation of its noise.")
    partial = partial_autocorrelations(jnp.asarray(phi, float))
    if known(partial) and not (abs(partial) < 1).all():
        raise ValueError(f"ar must be the coefficients of a stationary autoregression, but is {_plain(phi)}.")
    return {"ar": phi, "ar_scale": [_positive("ar_scale", scale)]}


def _family(family: str, given: dict[str, ArrayLike | None]) -> dict[str, list[Any]]:
    wanted = FAMILIES[family].parameters
    theta: dict[str, list[Any]] = {}
    for field, value in given.items():
        name = field.removesuffix("_scale")
        if value is not None and field not in wanted:
            raise ValueError(f"{name} is {value}, but the family {family!r} has no such parameter.")
        default = PARAMETERS[field] if value is None else value
        theta[field] = [_positive(name, default)] if field in wanted else []
    return theta


def _initial_scale(
    given: float | int | Mapping[str, float] | None, family: str, arrays: dict[str, Float[Array, " n"]]
) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        base = _positive("initial_scale", given)
    elif "noise_scale" in FAMILIES[family].parameters:
        largest = jnp.concatenate([values for name, values in arrays.items() if name.endswith("_scale")]).max()
        base = WIDE * (float(largest) if known(largest) else largest)
    else:
        base = WIDE_LOG
    scales = {"level": base, "slope": SLOPE * base, "seasonal": base, "regressors": base}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name not in scales:
            raise ValueError(f"initial_scale has the keys {', '.join(scales)}, not {name!r}.")
        scales[name] = _positive(f"initial_scale[{name!r}]", value)
    return scales


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _entries(name: str, value: Any, count: int | None = None) -> list[Any]:
    """The numbers of a list or a vector, or a single number, repeated `count` times if that is given."""
    if isinstance(value, list | tuple) or np.ndim(value) == 1:
        entries = [_finite(name, entry) for entry in value]
        if count is not None and len(entries) != count:
            wanted = "one number" if count == 1 else f"one number or {count}"
            raise ValueError(f"{name} must be {wanted}, not {_plain(entries)}.")
        return entries
    return [_finite(name, value)] * (1 if count is None else count)


def _scales(name: str, value: Numbers, count: int) -> list[Any]:
    """Standard deviations, None in place of 0."""
    scales = _entries(name, value, count)
    for scale in scales:
        if known(scale) and not scale >= 0:
            raise ValueError(f"{name} must be a standard deviation, 0 or more, but is {scale}.")
    return [None if known(scale) and scale == 0 else scale for scale in scales]


def _moves(scales: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(scale is not None for scale in scales)


def _learned(scales: Sequence[Any]) -> list[Any]:
    return [scale for scale in scales if scale is not None]


def _finite(name: str, value: Any) -> Any:
    if known(value):
        array = np.asarray(value)
        if array.ndim > 0 or array.dtype.kind not in "iuf" or not np.isfinite(array):
            raise ValueError(f"{name} must be a finite number, not {array.tolist()!r}.")
    return value.item() if isinstance(value, np.generic) else value  # a NumPy scalar would count as a parameter


def _positive(name: str, value: Any) -> Any:
    if known(_finite(name, value)) and not value > 0:
        raise ValueError(f"{name} must be positive, but is {value}.")
    return value


def _whole(name: str, value: Any) -> int:
    if not (float(_finite(name, value)).is_integer() and value >= 0):
        raise ValueError(f"{name} must be a whole number, 0 or more, not {value}.")
    return int(value)


def _plain(values: Sequence[Any]) -> list[Any]:
    return [np.asarray(value).tolist() for value in values]


def _require_owner(name: str, value: Any, owner: str, owner_value: Any) -> None:
    if value is not None and owner_value is None:
        raise ValueError(f"{name} is {value}, but the model has no {owner}.")
