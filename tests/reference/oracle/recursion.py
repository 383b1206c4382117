"""Proposition 1 and Algorithm 1, and the same with moment-corrected weights."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from .parts import (
    BASELINES,
    Family,
    Moved,
    Normal,
    _moves,
    _sum_stencil,
    _support,
    backward_kernel,
    forward,
    kernel_slopes,
    marginal_slopes,
    normalized_weights,
    score,
    score_term,
    sensitivities,
)

# ---- Proposition 1 and Algorithm 1 ---------------------------------------------------------------


class Run(NamedTuple):
    """What a recursion gives at every t. Increments are np.diff of `elbos` and `gradients` along t.

    elbos [T], gradients [T, P] (None when λ moves), xi[t] [N, d], H[t] [N], G[t] [N, P] (None when λ moves),
    and the matrices of weights W[t] [N, N], W[0] = None: row i adds up the weights of particle i (counts/M
    for sampled indices).
    """

    elbos: ndarray
    gradients: ndarray | None
    xi: list[ndarray]
    H: list[ndarray]
    G: list[ndarray] | None
    W: list[ndarray | None]


def _f(model, kernel: Normal, x_prev: ndarray, x: ndarray, y: ndarray) -> float:
    """f̃_t = log ℓ_t − log q_{t-1|t}, ℓ_t = m_t(x_{t-1}, x_t) g_t(x_t, y_t) (the text: g_t(x_{t-1}, y_t))."""
    return model.log_transition(x_prev, x) + model.log_emission(x, y) - kernel.log_prob(x_prev)


def recursive_score(
    model,
    family: Family,
    lam,
    ys: Sequence[ndarray],
    draws: Sequence[ndarray],
    weights="all",
    baseline: str = "leave-one-out",
    depth: int | None = None,
    gamma: float = 1.0,
    entropy_term: bool = True,
) -> Run:
    """Proposition 1 with the estimators (approx:Hstat:online) and (approx:Gstat:online), H and G uncentered.

    lam: one λ, or the list of λ_t of the online setting. In the latter case only values are given (gradients
    and G are None): which λ a replayed state is differentiated at is then a matter of convention.
    draws[t]: standard normal draws [N, d].
    weights: "all", or a list with index arrays [N, M] at t ≥ 1 (entry 0 is not read).
    depth: None for exact derivatives, or the Δ of truncated ones.
    gamma: 1 is the paper's ELBO L_t; below 1 it is the renewal objective L_t^γ, whose own value and gradient
    (without the factor 1 − γ) are returned.
    entropy_term: False leaves −log q_t out of the outer score term, as the text of Proposition 1 does.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline is one of {BASELINES}, not {baseline!r}")
    with_gradient = not _moves(lam)
    path = forward(family, lam, ys, draws)
    elbos, gradients, Hs, Gs, Ws = [], [], [], [], []
    for t, y in enumerate(ys):
        q, xi, N = path.q[t], path.xi[t], len(path.xi[t])
        moved = sensitivities(family, path, ys, t, depth) if with_gradient else None
        P = len(path.lams[t])
        if t == 0:
            # H_0 = f̃_0 = log χ(x_0) g_0(x_0, y_0), G_0 = 0
            H = np.array([model.log_prior(x) + model.log_emission(x, y) for x in xi])
            G = np.zeros((N, P))
            W = None
        else:
            q_prev, xi_prev, H_prev, G_prev = path.q[t - 1], path.xi[t - 1], Hs[-1], Gs[-1]
            H, G, W = np.zeros(N), np.zeros((N, P)), np.zeros((N, len(xi_prev)))
            for i, x in enumerate(xi):
                kernel = backward_kernel(family, path.lams[t], q_prev, x)
                support = _support(weights, t, i, kernel, q_prev, xi_prev)
                w = [weight for _, weight in support]
                # r_ij = H_{t-1}^j + f̃_ij; renewal: γ H_{t-1}^j + (1 − γ) log q_{t-1}(ξ_{t-1}^j) + f̃_ij
                r = []
                for j, _ in support:
                    carried = H_prev[j]
                    if gamma != 1.0:
                        carried = gamma * carried + (1.0 - gamma) * q_prev.log_prob(xi_prev[j])
                    r.append(carried + _f(model, kernel, xi_prev[j], x, y))
                H[i] = sum(w_j * r_j for w_j, r_j in zip(w, r, strict=True))
                for j, weight in support:
                    W[i, j] += weight
                if with_gradient:
                    # G_i = Σ_j w_ij {G_{t-1}^j + ∇log q_{t-1|t} (r_ij − baseline)}: over j (the text: over i)
                    for j, weight in support:
                        G[i] += weight * gamma * G_prev[j]
                    slopes = kernel_slopes(family, moved, x)
                    scores = [score(kernel, *slopes, xi_prev[j]) for j, _ in support]
                    G[i] += score_term(w, scores, r, baseline)
        log_q = np.array([q.log_prob(x) for x in xi])
        elbos.append(np.mean(H - log_q))
        if with_gradient:
            # ∇log q_t · (H_t − log q_t − baseline) + G_t: the text of Proposition 1 has no entropy term
            slopes = marginal_slopes(moved)
            scores = [score(q, *slopes, x) for x in xi]
            r = H - log_q if entropy_term else H
            gradients.append(score_term([1.0 / N] * N, scores, r, baseline) + sum(G[i] for i in range(N)) / N)
        Hs.append(H)
        Gs.append(G)
        Ws.append(W)
    samples = [np.array(xi) for xi in path.xi]
    if not with_gradient:
        return Run(np.array(elbos), None, samples, Hs, None, Ws)
    return Run(np.array(elbos), np.array(gradients), samples, Hs, Gs, Ws)


# ---- moment-corrected weights --------------------------------------------------------------------


class Moments(NamedTuple):
    """ridge is added to ΦᵀΦ/N on all but the constant feature; cap is κ; cross adds z_k z_l, k < l."""

    ridge: float = 0.0
    cap: float = 0.5
    cross: bool = False


def features(z: ndarray, cross: bool) -> ndarray:
    """φ(z) = (1, z, (z² − 1)/√2, and optionally z_k z_l for k < l)."""
    d = len(z)
    products = [z[k] * z[m] for k in range(d) for m in range(k + 1, d)] if cross else []
    return np.concatenate([[1.0], z, (z**2 - 1.0) / np.sqrt(2.0), products])


def expected_features(frame: Normal, eta: tuple[ndarray, ndarray], cross: bool) -> ndarray:
    """E[φ(z(X))] for X Gaussian with natural parameters η; z(x) = Lᵀ(x − μ) with the μ, L of `frame`."""
    cov = np.linalg.inv(eta[1])
    mean_z = frame.factor.T @ (cov @ eta[0] - frame.mean)
    cov_z = frame.factor.T @ cov @ frame.factor
    second = cov_z + np.outer(mean_z, mean_z)
    d = len(mean_z)
    products = [second[k, m] for k in range(d) for m in range(k + 1, d)] if cross else []
    return np.concatenate([[1.0], mean_z, (np.diag(second) - 1.0) / np.sqrt(2.0), products])


def correct_row(w: ndarray, Phi: ndarray, E: ndarray, moments: Moments) -> tuple[ndarray, float]:
    """One row of W̃ = W + α (E − WΦ)(ΦᵀΦ/N + ridge)⁻¹Φᵀ/N, and its α = min(1, κ/‖row‖²).

    ‖row‖ is that of the fully corrected row (α = 1): what noise in the integrand would be multiplied by.
    """
    row = _regression(Phi, moments).T @ (E - w @ Phi)
    alpha = min(1.0, moments.cap / float((w + row) @ (w + row)))
    return w + alpha * row, alpha


def _regression(Phi: ndarray, moments: Moments) -> ndarray:
    """(ΦᵀΦ/N + ridge)⁻¹Φᵀ/N, of shape [K, N]: takes N values to their K regression coefficients β."""
    N, K = Phi.shape
    gram = Phi.T @ Phi / N + moments.ridge * np.diag([0.0] + [1.0] * (K - 1))
    return np.linalg.solve(gram, Phi.T / N)


def split_gradient(
    w, scores, r: ndarray, Phi: ndarray, alpha: float, d_E: ndarray, moments: Moments, baseline: str
) -> ndarray:
    """∇E_q[r]: the exact gradient of α E_q[φ]·β, with α and β held, plus a score term for r − α φ·β.

    The residual r − α φ·β is weighted by the plain w, and the baseline is applied to it. d_E: ∂E/∂λ, [P, K].
    """
    beta = _regression(Phi, moments) @ r
    residual = r - alpha * Phi @ beta
    return alpha * d_E @ beta + score_term(w, scores, residual, baseline)


def _feature_matrix(q: Normal, xi: list[ndarray], moments: Moments) -> ndarray:
    return np.array([features(q.factor.T @ (x - q.mean), moments.cross) for x in xi])


def moment_corrected(
    model,
    family: Family,
    lam: ndarray,
    ys: Sequence[ndarray],
    draws: Sequence[ndarray],
    baseline: str = "leave-one-out",
    depth: int | None = None,
    gamma: float = 1.0,
    ridge: float = 0.0,
    cap: float = 0.5,
    cross: bool = False,
    outer: bool = True,
) -> Run:
    """`recursive_score` over all pairs, with moment-corrected weights.

    Inner, with r_ij as in `recursive_score`, Φ the features of the ξ_{t-1} standardized by q_{t-1}, and E_i
    their mean under q_{t-1|t}(ξ_t^i, ·): H_i = Σ_j W̃_ij r_ij and
    G_i = Σ_j W̃_ij γ G_{t-1}^j + α_i ∇E_i·β_i + Σ_j w_ij s_ij (ρ_ij − baseline), ρ_ij = r_ij − α_i φ_j·β_i.
    Outer, with r_i = H_i − log q_t(ξ_t^i), w = 1/N, features of ξ_t standardized by q_t, E = (1, 0, …, 0):
    the ELBO is Σ_i W̃_i r_i and its gradient Σ_i W̃_i G_i + α ∇E·β + Σ_i w s_i (ρ_i − baseline).
    The frame in which the features are taken is a constant of ∇E. outer=False leaves the outer expectation
    as in `recursive_score`. W of the result holds the inner W̃.
    """
    if _moves(lam):
        raise ValueError("moment-corrected weights are defined here for one λ")
    moments = Moments(ridge, cap, cross)
    path = forward(family, lam, ys, draws)
    elbos, gradients, Hs, Gs, Ws = [], [], [], [], []
    for t, y in enumerate(ys):
        q, xi, N = path.q[t], path.xi[t], len(path.xi[t])
        moved = sensitivities(family, path, ys, t, depth)
        P = len(path.lams[t])
        if t == 0:
            H = np.array([model.log_prior(x) + model.log_emission(x, y) for x in xi])
            G, W = np.zeros((N, P)), None
        else:
            q_prev, xi_prev, H_prev, G_prev = path.q[t - 1], path.xi[t - 1], Hs[-1], Gs[-1]
            Phi = _feature_matrix(q_prev, xi_prev, moments)
            H, G, W = np.zeros(N), np.zeros((N, P)), np.zeros((N, len(xi_prev)))
            for i, x in enumerate(xi):
                kernel = backward_kernel(family, path.lams[t], q_prev, x)
                w = normalized_weights(kernel, q_prev, xi_prev)
                E = expected_features(q_prev, (kernel.eta1, kernel.precision), cross)
                W[i], alpha = correct_row(w, Phi, E, moments)
                r = np.zeros(len(xi_prev))
                for j, x_prev in enumerate(xi_prev):
                    carried = gamma * H_prev[j] + (1.0 - gamma) * q_prev.log_prob(x_prev)
                    r[j] = carried + _f(model, kernel, x_prev, x, y)
                H[i] = sum(W[i, j] * r[j] for j in range(len(r)))

                def kernel_expectation(m: Moved, x=x, q_prev=q_prev) -> ndarray:
                    eta1, precision = family.potential(m.lam, x)
                    return expected_features(q_prev, (m.eta_prev[0] + eta1, m.eta_prev[1] + precision), cross)

                d_E = _sum_stencil(moved, kernel_expectation)
                slopes = kernel_slopes(family, moved, x)
                scores = [score(kernel, *slopes, x_prev) for x_prev in xi_prev]
                for j in range(len(xi_prev)):
                    G[i] += W[i, j] * gamma * G_prev[j]
                G[i] += split_gradient(w, scores, r, Phi, alpha, d_E, moments, baseline)
        r = H - np.array([q.log_prob(x) for x in xi])
        slopes = marginal_slopes(moved)
        scores = [score(q, *slopes, x) for x in xi]
        w = np.full(N, 1.0 / N)
        if outer:
            Phi = _feature_matrix(q, xi, moments)
            E = expected_features(q, (q.eta1, q.precision), cross)
            d_E = _sum_stencil(moved, lambda m, q=q: expected_features(q, m.eta, cross))
            corrected, alpha = correct_row(w, Phi, E, moments)
            score_part = split_gradient(w, scores, r, Phi, alpha, d_E, moments, baseline)
        else:
            corrected, score_part = w, score_term(w, scores, r, baseline)
        elbos.append(sum(corrected[i] * r[i] for i in range(N)))
        gradients.append(score_part + sum(corrected[i] * G[i] for i in range(N)))
        Hs.append(H)
        Gs.append(G)
        Ws.append(W)
    return Run(np.array(elbos), np.array(gradients), [np.array(xi) for xi in path.xi], Hs, Gs, Ws)
