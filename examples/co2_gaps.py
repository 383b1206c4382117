"""Weekly CO₂ at Mauna Loa, with its gaps: a trend with seasons as a linear-Gaussian model, fitted and smoothed exactly.

python examples/co2_gaps.py [--quick]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from scipy.linalg import block_diag
from statsmodels.datasets import co2
from statsmodels.tsa.statespace.structural import UnobservedComponents

import backstream as bs
from backstream import plots

jax.config.update("jax_enable_x64", True)  # the noises of level and slope differ by orders of magnitude

YEAR = 365.25 / 7  # in weeks
HARMONICS = 3
B = np.array([[1.0, 0.0] * (1 + HARMONICS)])  # level and seasons are seen; slope and phases are not


def model(log_scales: jax.Array, first: float) -> bs.LinearGaussian:
    """A level with a slope, and pairs that turn once, twice, … a year; the sizes of the noises are to be learned."""
    turns = 2 * np.pi * np.arange(1, 1 + HARMONICS) / YEAR
    pairs = [[[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]] for turn in turns]
    A = block_diag([[1, 1], [0, 1]], *pairs)
    level, slope, season, seen = jnp.exp(log_scales)
    start = jnp.zeros(B.shape[1]).at[0].set(first)
    Q0 = jnp.array([5.0, 0.5] + [5.0] * (2 * HARMONICS))
    return bs.LinearGaussian(start, Q0, A, B, jnp.stack([level, slope] + [season] * (2 * HARMONICS)), seen[None])


def fit(ys: np.ndarray, updates: int) -> tuple[jax.Array, list[float]]:
    """Maximum likelihood by gradient ascent: with the exact family the ELBO is the log-likelihood."""
    optimizer, log_scales = optax.adam(0.1), jnp.log(jnp.array([0.1, 0.01, 0.01, 0.5]))

    @jax.jit
    @jax.value_and_grad
    def loss(log_scales):
        p = model(log_scales, ys[0, 0])
        return -bs.estimators.Exact()(p, bs.families.Kalman.from_model(p), jnp.asarray(ys)).elbo / len(ys)

    state, values = optimizer.init(log_scales), []
    for _ in range(updates):
        value, gradient = loss(log_scales)
        moves, state = optimizer.update(gradient, state)
        log_scales, values = optax.apply_updates(log_scales, moves), [*values, -float(value)]
    return log_scales, values


def main(quick: bool, picture: Path) -> None:
    data = co2.load_pandas().data["co2"]
    full = data.to_numpy()[-780 if quick else None :, None]
    dates = data.index.to_numpy()[-len(full) :]
    rng, hidden = np.random.default_rng(0), np.zeros(len(full), bool)
    for start in rng.integers(50, len(full) - 50, len(full) // 80):
        hidden[start : start + rng.integers(1, 20)] = True
    hidden &= ~np.isnan(full[:, 0])
    ys = np.where(hidden[:, None], np.nan, full)
    log_scales, values = fit(ys, updates=40 if quick else 100)
    p = model(log_scales, ys[0, 0])
    smoothed = bs.smooth(p, bs.families.Kalman.from_model(p), ys)
    mean = (smoothed.mean @ p.B.T)[:, 0]
    std = jnp.sqrt(jnp.einsum("i,tij,j->t", p.B[0], smoothed.cov, p.B[0]) + p.emission_scale[0] ** 2)
    seen = np.flatnonzero(~np.isnan(ys[:, 0]))
    straight = np.interp(np.arange(len(ys)), seen, ys[seen, 0])

    print(f"{len(ys)} weeks; {np.isnan(full).sum()} are missing in the archive, and we hide {hidden.sum()} more.")
    print(f"Log-likelihood per week while learning: {values[0]:.3f} → {values[-1]:.3f}.")
    print(f"Noises of level, slope, seasons, measurement: {np.round(np.exp(log_scales), 4)} ppm.")
    errors = [np.sqrt(np.mean((fill - full[:, 0])[hidden] ** 2)) for fill in (mean, straight)]
    print("Hidden weeks: the model misses by {:.2f} ppm (RMSE), a straight line by {:.2f} ppm.".format(*errors))
    for level, z in ((0.5, 0.674), (0.9, 1.645)):
        inside = bs.metrics.coverage(mean - z * std, mean + z * std, np.where(hidden, full[:, 0], np.nan))
        print(f"{100 * level:.0f} % bands hold {100 * inside:.0f} % of the hidden weeks.")
    peer = UnobservedComponents(ys[:, 0], "lltrend", freq_seasonal=[{"period": YEAR, "harmonics": HARMONICS}])
    theirs = peer["design"][0] @ peer.smooth(np.exp(2 * log_scales[np.array([3, 0, 1, 2])])).smoothed_state
    print(f"statsmodels' smoother: at most {np.abs(theirs - mean)[52:].max():.4f} ppm apart after the first year.")
    print("What to take from it: fill gaps with bands, not with lines, and check the bands on weeks that you hid.")

    figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
    part = slice(len(ys) // 2 - 100, len(ys) // 2 + 100)
    curves = (curve[part] for curve in (mean - 1.645 * std, mean + 1.645 * std, mean))
    plots.band(axes, *curves, "smoothed, 90 % band", plots.BLUE, times=dates[part])
    axes.plot(dates[part], ys[part], ".", color=plots.BLACK, markersize=3, label="read")
    axes.plot(dates[part], np.where(hidden, full[:, 0], np.nan)[part], "x", color=plots.ORANGE, label="hidden")
    axes.legend(fontsize="small", frameon=False, title="CO₂, ppm")
    print(f"Picture: {plots.save(figure, picture)}")


if __name__ == "__main__":
    main("--quick" in sys.argv, Path("co2_gaps.png"))
