"""Volatility of the S&P 500: a stochastic volatility model whose parameters are learned online, beside GARCH(1,1).

python examples/sp500_volatility.py [--quick]
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from arch import arch_model
from arch.data import sp500
from scipy.special import logsumexp
from scipy.stats import norm

import backstream as bs
from backstream import plots

HELD_OUT = 1000
"""The last days, on which both models predict without learning any further."""


def predictions(p: bs.StochasticVolatility, filtered: bs.laws.Marginals) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the log variance of each day, given the days before it."""
    mu, phi, sigma = (float(part[0]) for part in (p.mu, p.phi, p.sigma))
    mean, variance = np.asarray(filtered.mean)[:-1, 0], np.asarray(filtered.cov)[:-1, 0, 0]
    start = sigma**2 / (1 - phi**2)
    return np.r_[mu, mu + phi * (mean - mu)], np.sqrt(np.r_[start, phi**2 * variance + sigma**2])


def log_predictive(ys: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """log p(y_t | y_{0:t-1}): the emission integrated over the predicted log variance, by Gauss-Hermite sums."""
    z, w = np.polynomial.hermite_e.hermegauss(32)
    volatility = np.exp((mean[:, None] + std[:, None] * z) / 2)
    return logsumexp(norm.logpdf(ys, 0, volatility) + np.log(w / w.sum()), axis=1)


def main(quick: bool, picture: Path) -> None:
    returns = 100 * sp500.load()["Adj Close"].pct_change().dropna()[-2000 if quick else None :]
    ys, history = returns.to_numpy()[:, None], len(returns) - HELD_OUT
    start = bs.StochasticVolatility(np.log([ys[:history].var()]), phi=jnp.array([0.95]), sigma=jnp.array([0.2]))
    q = bs.Guided.from_model(start)
    learner = bs.learning.default_learner(start, bs.Settings(learn_model=True))
    state, _ = learner.step(learner.init(q, key=jax.random.key(1)), ys[0])
    print("Learned day by day; the history is read again and again, as a stream of its length says little of phi.")
    for _ in range(2 if quick else 4):
        state, _ = learner.scan(state, ys[1:history])
        p = learner.current_model(state)
        print(f"{state.t:7,} days read: mu {p.mu[0]:+.2f}, phi {p.phi[0]:.3f}, sigma {p.sigma[0]:.3f}")

    # From here on nothing is learned. GARCH is fitted to the same history, and predicts the same days.
    filtered, smoothed = bs.filter(p, state.result(), ys), bs.smooth(p, state.result(), ys)
    mean, std = predictions(p, filtered)
    garch = arch_model(returns, mean="Zero")
    theirs = garch.fix(garch.fit(last_obs=history, disp="off").params).conditional_volatility.to_numpy()
    ours, last = np.exp(mean / 2 + std**2 / 4), slice(history, None)  # the root of the predicted variance
    scores = {
        "stochastic volatility": log_predictive(ys, mean, std)[last],
        "before learning": log_predictive(ys, *predictions(start, bs.filter(start, q, ys)))[last],
        "GARCH(1,1)": norm.logpdf(ys[last, 0], 0, theirs[last]),
        "constant volatility": norm.logpdf(ys[last, 0], 0, ys[:history].std()),
    }
    print(f"One day ahead, on the last {HELD_OUT:,} days, mean log predictive density:")
    for name, score in scores.items():
        print(f"  {name:22} {score.mean():.3f}")
    difference = scores["stochastic volatility"] - scores["GARCH(1,1)"]
    error = difference.std() / np.sqrt(HELD_OUT)
    print(f"Ours minus GARCH: {difference.mean():+.3f} ± {2 * error:.3f} nats a day (two standard errors).")
    agreement = np.corrcoef(np.log(ours[last]), np.log(theirs[last]))[0, 1]
    print(f"The two volatility paths have correlation {agreement:.3f} (in logarithms).")
    half_life = np.log(0.5) / np.log(float(p.phi[0]))
    width = np.exp(np.median(smoothed.std[:, 0]) / 2)
    print(f"What to take from it: a shock to volatility is half gone after {half_life:.0f} trading days, and even with")
    print(f"hindsight a day's volatility is known only up to a factor of {width:.2f} (one standard deviation).")
    print("GARCH gives one number for the same day, and no such factor.")

    figure, axes = plt.subplots(figsize=(8.5, 3.5), layout="constrained")
    days, shown = returns.index.to_numpy(), slice(-HELD_OUT, None)
    curves = (np.exp(np.asarray(curve)[shown, 0] / 2) for curve in (*smoothed.interval(0.9), smoothed.mean))
    plots.band(axes, *curves, "smoothed, 90 % band", plots.BLUE, times=days[shown])
    axes.plot(days[shown], theirs[shown], "--", color=plots.ORANGE, linewidth=0.9, label="GARCH(1,1)")
    axes.plot(days[shown], np.abs(ys[shown]), ".", color=plots.GRAY, markersize=2, label="|return|", zorder=0)
    axes.set(ylabel="daily volatility, %", yscale="log", ylim=(0.1, None))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.legend(fontsize="small", frameon=False, ncols=3)
    print(f"Picture: {plots.save(figure, picture)}")


if __name__ == "__main__":
    main("--quick" in sys.argv, Path("sp500_volatility.png"))
