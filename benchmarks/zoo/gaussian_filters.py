"""The extended and the unscented Kalman filter and smoother, as in textbooks, to compare with.

Both read the mean and the variance of the emission and treat the observation as the mean plus normal noise. A law that
has none is refused.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.zoo import laws
from benchmarks.zoo.case import Posterior


class NotApplicableError(Exception):
    """The method cannot be used with this model."""


def extended(read, mean: jax.Array, cov: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The law `read(x)` linearized at the mean: its mean and covariance, and its covariance with x."""
    law = read(mean)
    slope = jax.jacfwd(lambda x: laws.mean(read(x)))(mean)
    return laws.mean(law), slope @ cov @ slope.T + laws.covariance(law), cov @ slope.T


def unscented(read, mean: jax.Array, cov: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same from 2d + 1 points with weights for κ = 3 − d, at least 0 (the cubature rule from three states on)."""
    d = len(mean)
    kappa = max(3 - d, 0)
    root = jnp.linalg.cholesky(cov + 1e-12 * jnp.diag(jnp.diagonal(cov)))
    away = jnp.sqrt(d + kappa) * jnp.concatenate([jnp.zeros((1, d)), root.T, -root.T])
    weight = jnp.full(2 * d + 1, 0.5 / (d + kappa)).at[0].set(kappa / (d + kappa))
    points = jax.vmap(lambda x: laws.mean(read(x)))(mean + away)
    noise = jnp.einsum("i,ijk->jk", weight, jax.vmap(lambda x: laws.covariance(read(x)))(mean + away))
    out = weight @ points
    return (
        out,
        (points - out).T @ (weight[:, None] * (points - out)) + noise,
        away.T @ (weight[:, None] * (points - out)),
    )


@eqx.filter_jit
def _smooth(moments, model, ys, us) -> Posterior:
    prior = model.prior(jax.tree.map(lambda leaf: leaf[0], us))
    start = laws.mean(prior), laws.covariance(prior)

    def forward(before, row):
        t, y, u = row
        mean, cov, cross = moments(lambda x: model.transition(x, u), *before)
        m_pred, P_pred = jnp.where(t == 0, start[0], mean), jnp.where(t == 0, start[1], cov)
        out, S, C = moments(lambda x: model.emission(x, u), m_pred, P_pred)
        gain = jnp.linalg.solve(S, C.T).T
        P = P_pred - gain @ S @ gain.T
        residual = laws.difference(model.emission(m_pred, u), y, out)
        after = m_pred + gain @ residual, (P + P.T) / 2
        score = jax.scipy.stats.multivariate_normal.logpdf(residual, jnp.zeros_like(residual), S)
        return after, (*after, m_pred, P_pred, cross, score)

    _, (ms, Ps, m_pred, P_pred, cross, score) = jax.lax.scan(forward, start, (jnp.arange(len(ys)), ys, us))

    def backward(later, row):
        m, P, m_next, P_next, cross_next = row
        scale = jnp.sqrt(jnp.diagonal(P_next))  # units may differ by orders of magnitude
        gain = jnp.linalg.solve(P_next / jnp.outer(scale, scale), (cross_next / scale).T).T / scale
        after = m + gain @ (later[0] - m_next), P + gain @ (later[1] - P_next) @ gain.T
        return after, after

    rows = ms[:-1], Ps[:-1], m_pred[1:], P_pred[1:], cross[1:]
    _, (sm, sP) = jax.lax.scan(backward, (ms[-1], Ps[-1]), rows, reverse=True)
    return Posterior(ms, Ps, jnp.concatenate([sm, ms[-1:]]), jnp.concatenate([sP, Ps[-1:]]), score)


def _require_moments(model, us) -> None:
    """Raises NotApplicableError where the emission has no finite mean or variance."""
    u = jax.tree.map(lambda leaf: leaf[0], us)
    law = model.emission(laws.mean(model.prior(u)), u)
    try:
        usable = jnp.isfinite(laws.mean(law)).all() & jnp.isfinite(laws.covariance(law)).all()
    except NotImplementedError:
        usable = False
    if not usable:
        raise NotApplicableError("the emission has no finite mean and variance")


def ekf(model, ys, us) -> Posterior:
    """The extended Kalman filter and smoother."""
    _require_moments(model, us)
    return _smooth(extended, model, ys, us)


def ukf(model, ys, us) -> Posterior:
    """The unscented Kalman filter and smoother."""
    _require_moments(model, us)
    return _smooth(unscented, model, ys, us)
