"""Unknown dynamics: a network learns the flow of a Van der Pol oscillator from a stream of ten noisy columns.

python examples/van_der_pol.py [--quick]
"""

import sys
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

import backstream as bs
from backstream import plots

STEP = 0.1
SEEN = np.asarray(jax.random.normal(jax.random.key(7), (10, 2)))


class Flow(bs.StateSpaceModel):
    """Two states that move along a flow; ten columns see mixtures of them."""

    constraints: ClassVar = {"sigma": constraints.positive, "noise": constraints.positive}
    sigma: eqx.AbstractVar[Array]
    noise: eqx.AbstractVar[Array]

    @abstractmethod
    def flow(self, x: Array) -> Array: ...

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 2.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x + STEP * self.flow(x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(SEEN @ x, self.noise).to_event(1)


class VanDerPol(Flow):
    sigma: Array
    noise: Array

    def flow(self, x):
        return jnp.array([x[1], 1.5 * (1 - x[0] ** 2) * x[1] - x[0]])


class Learned(Flow):
    sigma: Array
    noise: Array
    net: eqx.nn.MLP

    def flow(self, x):
        return self.net(x)


def one_step_error(p: Flow, rows: np.ndarray) -> float:
    """The root mean square error of the columns, predicted one row ahead."""
    tracker = bs.Tracker(p)
    errors = [SEEN @ tracker.update(row).prediction.mean - row for row in rows]
    return float(np.sqrt(np.mean(np.square(errors[100:]))))


def draw(truth: Flow, learned: Flow, states: np.ndarray, picture: Path) -> None:
    figure, places = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
    x, y = np.meshgrid(np.linspace(-3, 3, 25), np.linspace(-4, 4, 25))
    for axes, (name, p) in zip(places, {"true flow": truth, "learned flow": learned}.items(), strict=True):
        u, v = np.moveaxis(np.asarray(jax.vmap(jax.vmap(p.flow))(jnp.stack([x, y], -1))), -1, 0)
        axes.streamplot(x, y, u, v, color=plots.BLUE, linewidth=0.6, arrowsize=0.7, density=1.1)
        axes.plot(*states[:400].T, ".", color=plots.ORANGE, markersize=2)
        axes.set(title=name, xlabel="position", xlim=(-3, 3), ylim=(-4, 4))
    places[0].set_ylabel("velocity")
    print(f"Picture: {plots.save(figure, picture)}")


def main(quick: bool, picture: Path) -> None:
    truth = VanDerPol(jnp.array(0.1), jnp.array(0.3))
    _, ys = truth.simulate(1500 if quick else 4000, key=jax.random.key(1))
    states, fresh = (np.asarray(part) for part in truth.simulate(600 if quick else 1500, key=jax.random.key(2)))
    net = eqx.nn.MLP(2, 2, 32, depth=1, activation=jnp.tanh, key=jax.random.key(3))
    start = Learned(jnp.array(0.3), jnp.array(0.5), net)
    settings = bs.Settings(model_rate=0.01, model_rate_halved_after=4000)
    learned = bs.learn(start, ys, learn=["net", "sigma", "noise"], settings=settings, progress=False).model
    errors = {name: one_step_error(p, fresh) for name, p in (("truth", truth), ("start", start), ("learned", learned))}
    for name in ("start", "learned"):
        print(f"One-step error, {name}: {errors[name] / errors['truth']:.3f} times that of the true model.")
    print(f"Process noise {learned.sigma:.4f} (truth 0.1), observation noise {learned.noise:.4f} (truth 0.3).")
    draw(truth, learned, states, picture)


if __name__ == "__main__":
    main("--quick" in sys.argv, Path("van_der_pol.png"))
