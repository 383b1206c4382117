"""Three sensors on a swinging structure, with outliers: a learned posterior beside Kalman filters on the same data.

python examples/sensors_outliers.py [--quick]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

import backstream as bs
from backstream import plots

SEEN = jnp.array([[1.0, 0.0, 0.6, 0.0], [0.7, 0.0, -0.8, 0.0], [0.0, 0.8, 0.0, 0.8]])


class Structure(bs.StateSpaceModel):
    """Two damped modes of vibration, each a pair that turns; sensors see mixtures of them in Student-t noise."""

    A: Array
    df: float = 2.0
    noise: float = 0.1

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(4), 0.5).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.A @ x, 0.1).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(self.df, SEEN @ x, self.noise).to_event(1)


def structure() -> Structure:
    A = np.zeros((4, 4))
    for k, (turn, damping) in enumerate(((0.15, 0.98), (0.4, 0.96))):
        c, s = damping * np.cos(turn), damping * np.sin(turn)
        A[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[c, s], [-s, c]]
    return Structure(jnp.asarray(A, jnp.float32))


def kalman(p: Structure, std: float) -> bs.families.Kalman:
    """The Kalman filter of the same dynamics that takes the noise for Gaussian."""
    return bs.families.Kalman.create(jnp.zeros(4), 0.5 * jnp.ones(4), p.A, SEEN, 0.1 * jnp.ones(4), std * jnp.ones(3))


def main(quick: bool, picture: Path) -> None:
    p = structure()
    _, ys = p.simulate(1500 if quick else 5000, key=jax.random.key(0))
    states, fresh = p.simulate(1000 if quick else 2000, key=jax.random.key(1))
    fresh = np.where(np.random.default_rng(2).random(fresh.shape) < 0.05, np.nan, fresh)
    result = bs.learn(p, ys, progress=False)

    tuned = [kalman(p, std) for std in (0.1, 0.15, 0.2, 0.3, 0.4)]
    # chosen with the truth at hand
    best = min(tuned, key=lambda rival: bs.metrics.delta(bs.smooth(p, rival, fresh).mean, states))
    rivals = {"Backstream": result.family, "Kalman, nominal": kalman(p, 0.1), "Kalman, best": best}
    limit = bs.metrics.particle_limit(p, fresh, num_particles=1000, num_trajectories=50, key=jax.random.key(5))
    print(f"{len(fresh):,} fresh rows of 3 sensors, 5 % of the numbers lost. Errors of the states (RMSE):")
    print(f"{'':20}{'filtered':>10}{'smoothed':>10}{'90 % bands hold':>18}")
    filtered, curves, levels = {}, {}, np.linspace(0.1, 0.95, 18)
    for name, family in rivals.items():
        filtered[name], smoothed = bs.filter(p, family, fresh), bs.smooth(p, family, fresh)
        curves[name] = bs.metrics.calibration(smoothed, states, levels)
        errors = bs.metrics.delta(filtered[name].mean, states), bs.metrics.delta(smoothed.mean, states)
        held = 100 * bs.metrics.coverage(*smoothed.interval(0.9), states)
        print(f"{name:20}{errors[0]:10.4f}{errors[1]:10.4f}{held:16.0f} %")
    errors = (bs.metrics.delta(mean, states) for mean in (limit.filtered, limit.smoothed))
    print("{:20}{:10.4f}{:10.4f}".format("particle limit", *errors))

    # The row that hurts most: the largest error of the nominal Kalman filter.
    misses = {name: np.abs(law.mean - states).max(1) for name, law in filtered.items()}
    hit = int(misses["Kalman, nominal"][50:-50].argmax()) + 50
    print(f"At row {hit} the sensors read {np.round(fresh[hit], 1)}, where {np.round(SEEN @ states[hit], 1)} is right:")
    print(", ".join(f"{name} is off by {miss[hit]:.2f}" for name, miss in misses.items()) + ".")
    print("What to take from it: a Kalman filter must distrust every reading to survive the bad ones; a posterior that")
    print("reads the law of the noise distrusts only those.")

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(2, 1), layout="constrained")
    times, worst = np.arange(hit - 50, hit + 50), int(np.abs(filtered["Kalman, nominal"].mean - states)[hit].argmax())
    for name, color, style in (("Kalman, nominal", plots.ORANGE, "--"), ("Backstream", plots.BLUE, "-")):
        lines = [*filtered[name].interval(0.9), filtered[name].mean]
        plots.band(left, *(np.asarray(x)[times, worst] for x in lines), f"{name}, filtered", color, style, times)
    left.plot(times, states[times, worst], color=plots.BLACK, linewidth=0.9, label="truth")
    left.set(xlabel="row", ylabel=f"state {worst}")
    left.legend(fontsize="small", frameon=False)
    plots.calibration(right, levels, curves)
    print(f"Picture: {plots.save(figure, picture)}")


if __name__ == "__main__":
    main("--quick" in sys.argv, Path("sensors_outliers.png"))
