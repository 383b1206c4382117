"""Epidemiology: reported cases of an endemic disease with waning immunity and a wandering transmission rate."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.paths import Paths


class Epidemic(StateSpaceModel):
    """States: logarithms of the susceptible, exposed and infectious shares and of the transmission rate, each day."""

    reported: Array  # cases a day at full incidence
    concentration: Array

    def prior(self, u=None):
        mean = jnp.log(jnp.array([0.36, 0.02, 0.035, 0.4]))
        return dist.Normal(mean, jnp.array([0.1, 0.2, 0.2, 0.2])).to_event(1)

    def transition(self, x, u=None):
        onset, recovery, waning = 1 / 4, 1 / 7, 1 / 120
        susceptible, exposed, infectious, rate = jnp.exp(x)
        immune = 1 - susceptible - exposed - infectious
        change = jnp.stack(
            [
                waning * immune / susceptible - rate * infectious,
                rate * susceptible * infectious / exposed - onset,
                onset * exposed / infectious - recovery,
                0.03 * (jnp.log(0.4) - x[3]),
            ]
        )
        return dist.Normal(x + change, jnp.array([0.01, 0.04, 0.04, 0.06])).to_event(1)

    def emission(self, x, u=None):
        cases = self.reported * 0.25 * jnp.exp(x[1])
        return dist.NegativeBinomial2(cases[None], self.concentration).to_event(1)


CASE = Case(
    name="epidemic",
    field="epidemiology",
    about="SEIRS, negative binomial case counts",
    build=lambda: Epidemic(jnp.array(5000.0), jnp.array(10.0)),
    reference=Paths(),
    rows=300,
)
