"""The Kalman filter and smoother of a model, from what its laws say, in NumPy: slow, and hard to get wrong."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats


class Linear(NamedTuple):
    """X_0 ~ N(mean0, Q0), X_t = A X_{t-1} + N(0, Q), Y_t = B_t X_t + N(0, R), read off the three laws of a model."""

    mean0: np.ndarray
    Q0: np.ndarray
    A: np.ndarray
    B: np.ndarray
    Q: np.ndarray
    R: np.ndarray

    @classmethod
    def read(cls, model, us):
        prior = model.prior(us[0])
        d = prior.event_shape[0]
        x = jnp.linspace(-1.0, 2.0, d)
        Q0 = prior.covariance_matrix if hasattr(prior, "covariance_matrix") else jnp.diag(prior.variance)
        parts = (
            prior.mean,
            Q0,
            jax.jacfwd(lambda x: model.transition(x, us[0]).mean)(x),
            jax.vmap(jax.jacfwd(lambda x, u: model.emission(x, u).mean), (None, 0))(x, us),
            jnp.diag(model.transition(x, us[0]).variance),
            jnp.diag(model.emission(x, us[0]).variance),
        )
        return cls(*(np.asarray(part, dtype=np.float64) for part in parts))


class Kalman(NamedTuple):
    filtered: np.ndarray
    filtered_cov: np.ndarray
    smoothed: np.ndarray
    smoothed_cov: np.ndarray
    log_likelihood: float


def kalman(p: Linear, ys) -> Kalman:
    """Filter, and the smoother that inverts no covariance of states, which may be singular."""
    mean, cov, log_likelihood, forward = p.mean0, p.Q0, 0.0, []
    for t, y in enumerate(ys):
        if t > 0:
            mean, cov = p.A @ mean, p.A @ cov @ p.A.T + p.Q
        B, spread = p.B[t], p.B[t] @ cov @ p.B[t].T + p.R
        error, gain = y - B @ mean, np.linalg.solve(spread, B @ cov).T
        forward.append((mean, cov, B, spread, error, gain))
        log_likelihood += scipy.stats.multivariate_normal(cov=spread).logpdf(error)
        keep = np.eye(len(mean)) - gain @ B
        mean, cov = mean + gain @ error, keep @ cov @ keep.T + gain @ p.R @ gain.T
    filtered = [(m + g @ e, c - g @ B @ c) for m, c, B, _, e, g in forward]
    r, N, smoothed = np.zeros(len(mean)), np.zeros_like(cov), []
    for mean, cov, B, spread, error, gain in reversed(forward):
        onward = p.A @ (np.eye(len(mean)) - gain @ B)
        r = B.T @ np.linalg.solve(spread, error) + onward.T @ r
        N = B.T @ np.linalg.solve(spread, B) + onward.T @ N @ onward
        smoothed.append((mean + cov @ r, cov - cov @ N @ cov))
    return Kalman(
        *map(np.array, zip(*filtered, strict=True)),
        *map(np.array, zip(*reversed(smoothed), strict=True)),
        log_likelihood,
    )
