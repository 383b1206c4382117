"""The exact posterior of a linear-Gaussian model: a Kalman filter and a Rauch–Tung–Striebel smoother in float64."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import laws
from benchmarks.zoo.case import Data, Posterior


@dataclass(frozen=True)
class Exact:
    """Matrices are read off the model at each row's inputs, and its linearity is checked."""

    name: str = "Kalman"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, None, str]:
        _check_linear(model, data)
        found = kalman_smoother(model, jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us))
        return Posterior(*map(np.asarray, found)), None, "exact"


def _check_linear(model, data: Data) -> None:
    """Raises ValueError where a mean is not affine in the state, or a covariance depends on it."""
    u = None if data.us is None else jnp.asarray(data.us[-1])
    scale = np.abs(data.states).max(0)
    start, one, other = jax.random.normal(jax.random.key(1), (3, len(scale))) * scale
    corners = jnp.stack([start, start + one, start + other, start + one + other])
    for read in (model.transition, model.emission):

        def moments(x, read=read):
            law = read(x, u)
            return laws.mean(law), laws.covariance(law)

        f, R = map(np.asarray, jax.jit(jax.vmap(moments))(corners))
        curved = np.abs(f[3] - f[1] - f[2] + f[0]).max() > 1e-9 * np.abs(f).max()
        if curved or not np.allclose(R, R[0], rtol=1e-12):
            raise ValueError(f"{type(model).__name__}.{read.__name__} is not linear and Gaussian.")


@eqx.filter_jit
def kalman_smoother(model, ys: jax.Array, us) -> Posterior:
    """Filter and smoother of a model whose laws are normal, with means affine in the state."""
    first = jax.tree.map(lambda leaf: leaf[0], us)
    prior = model.prior(first)
    origin = jnp.zeros(prior.event_shape)

    def affine(read, u):
        law = read(origin, u)
        return jax.jacfwd(lambda x: laws.mean(read(x, u)))(origin), laws.mean(law), laws.covariance(law)

    def forward(carry, row):
        t, y, u = row
        A, b, Q = affine(model.transition, u)
        m, P = carry
        m_pred = jnp.where(t == 0, laws.mean(prior), A @ m + b)
        P_pred = jnp.where(t == 0, laws.covariance(prior), A @ P @ A.T + Q)
        H, c, R = affine(model.emission, u)
        S = H @ P_pred @ H.T + R
        residual = y - H @ m_pred - c
        gain = jnp.linalg.solve(S, H @ P_pred).T
        kept = jnp.eye(len(m)) - gain @ H
        m, P = m_pred + gain @ residual, kept @ P_pred @ kept.T + gain @ R @ gain.T
        score = jax.scipy.stats.multivariate_normal.logpdf(residual, jnp.zeros_like(residual), S)
        return (m, P), (m, P, m_pred, P_pred, A, score)

    start = laws.mean(prior), laws.covariance(prior)
    _, (ms, Ps, m_pred, P_pred, A, score) = jax.lax.scan(forward, start, (jnp.arange(len(ys)), ys, us))

    def backward(later, row):
        m, P, m_next, P_next, A_next = row
        spread = jnp.sqrt(jnp.diagonal(P_next))  # the inverse is taken on the scale of correlations
        inverse = jnp.linalg.pinv(P_next / jnp.outer(spread, spread), rtol=1e-13, hermitian=True)
        gain = P @ A_next.T @ (inverse / jnp.outer(spread, spread))
        mean = m + gain @ (later[0] - m_next)
        cov = P + gain @ (later[1] - P_next) @ gain.T
        return (mean, cov), (mean, cov)

    rows = ms[:-1], Ps[:-1], m_pred[1:], P_pred[1:], A[1:]
    _, (sm, sP) = jax.lax.scan(backward, (ms[-1], Ps[-1]), rows, reverse=True)
    return Posterior(ms, Ps, jnp.concatenate([sm, ms[-1:]]), jnp.concatenate([sP, Ps[-1:]]), score)
