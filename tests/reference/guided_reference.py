"""What filters and smoothers must find, in NumPy: one dense Gaussian for linear models, grids for one state."""

from typing import NamedTuple

import numpy as np


class Exact(NamedTuple):
    filtered: np.ndarray
    filtered_cov: np.ndarray
    smoothed: np.ndarray
    smoothed_cov: np.ndarray
    log_scores: np.ndarray


class LinearModel(NamedTuple):
    """X_0 ~ N(mean0, Q0), X_t = A_t X_{t-1} + N(0, Q_t), Y_t = B_t X_t + N(0, R_t). A leading axis of time, but for the
    prior."""

    mean0: np.ndarray
    Q0: np.ndarray
    A: np.ndarray
    Q: np.ndarray
    B: np.ndarray
    R: np.ndarray


def constant(mean0, Q0, A, Q, B, R, T):
    return LinearModel(mean0, Q0, *(np.repeat(np.asarray(M, float)[None], T, 0) for M in (A, Q, B, R)))


def exact(model, ys):
    """All of X_{0:T-1} as one Gaussian, conditioned on what is seen: up to each row, and on all of it."""
    ys = np.asarray(ys, float)
    (T, dy), d = ys.shape, len(model.mean0)
    means, covs = [model.mean0], [model.Q0]
    cov = np.zeros((T, d, T, d))
    for t in range(T):
        if t > 0:
            means.append(model.A[t] @ means[-1])
            covs.append(model.A[t] @ covs[-1] @ model.A[t].T + model.Q[t])
        cross = covs[t]
        for s in range(t, T):
            if s > t:
                cross = model.A[s] @ cross
            cov[s, :, t], cov[t, :, s] = cross, cross.T
    mean, cov = np.concatenate(means), cov.reshape(T * d, T * d)
    H, R = np.zeros((T, dy, T, d)), np.zeros((T, dy, T, dy))
    for t in range(T):
        H[t, :, t], R[t, :, t] = model.B[t], model.R[t]
    H, R, seen = H.reshape(T * dy, T * d), R.reshape(T * dy, T * dy), ~np.isnan(ys.ravel())

    def given(rows):
        """Mean and covariance of all states, and the log density of what is seen, given the first rows."""
        kept = seen & (np.arange(T * dy) < rows * dy)
        if not kept.any():
            return mean, cov, 0.0
        spread = H[kept] @ cov @ H[kept].T + R[np.ix_(kept, kept)]
        error, gain = ys.ravel()[kept] - H[kept] @ mean, np.linalg.solve(spread, H[kept] @ cov).T
        log_p = -0.5 * (
            error @ np.linalg.solve(spread, error) + np.linalg.slogdet(spread)[1] + kept.sum() * np.log(2 * np.pi)
        )
        return mean + gain @ error, cov - gain @ H[kept] @ cov, log_p

    def block(mean, cov, t):
        return mean.reshape(T, d)[t], cov.reshape(T, d, T, d)[t, :, t]

    laws = [given(t + 1) for t in range(T)]
    filtered = [block(*law[:2], t) for t, law in enumerate(laws)]
    smoothed = [block(*laws[-1][:2], t) for t in range(T)]
    scores = np.diff([0.0, *(law[2] for law in laws)])
    return Exact(*map(np.array, zip(*filtered, strict=True)), *map(np.array, zip(*smoothed, strict=True)), scores)


def grid_filter(log_prior, log_transition, log_emission, ys, low, high, points=1201):
    """Means, standard deviations and log scores of one state on a grid: `log_transition(before, after, t)` takes arrays
    that broadcast, `log_emission(x, y, t)` an array and a number. Filtered, and smoothed."""
    x = np.linspace(low, high, points)
    step = x[1] - x[0]
    log_p, scores, forward, kernels = log_prior(x), [], [], []
    for t, y in enumerate(ys):
        if t > 0:
            kernel = np.exp(log_transition(x[None], x[:, None], t))
            kernels.append(kernel)
            with np.errstate(divide="ignore"):
                log_p = np.log(step * kernel @ np.exp(log_p))
        if not np.isnan(y):
            log_p = log_p + log_emission(x, y, t)
        total = log_p.max() + np.log(step * np.exp(log_p - log_p.max()).sum())
        scores.append(total)
        log_p = log_p - total
        forward.append(np.exp(log_p))
    backward, smoothed = np.ones(points), [forward[-1]]
    for t in range(len(ys) - 1, 0, -1):
        seen = 1.0 if np.isnan(ys[t]) else np.exp(log_emission(x, ys[t], t) - scores[t])
        backward = step * kernels[t - 1].T @ (seen * backward)
        smoothed.append(forward[t - 1] * backward)
    return x, _moments(x, forward), _moments(x, smoothed[::-1]), np.array(scores)


class Matched(NamedTuple):
    mean: np.ndarray
    scale: np.ndarray
    smooth_mean: np.ndarray
    smooth_scale: np.ndarray
    log_scores: np.ndarray


def moment_matching(keep, noise, log_emission, ys, prior=(0.0, 1.0), inputs=None):
    """The best that one normal law can do for X_t = keep X_{t-1} + u_t + N(0, noise²), row by row: the moments of
    prediction × emission, by quadrature with thousands of nodes. Then the Rauch–Tung–Striebel smoother."""
    inputs = np.zeros(len(ys)) if inputs is None else inputs
    mean, scale = prior
    ahead, filtered, scores = [], [], []
    for t, y in enumerate(ys):
        if t > 0:
            mean, scale = keep * mean + inputs[t], np.hypot(keep * scale, noise)
        ahead.append((mean, scale))
        score = 0.0
        if not np.isnan(y):
            mean, scale, score = product_moments(mean, scale, lambda x, y=y: log_emission(x, y))
        filtered.append((mean, scale))
        scores.append(score)
    smoothed = [filtered[-1]]
    for (mean, scale), (before, spread) in zip(filtered[-2::-1], ahead[:0:-1], strict=True):
        gain, (after, width) = keep * scale**2 / spread**2, smoothed[-1]
        variance = scale**2 + gain**2 * (width**2 - spread**2)
        smoothed.append((mean + gain * (after - before), np.sqrt(variance)))
    return Matched(*np.array(filtered).T, *np.array(smoothed[::-1]).T, np.array(scores))


def product_moments(mean, scale, log_likelihood):
    """Of N(mean, scale²) × likelihood: mean, standard deviation and log mass. The nodes close in on the mass."""
    low, high = mean - 60 * scale, mean + 60 * scale
    for _ in range(5):
        x, step = np.linspace(low, high, 6001, retstep=True)
        with np.errstate(over="ignore"):
            log_p = log_likelihood(x) - 0.5 * ((x - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
        heavy = x[log_p > log_p.max() - 60]
        low, high = heavy[0] - step, heavy[-1] + step
    weights = np.exp(log_p - log_p.max())
    center = weights @ x / weights.sum()
    spread = np.sqrt(weights @ (x - center) ** 2 / weights.sum())
    return center, spread, log_p.max() + np.log(weights.sum() * step)


def expectation_propagation(log_densities, directions, sweeps=200):
    """N(0, I) times densities of a_j·z, by sweeps over one after the other until nothing moves: mean, covariance and
    log mass. `log_densities` take an array of a_j·z."""
    n, d = directions.shape
    tau, nu = np.zeros(n), np.zeros(n)

    def posterior():
        cov = np.linalg.inv(np.eye(d) + directions.T @ (tau[:, None] * directions))
        return cov @ (nu @ directions), cov

    def log_normalizer(mean, variance):
        return 0.5 * (mean**2 / variance + np.log(2 * np.pi * variance))

    for _ in range(sweeps):
        before, log_mass = tau.copy(), 0.0
        for j, (a, log_density) in enumerate(zip(directions, log_densities, strict=True)):
            mean, cov = posterior()
            precision, shift = 1 / (a @ cov @ a) - tau[j], a @ mean / (a @ cov @ a) - nu[j]
            center, scale, mass = product_moments(shift / precision, precision**-0.5, log_density)
            tau[j], nu[j] = scale**-2 - precision, center / scale**2 - shift
            log_mass += mass + log_normalizer(shift / precision, 1 / precision) - log_normalizer(center, scale**2)
        if np.abs(tau - before).max() < 1e-8 * (1 + np.abs(tau).max()):
            break
    mean, cov = posterior()
    whole = 0.5 * (mean @ np.linalg.solve(cov, mean) + np.linalg.slogdet(cov)[1])
    return mean, cov, log_mass + whole


def _moments(x, densities):
    weights = np.array(densities) / np.sum(densities, 1, keepdims=True)
    mean = weights @ x
    return mean, np.sqrt(np.einsum("tn,tn->t", weights, (x - mean[:, None]) ** 2))
