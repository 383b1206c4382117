"""Building physics: a room with a heater, a window and two sensors; switches and weather are known inputs."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from backstream import StateSpaceModel
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.kalman import Exact


class Heating(StateSpaceModel):
    """States: air and walls in °C. Inputs: heater on, window open, outside temperature, sensor near the heater used."""

    power: Array
    glow: Array  # what the heater adds to the sensor near it

    def prior(self, u=None):
        return dist.Normal(jnp.array([18.0, 18.0]), 3.0).to_event(1)

    def transition(self, x, u=None):
        heater, window, outside, _ = u
        air, walls = x
        loss = (0.02 + 0.2 * window) * (air - outside)
        mean = jnp.stack([air + self.power * heater - loss - 0.1 * (air - walls), walls + 0.02 * (air - walls)])
        return dist.Normal(mean, jnp.array([0.15, 0.05])).to_event(1)

    def emission(self, x, u=None):
        heater, _, _, near = u
        return dist.Normal((x[0] + self.glow * heater * near)[None], 0.3 + 0.7 * near).to_event(1)


def switches(seed, rows):
    random = np.random.default_rng([17, seed])
    heater, window, near = ((np.cumsum(random.random(rows) < rate) % 2).astype(float) for rate in (0.05, 0.02, 0.03))
    outside = 5 + 8 * np.sin(2 * np.pi * np.arange(rows) / 144)
    return np.stack([heater, window, outside, near], 1)


CASE = Case(
    name="heating",
    field="building physics",
    about="switching known inputs on state and sensor",
    build=lambda: Heating(jnp.array(1.0), jnp.array(5.0)),
    reference=Exact(),
    inputs=switches,
    raw=lambda ys, us: np.stack([ys[:, 0], np.full(len(ys), np.nan)], 1),
)
