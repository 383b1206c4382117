"""Moments of one-dimensional densities on many thousands of points: slow, and hard to get wrong."""

import numpy as np
import scipy.optimize


def moments(log_density, points=20_001, around=0.0):
    """Mean, variance and log mass of a density with one mode. `log_density` takes an array of points."""

    def height(x):
        return float(log_density(np.array([x]))[0])

    # The mode, by ever finer scans around the best point: steps of all sizes, since nothing is known of the scale.
    center = around
    sizes = 2.0 ** np.arange(-60, 40, 0.25)
    steps = np.concatenate([[0.0], sizes, -sizes])
    for _ in range(1000):
        with np.errstate(over="ignore", invalid="ignore"):
            best = center + steps[np.nanargmax(log_density(center + steps))]
        if best == center:
            break
        center = best
    # Where the density has fallen by e⁻⁵⁰ on either side.
    ends = []
    for sign in (-1, 1):
        low, high = 0.0, 2.0**-60
        while height(center + sign * high) > height(center) - 50:
            low, high = high, 2 * high
        ends.append(sign * scipy.optimize.brentq(lambda s, sign=sign: _fall(height, center, sign * s), low, high))
    x = center + np.linspace(*ends, points)
    values = np.asarray(log_density(x), float)
    values = np.where(np.isfinite(values), values, -np.inf)
    weights = np.exp(values - values.max())
    total = np.trapezoid(weights, x)
    mean = center + np.trapezoid(weights * (x - center), x) / total
    variance = np.trapezoid(weights * (x - mean) ** 2, x) / total
    return mean, variance, values.max() + np.log(total)


def _fall(height, center, step):
    value = height(center + step) - height(center) + 50
    return value if np.isfinite(value) else -1.0
