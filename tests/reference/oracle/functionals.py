"""Additive functionals, and the gradient in θ."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .parts import STEP, Family, _support, backward_kernel, forward, stencil
from .recursion import Moments, _feature_matrix, correct_row, expected_features

# ---- additive functionals and the model's own parameters -----------------------------------------


class Functional(NamedTuple):
    """T[t] [N, *shape of h] at the particles, and means over i: estimates of E_{q_{0:t}}[h_0 + Σ h]."""

    T: list[ndarray]
    means: ndarray


def _additive(family, lam, ys, draws, h0, h, weights, moments: Moments | None, outer: bool) -> Functional:
    """h0(x) and h(t, x_prev, x)."""
    path = forward(family, lam, ys, draws)
    Ts, means = [], []
    for t in range(len(ys)):
        if t == 0:
            T = [np.asarray(h0(x), dtype=float) for x in path.xi[0]]
        else:
            q_prev, xi_prev, T_prev, T = path.q[t - 1], path.xi[t - 1], Ts[-1], []
            Phi = _feature_matrix(q_prev, xi_prev, moments) if moments else None
            for i, x in enumerate(path.xi[t]):
                kernel = backward_kernel(family, path.lams[t], q_prev, x)
                support = _support(weights, t, i, kernel, q_prev, xi_prev)
                if moments:
                    w = np.array([weight for _, weight in support])
                    E = expected_features(q_prev, (kernel.eta1, kernel.precision), moments.cross)
                    support = list(enumerate(correct_row(w, Phi, E, moments)[0]))
                # T_t^i = Σ_j w_ij (T_{t-1}^j + h(ξ_{t-1}^j, ξ_t^i))
                T.append(sum(w_j * (T_prev[j] + np.asarray(h(t, xi_prev[j], x))) for j, w_j in support))
        Ts.append(T)
        w = np.full(len(T), 1.0 / len(T))
        if moments and outer:
            q = path.q[t]
            E = expected_features(q, (q.eta1, q.precision), moments.cross)
            w = correct_row(w, _feature_matrix(q, path.xi[t], moments), E, moments)[0]
        means.append(sum(w_i * T_i for w_i, T_i in zip(w, T, strict=True)))
    return Functional([np.array(T) for T in Ts], np.array(means))


def additive_functional(
    family: Family,
    lam,
    ys: Sequence[ndarray],
    draws: Sequence[ndarray],
    h0: Callable[[ndarray], Any],
    h: Callable[[ndarray, ndarray], Any],
    weights="all",
    moments: Moments | None = None,
    outer: bool = True,
) -> Functional:
    """T_0^i = h0(ξ_0^i), T_t^i = Σ_j w_ij (T_{t-1}^j + h(ξ_{t-1}^j, ξ_t^i)); h0, h give scalars or arrays.

    `moments` puts W̃ in the place of w (all pairs only) and, unless outer=False, corrects the mean over i too.
    """
    if moments and not isinstance(weights, str):
        raise ValueError("moment-corrected weights need all pairs")
    return _additive(family, lam, ys, draws, h0, lambda t, a, b: h(a, b), weights, moments, outer)


def model_gradient(
    model_of: Callable[[ndarray], Any],
    theta: ndarray,
    family: Family,
    lam,
    ys: Sequence[ndarray],
    draws: Sequence[ndarray],
    weights="all",
    moments: Moments | None = None,
    outer: bool = True,
    step: float = STEP,
) -> Functional:
    """S_t^i = Σ_j w_ij (S_{t-1}^j + ∇_θ log ℓ_t(ξ_{t-1}^j, ξ_t^i)), S_0^i = ∇_θ log ℓ_0; `means` is ∇_θ L_t.

    model_of(θ) is p^θ for a flat θ; ∇_θ is by five-point differences.
    """
    if moments and not isinstance(weights, str):
        raise ValueError("moment-corrected weights need all pairs")
    points = [(p, c, model_of(moved)) for p, c, moved in stencil(np.asarray(theta, dtype=float), step)]

    def slope(log_l: Callable[[Any], float]) -> ndarray:
        total = np.zeros(len(theta))
        for p, c, model in points:
            total[p] += c * log_l(model)
        return total

    def h0(x):
        return slope(lambda model: model.log_prior(x) + model.log_emission(x, ys[0]))

    def h(t, x_prev, x):
        return slope(lambda model: model.log_transition(x_prev, x) + model.log_emission(x, ys[t]))

    return _additive(family, lam, ys, draws, h0, h, weights, moments, outer)
