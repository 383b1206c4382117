"""Finance: three correlated returns whose log variances move together."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.particles import Particles


class Volatilities(StateSpaceModel):
    """Log variances are autoregressions with correlated noise; returns are normal with a fixed correlation."""

    level: Array
    kept: Array
    noise_factor: Array
    correlation_factor: Array

    def prior(self, u=None):
        return dist.Normal(self.level, 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.MultivariateNormal(self.level + self.kept * (x - self.level), scale_tril=self.noise_factor)

    def emission(self, x, u=None):
        factor = jnp.exp(x / 2)[:, None] * self.correlation_factor
        return dist.MultivariateNormal(jnp.zeros(3), scale_tril=factor)


def build():
    def factor(off_diagonal):
        return jnp.linalg.cholesky(jnp.eye(3) + off_diagonal * (1 - jnp.eye(3)))

    return Volatilities(jnp.array([-1.0, 0.0, 0.5]), jnp.array([0.97, 0.95, 0.98]), 0.25 * factor(0.6), factor(0.5))


CASE = Case(
    name="volatilities",
    field="finance",
    about="stochastic volatility, three series",
    build=build,
    reference=Particles(),
    rows=500,
)
