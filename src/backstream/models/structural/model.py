"""The structural time-series model: a signal that is a sum of components, and the law of what is seen of it."""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.linear_gaussian import Matrices
from backstream.models.matrices import covariance_of, dense, known, normal
from backstream.models.structural import components as make
from backstream.models.structural.components import Component, Number, Scalar
from backstream.models.structural.stationary import stationary

Vector = Float[Array, " n"]


class Season(NamedTuple):
    """A seasonal component: dummies where there are no harmonics."""

    period: float
    harmonics: int
    moves: bool


class Shape(NamedTuple):
    """Which components there are. `moves` is whether a state has a noise, with a scale that can be learned."""

    family: str
    level_moves: tuple[bool, ...]
    slope_moves: tuple[bool, ...]
    seasons: tuple[Season, ...]
    coefficients_move: tuple[bool, ...]


class Family(NamedTuple):
    """The law of an observation given the signal."""

    law: Callable[[Vector, "Structural"], dist.Distribution]
    parameters: tuple[str, ...]
    signal: str
    """What the signal is."""


FAMILIES = {
    "normal": Family(lambda signal, p: dist.Normal(signal, p.noise_scale), ("noise_scale",), "mean"),
    "student": Family(lambda signal, p: dist.StudentT(p.df, signal, p.noise_scale), ("noise_scale", "df"), "location"),
    "poisson": Family(lambda signal, p: dist.Poisson(jnp.exp(signal)), (), "log rate"),
    "negbin": Family(
        lambda signal, p: dist.NegativeBinomial2(jnp.exp(signal), 1 / p.dispersion), ("dispersion",), "log mean"
    ),
    "binary": Family(lambda signal, p: dist.Bernoulli(logits=signal), (), "log odds"),
}


class Structural(StateSpaceModel):
    """One observed column whose signal is a sum of components: what `structural` makes.

    Each field that ends in `_scale` holds standard deviations, one for each noise of its kind, and is empty where the
    model has no such noise. These, `ar`, `cycle_period`, `cycle_damping`, `df` and `dispersion` are θ. All noises are
    independent: the transition is normal, with a standard deviation of 0 for a state without a noise of its own.

    >>> from backstream.models import structural
    >>> structural(level=0.1, seasonal=4, noise=0.5)
    Structural: 4 states, normal with the signal as mean, noise_scale 0.5
      level: random walk, level_scale 0.1
      seasonal4: fixed dummies
    """

    constraints: ClassVar = {
        **dict.fromkeys(
            (
                *("level_scale", "trend_scale", "seasonal_scale", "cycle_scale", "ar_scale", "regressor_scale"),
                *("noise_scale", "df", "dispersion"),
            ),
            constraints.positive,
        ),
        "cycle_period": constraints.greater_than(2.0),
        "cycle_damping": constraints.unit_interval,
        "ar": stationary,
    }

    shape: Shape = eqx.field(static=True)
    level_scale: Float[Array, " levels"]
    trend_scale: Float[Array, " slopes"]
    seasonal_scale: Float[Array, " seasonals"]
    cycle_period: Float[Array, " cycles"]
    cycle_damping: Float[Array, " cycles"]
    cycle_scale: Float[Array, " cycles"]
    ar: Float[Array, " p"]
    ar_scale: Float[Array, " ars"]
    regressor_scale: Float[Array, " coefficients"]
    noise_scale: Float[Array, " noises"]
    df: Float[Array, " dfs"]
    dispersion: Float[Array, " dispersions"]
    initial_level: Number
    initial_scale: dict[str, Number]
    """Standard deviations of the prior, by kind: level, slope, seasonal, regressors."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The parts of the signal, in the order of their states."""
        parts = [*self._level(), *self._seasonals(), *self._cycles()]
        if len(self.ar):
            parts.append(make.autoregression(self.ar, self.ar_scale[0]))
        if self.shape.coefficients_move:
            scales = _spread(self.shape.coefficients_move, self.regressor_scale)
            parts.append(make.regression(scales, self.initial_scale["regressors"]))
        return tuple(parts)

    def _level(self) -> list[Component]:
        level = _spread(self.shape.level_moves, self.level_scale)
        slope = _spread(self.shape.slope_moves, self.trend_scale)
        prior = self.initial_level, self.initial_scale["level"]
        if slope:
            return [make.trend(level[0], slope[0], *prior, self.initial_scale["slope"])]
        return [make.level(scale, *prior) for scale in level]

    def _seasonals(self) -> list[Component]:
        seasons = self.shape.seasons
        scales = _spread([season.moves for season in seasons], self.seasonal_scale)
        prior_scale = self.initial_scale["seasonal"]
        return [
            make.harmonics(season.period, season.harmonics, scale, prior_scale)
            if season.harmonics
            else make.dummies(int(season.period), scale, prior_scale)
            for season, scale in zip(seasons, scales, strict=True)
        ]

    def _cycles(self) -> list[Component]:
        values = list(zip(self.cycle_period, self.cycle_damping, self.cycle_scale, strict=True))
        names = ["cycle"] if len(values) == 1 else [f"cycle{k}" for k in range(len(values))]
        return [make.cycle(name, *value) for name, value in zip(names, values, strict=True)]

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the states, in their order.

        >>> from backstream.models import structural
        >>> structural(level=0.1, trend=0.01, ar=[0.5, -0.2], ar_scale=0.3).state_names
        ('level', 'slope', 'ar', 'ar_lag1')
        """
        return tuple(name for part in self.components for name in part.states)

    @property
    def _dtype(self) -> jnp.dtype:
        return jnp.result_type(*(getattr(self, name) for name in self.constraints))

    def _vector(self, values: Sequence) -> Vector:
        return jnp.concatenate([jnp.asarray(value, self._dtype) for value in values])

    def _matrix(self, values: Sequence) -> Float[Array, "n n"]:
        return block_diag(*(jnp.asarray(value, self._dtype) for value in values))

    def prior(self, u: Inputs = None):
        mean = self._vector([part.prior_mean for part in self.components])
        scales = [jnp.asarray(part.prior_scale) for part in self.components]
        if all(scale.ndim == 1 for scale in scales):
            return normal(mean, self._vector(scales))
        return normal(mean, self._matrix([dense(scale) for scale in scales]))

    def transition(self, x, u: Inputs = None):
        mean = self._matrix([part.A for part in self.components]) @ x
        scale = self._vector([part.scale for part in self.components])
        return dist.Normal(mean, scale, validate_args=False).to_event(1)  # numpyro would refuse a scale of 0

    def emission(self, x, u: Inputs = None):
        signal = self._loading(u) @ x
        return FAMILIES[self.shape.family].law(signal[None], self).to_event(1)

    def _loading(self, u: Inputs) -> Vector:
        """B, of which the inputs are a part where there are regressors."""
        loadings = [self._inputs(u) if part.loading is None else part.loading for part in self.components]
        return self._vector(loadings)

    def _inputs(self, u: Inputs) -> Float[Array, "*t k"]:
        wanted = len(self.shape.coefficients_move)
        if u is None:
            raise ValueError(f"The model has {_counted(wanted, 'regressor')}: pass inputs of as many columns.")
        u = jnp.asarray(u, self._dtype)
        if u.shape[-1:] != (wanted,):
            raise ValueError(
                f"The model has {_counted(wanted, 'regressor')}: inputs must have as many columns, "
                f"but their shape is {u.shape}."
            )
        return u

    def decompose(self, xs: Float[Array, "*t d"], us: Inputs = None) -> dict[str, Float[Array, "*t"]]:
        """What each component adds to the signal, by its name, for states with any leading axes.

        >>> from backstream.models import structural
        >>> model = structural(level=0.1, trend=0.01, seasonal=4)
        >>> {name: float(value) for name, value in model.decompose(jnp.array([3.0, 1.0, -0.5, 0.2, 0.1])).items()}
        {'level': 3.0, 'seasonal4': -0.5}
        """
        if xs.shape[-1:] != (len(self.state_names),):
            raise ValueError(
                f"The model has {_counted(len(self.state_names), 'state')}: the last axis of xs must be as long, "
                f"but its shape is {xs.shape}."
            )
        parts, start = {}, 0
        for part in self.components:
            end = start + len(part.states)
            loading = self._inputs(us) if part.loading is None else jnp.asarray(part.loading, self._dtype)
            parts[part.name] = (xs[..., start:end] * loading).sum(-1)
            start = end
        return parts

    def dense(self, u: Inputs = None) -> Matrices:
        """The model as dense matrices, with the inputs `u`. Raises ValueError unless the family is "normal"."""
        if self.shape.family != "normal":
            raise ValueError(f"A model of the family {self.shape.family!r} has no emission matrices.")
        prior_scales = [dense(jnp.asarray(part.prior_scale)) for part in self.components]
        return Matrices(
            mean0=self._vector([part.prior_mean for part in self.components]),
            Q0=covariance_of(self._matrix(prior_scales)),
            A=self._matrix([part.A for part in self.components]),
            B=self._loading(u)[None],
            Q=covariance_of(self._vector([part.scale for part in self.components])),
            R=covariance_of(self.noise_scale),
        )

    def __repr__(self) -> str:
        theta = [getattr(self, name) for name in self.constraints]
        if not all(isinstance(leaf, jax.Array) and leaf.ndim == 1 for leaf in theta):
            return f"Structural({self.shape})"  # a tree of the same structure: a filter, or a batch of models
        family = FAMILIES[self.shape.family]
        numbers = [f"{name} {_shown(getattr(self, name)[0])}" for name in family.parameters]
        head = [
            _counted(len(self.state_names), "state"),
            f"{self.shape.family} with the signal as {family.signal}",
            *numbers,
        ]
        lines = [f"Structural: {', '.join(head)}"]
        for part in self.components:
            numbers = [f"{name} {_shown(value)}" for name, value in part.parameters.items()]
            lines.append(f"  {part.name}: {', '.join([part.kind, *numbers])}")
        return "\n".join(lines)


def _spread(moves: Sequence[bool], scales: Vector) -> list[Scalar | None]:
    """The scale of each noise, None for one that the model does not have."""
    return [scales[sum(moves[:k])] if moving else None for k, moving in enumerate(moves)]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shown(value: Float[Array, "..."]) -> str:
    if not known(value):
        return "traced"
    return f"{value:.4g}" if value.ndim == 0 else f"[{', '.join(_shown(entry) for entry in value)}]"
