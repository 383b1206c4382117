"""Exact values for linear-Gaussian p and affine q."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from .parts import Family, LinearGaussian, Normal, _centered, backward_kernel, derivative

# ---- exact values for linear-Gaussian p and affine q ---------------------------------------------


class DenseLaw(NamedTuple):
    """q_{0:T-1} as one Gaussian [T d]; (F, f, S) of X_{s-1} | x_s ~ N(F x_s + f, S), entry s − 1; the q_s."""

    mean: ndarray
    cov: ndarray
    kernels: list[tuple[ndarray, ndarray, ndarray]]
    q: list[Normal]


def dense_law(family: Family, lam: ndarray, ys: Sequence[ndarray]) -> DenseLaw:
    """The joint law of eq. (varpost:backward:factorization). Refuses kernels that are not affine in x_t."""
    states = [family.init(lam, ys[0])]
    for y in ys[1:]:
        states.append(family.update(lam, states[-1], y))
    q = [Normal(*family.marginal(lam, a)) for a in states]
    T, d = len(ys), len(q[0].mean)
    kernels = []
    for s in range(1, T):
        at_zero = backward_kernel(family, lam, q[s - 1], np.zeros(d))
        columns = [backward_kernel(family, lam, q[s - 1], e).mean - at_zero.mean for e in np.eye(d)]
        F, f = np.array(columns).T, at_zero.mean
        probe = np.linspace(-1.3, 2.1, d)
        there = backward_kernel(family, lam, q[s - 1], probe)
        if not (np.allclose(there.mean, F @ probe + f) and np.allclose(there.cov, at_zero.cov)):
            raise ValueError("q_{t-1|t} is not affine in x_t with a constant covariance")
        kernels.append((F, f, at_zero.cov))
    mean, cov = np.zeros(T * d), np.zeros((T * d, T * d))
    block = [slice(s * d, (s + 1) * d) for s in range(T)]
    mean[block[-1]], cov[block[-1], block[-1]] = q[-1].mean, q[-1].cov
    for s in range(T - 1, 0, -1):
        F, f, S = kernels[s - 1]
        mean[block[s - 1]] = F @ mean[block[s]] + f
        cov[block[s - 1], block[s - 1]] = F @ cov[block[s], block[s]] @ F.T + S
        for later in range(s, T):
            # Cov(X_{s-1}, X_l) = F Cov(X_s, X_l)
            cov[block[s - 1], block[later]] = F @ cov[block[s], block[later]]
            cov[block[later], block[s - 1]] = cov[block[s - 1], block[later]].T
    return DenseLaw(mean, cov, kernels, q)


def _dense_states(model: LinearGaussian, T: int) -> tuple[ndarray, ndarray]:
    """Mean and covariance of X_{0:T-1} under p."""
    d = len(model.mean0)
    mean, cov = np.zeros(T * d), np.zeros((T * d, T * d))
    block = [slice(s * d, (s + 1) * d) for s in range(T)]
    mean[block[0]], cov[block[0], block[0]] = model.mean0, model.Q0
    for s in range(1, T):
        mean[block[s]] = model.A @ mean[block[s - 1]]
        cov[block[s], block[s]] = model.A @ cov[block[s - 1], block[s - 1]] @ model.A.T + model.Q
        for earlier in range(s):
            cov[block[s], block[earlier]] = model.A @ cov[block[s - 1], block[earlier]]
            cov[block[earlier], block[s]] = cov[block[s], block[earlier]].T
    return mean, cov


def dense_log_likelihood(model: LinearGaussian, ys: Sequence[ndarray]) -> float:
    """log p(y_{0:T-1}), from the dense Gaussian law of the observations."""
    mean, cov = _dense_states(model, len(ys))
    B, R = np.kron(np.eye(len(ys)), model.B), np.kron(np.eye(len(ys)), model.R)
    return _centered(B @ cov @ B.T + R)(np.concatenate(ys) - B @ mean)


def dense_value(model: LinearGaussian, family: Family, lam: ndarray, ys: Sequence[ndarray]) -> float:
    """−KL(q_{0:T-1} ‖ p(x_{0:T-1})) + E_q[log p(y | x)]."""
    law = dense_law(family, lam, ys)
    prior_mean, prior_cov = _dense_states(model, len(ys))
    prior_precision = np.linalg.inv(prior_cov)
    gap = law.mean - prior_mean
    kl = 0.5 * (
        np.trace(prior_precision @ law.cov)
        + gap @ prior_precision @ gap
        - len(gap)
        + np.linalg.slogdet(prior_cov)[1]
        - np.linalg.slogdet(law.cov)[1]
    )
    B, R = np.kron(np.eye(len(ys)), model.B), np.kron(np.eye(len(ys)), model.R)
    return _expected_log_normal(-B, np.concatenate(ys), R, law.mean, law.cov) - kl


def dense_elbo(model: LinearGaussian, family: Family, lam: ndarray, ys) -> tuple[float, ndarray]:
    """The exact ELBO of all of ys, eq. (ELBO), through dense joint Gaussians, and its gradient in λ."""
    return (
        dense_value(model, family, lam, ys),
        derivative(lambda moved: dense_value(model, family, moved, ys), np.asarray(lam, dtype=float)),
    )


def _expected_log_normal(M: ndarray, c: ndarray, S: ndarray, mean: ndarray, cov: ndarray) -> float:
    """E[log N(M X + c; 0, S)] for X ~ N(mean, cov)."""
    return _centered(S)(M @ mean + c) - 0.5 * np.trace(np.linalg.solve(S, M @ cov @ M.T))


def dense_renewal(
    model: LinearGaussian, family: Family, lam: ndarray, ys: Sequence[ndarray], gamma: float
) -> tuple[float, ndarray]:
    """L_t^γ at the last t and its gradient, the log q_{s-1} of the renewals held at λ.

    L_t^γ = E_{q_{0:t}}[Σ_{s≤t} γ^{t-s} f̃_s + (1 − γ) Σ_{1≤s≤t} γ^{t-s} log q_{s-1}(X_{s-1}) − log q_t(X_t)],
    term by term over blocks of the dense joint law; γ = 1 gives the ELBO.
    """
    lam = np.asarray(lam, dtype=float)
    frozen = dense_law(family, lam, ys).q

    def value(moved: ndarray) -> float:
        law = dense_law(family, moved, ys)
        T, d = len(ys), len(law.q[0].mean)
        eye = np.eye(T * d)
        pick = [eye[s * d : (s + 1) * d] for s in range(T)]

        def expected(M, c, S):
            return _expected_log_normal(M, c, S, law.mean, law.cov)

        total = gamma ** (T - 1) * expected(pick[0], -model.mean0, model.Q0)
        for s in range(T):
            share = gamma ** (T - 1 - s)
            total += share * expected(-model.B @ pick[s], ys[s], model.R)
            if s > 0:
                F, f, S = law.kernels[s - 1]
                total += share * expected(pick[s] - model.A @ pick[s - 1], np.zeros(d), model.Q)
                total -= share * expected(pick[s - 1] - F @ pick[s], -f, S)
                total += (1.0 - gamma) * share * expected(pick[s - 1], -frozen[s - 1].mean, frozen[s - 1].cov)
        return total - expected(pick[-1], -law.q[-1].mean, law.q[-1].cov)

    return value(lam), derivative(value, lam)
