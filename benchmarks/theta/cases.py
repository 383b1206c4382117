"""The models of the study, with the true parameters and the starts that are tried."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

import backstream as bs

Scalar = Float[Array, ""]


def _number(value) -> Array:
    return jnp.asarray(value, jnp.result_type(float))


class Oscillator(bs.StateSpaceModel):
    """A damped rotation of two states, of which one is seen."""

    constraints: ClassVar = {
        "frequency": constraints.interval(0.0, 3.2),
        "damping": constraints.unit_interval,
        "sigma": constraints.positive,
        "noise": constraints.positive,
    }
    frequency: Scalar = eqx.field(converter=_number)
    damping: Scalar = eqx.field(converter=_number)
    sigma: Scalar = eqx.field(converter=_number)
    noise: Scalar = eqx.field(converter=_number)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        cos, sin = jnp.cos(self.frequency), jnp.sin(self.frequency)
        return dist.Normal(self.damping * (jnp.array([[cos, sin], [-sin, cos]]) @ x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x[:1], self.noise).to_event(1)


class Counts(bs.StateSpaceModel):
    """Counts whose log mean is a stationary autoregression."""

    constraints: ClassVar = {"phi": constraints.interval(-1.0, 1.0), "sigma": constraints.positive}
    mu: Scalar = eqx.field(converter=_number)
    phi: Scalar = eqx.field(converter=_number)
    sigma: Scalar = eqx.field(converter=_number)

    def prior(self, u=None):
        return dist.Normal(self.mu[None], self.sigma / jnp.sqrt(1 - self.phi**2)).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.mu + self.phi * (x - self.mu), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Poisson(jnp.exp(x)).to_event(1)


class OverdispersedCounts(Counts):
    """Negative-binomial counts: variance mean + dispersion · mean²."""

    constraints: ClassVar = {**Counts.constraints, "dispersion": constraints.positive}
    dispersion: Scalar = eqx.field(converter=_number)

    def emission(self, x, u=None):
        return dist.NegativeBinomial2(jnp.exp(x), 1 / self.dispersion).to_event(1)


class Pendulum(bs.StateSpaceModel):
    """Angle and speed over steps of 0.05; the sine of the angle is seen."""

    constraints: ClassVar = dict.fromkeys(("length", "damping", "sigma", "noise"), constraints.positive)
    length: Scalar = eqx.field(converter=_number)
    damping: Scalar = eqx.field(converter=_number)
    sigma: Scalar = eqx.field(converter=_number)
    noise: Scalar = eqx.field(converter=_number)

    def prior(self, u=None):
        return dist.Normal(jnp.array([0.5, 0.0]), 0.3).to_event(1)

    def transition(self, x, u=None):
        dt, (angle, speed) = 0.05, x
        push = -9.81 / self.length * jnp.sin(angle) - self.damping * speed
        mean = jnp.array([angle + dt * speed, speed + dt * push])
        return dist.Normal(mean, self.sigma * jnp.array([0.1, 1.0])).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(jnp.sin(x[:1]), self.noise).to_event(1)


class Case(NamedTuple):
    """`starts` has a model for each start that is tried. `most` is the largest loss allowed, nats per row; the state
    stays `between` two numbers, where there is only one and its likelihood is computed on a grid."""

    truth: Callable[[], bs.StateSpaceModel]
    starts: dict[str, Callable[[], bs.StateSpaceModel]]
    most: float = 0.001
    regressors: int = 0
    between: tuple[float, float] | None = None


def volatility(mu: float, phi: float, sigma: float) -> Callable[[], bs.StateSpaceModel]:
    """Log variances that are a stationary autoregression."""
    return lambda: bs.StochasticVolatility(mu=jnp.array([mu]), phi=jnp.array([phi]), sigma=jnp.array([sigma]))


CASES = {
    "oscillator": Case(
        lambda: Oscillator(0.3, 0.98, 0.2, 0.5),
        {"near": lambda: Oscillator(0.35, 0.95, 0.3, 0.4), "far": lambda: Oscillator(0.6, 0.8, 1.0, 1.5)},
    ),
    "local level": Case(
        lambda: bs.structural(level=0.3, noise=1.0),
        {
            "near": lambda: bs.structural(level=0.5, noise=0.8),
            "far": lambda: bs.structural(level=3.0, noise=0.1, initial_scale=30.0),
        },
    ),
    "local linear trend": Case(
        lambda: bs.structural(level=0.3, trend=0.05, noise=1.0),
        {
            "near": lambda: bs.structural(level=0.4, trend=0.08, noise=0.8, initial_scale=100.0),
            "far": lambda: bs.structural(level=1.0, trend=0.5, noise=0.3, initial_scale=100.0),
        },
    ),
    "AR(2) with regression": Case(
        lambda: bs.structural(level=None, ar=[0.5, 0.3], ar_scale=0.5, regressors=1, noise=0.7, initial_scale=10.0),
        {
            "near": lambda: bs.structural(
                level=None, ar=[0.4, 0.2], ar_scale=0.6, regressors=1, noise=0.5, initial_scale=10.0
            ),
            "far": lambda: bs.structural(
                level=None, ar=[-0.3, 0.1], ar_scale=2.0, regressors=1, noise=0.3, initial_scale=10.0
            ),
        },
        regressors=1,
    ),
    "seasonal": Case(
        lambda: bs.structural(level=0.3, seasonal=4, seasonal_scale=0.1, noise=1.0),
        {
            "near": lambda: bs.structural(level=0.4, seasonal=4, seasonal_scale=0.15, noise=0.8, initial_scale=100.0),
            "far": lambda: bs.structural(level=1.0, seasonal=4, seasonal_scale=0.5, noise=0.3, initial_scale=100.0),
        },
    ),
    "volatility": Case(
        volatility(-1.0, 0.97, 0.2),
        {"near": volatility(-0.5, 0.9, 0.3), "far": volatility(3.0, 0.8, 0.5)},
        between=(-7.0, 5.0),
    ),
    "Poisson counts": Case(
        lambda: Counts(0.5, 0.95, 0.2),
        {"truth": lambda: Counts(0.5, 0.95, 0.2), "far": lambda: Counts(2.5, 0.5, 0.8)},
        most=0.002,
        between=(-4.0, 5.0),
    ),
    "negative-binomial counts": Case(
        lambda: OverdispersedCounts(0.5, 0.95, 0.2, 0.3),
        {
            "truth": lambda: OverdispersedCounts(0.5, 0.95, 0.2, 0.3),
            "far": lambda: OverdispersedCounts(2.0, 0.5, 0.6, 1.0),
        },
        most=0.002,
        between=(-4.0, 5.0),
    ),
    "pendulum": Case(
        lambda: Pendulum(1.0, 0.2, 0.1, 0.1),
        {"near": lambda: Pendulum(1.1, 0.3, 0.15, 0.15), "far": lambda: Pendulum(1.5, 0.6, 0.4, 0.4)},
    ),
}
