"""Gaussians, models, families, backward weights and their slopes in λ."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

LOG_2PI = float(np.log(2 * np.pi))
STEP = 1e-3
BASELINES = ("none", "same", "leave-one-out")


# ---- Gaussians -----------------------------------------------------------------------------------


class Normal:
    """exp(η1·x − ½ xᵀΛx − A(η)): a proper Gaussian. Λ = L Lᵀ, x = μ + L^{-T} z for a standard normal z."""

    def __init__(self, eta1: ndarray, precision: ndarray):
        self.eta1, self.precision = eta1, precision
        self.factor = np.linalg.cholesky(precision)
        self.cov = np.linalg.inv(precision)
        self.mean = self.cov @ eta1
        self.log_constant = np.log(np.diag(self.factor)).sum() - 0.5 * len(eta1) * LOG_2PI

    def log_prob(self, x: ndarray) -> float:
        residual = x - self.mean
        return self.log_constant - 0.5 * residual @ self.precision @ residual

    def sample(self, z: ndarray) -> ndarray:
        return self.mean + np.linalg.solve(self.factor.T, z)


def score(q: Normal, d_eta1: ndarray, d_precision: ndarray, x: ndarray) -> ndarray:
    """∇_λ log q(x), of shape [P], from ∂η1/∂λ of shape [P, d] and ∂Λ/∂λ of shape [P, d, d].

    ∂A/∂η1 = μ and ∂A/∂Λ = −½ (Σ + μμᵀ), so d log q(x) = dη1·(x − μ) − ½ tr(dΛ (xxᵀ − Σ − μμᵀ)).
    """
    second = np.outer(x, x) - q.cov - np.outer(q.mean, q.mean)
    return d_eta1 @ (x - q.mean) - 0.5 * d_precision.reshape(len(d_precision), -1) @ second.ravel()


def stencil(lam: ndarray, step: float = STEP) -> Iterator[tuple[int, float, ndarray]]:
    """Five-point differences: ∂f/∂λ_p = Σ c f(λ'), over the triples (p, c, λ')."""
    for p in range(len(lam)):
        for offset, coefficient in ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0)):
            moved = np.array(lam, dtype=float)
            moved[p] += offset * step
            yield p, coefficient / (12.0 * step), moved


def derivative(f: Callable[[ndarray], Any], lam: ndarray, step: float = STEP) -> ndarray:
    """∂f/∂λ, of shape [P, *shape of f]."""
    total = [0.0] * len(lam)
    for p, coefficient, moved in stencil(lam, step):
        total[p] = total[p] + coefficient * np.asarray(f(moved))
    return np.array(total)


# ---- p -------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """p, as three log densities."""

    log_prior: Callable[[ndarray], float]
    log_transition: Callable[[ndarray, ndarray], float]
    log_emission: Callable[[ndarray, ndarray], float]


class LinearGaussian:
    """X_0 ~ N(mean0, Q0), X_t = A X_{t-1} + N(0, Q), Y_t = B X_t + N(0, R), all dense."""

    def __init__(self, A: ndarray, B: ndarray, Q: ndarray, R: ndarray, mean0: ndarray, Q0: ndarray):
        self.A, self.B, self.Q, self.R, self.mean0, self.Q0 = A, B, Q, R, mean0, Q0
        self._prior, self._transition, self._emission = (_centered(cov) for cov in (Q0, Q, R))

    def log_prior(self, x: ndarray) -> float:
        return self._prior(x - self.mean0)

    def log_transition(self, x_prev: ndarray, x: ndarray) -> float:
        return self._transition(x - self.A @ x_prev)

    def log_emission(self, x: ndarray, y: ndarray) -> float:
        return self._emission(y - self.B @ x)


def _centered(cov: ndarray) -> Callable[[ndarray], float]:
    """log N(·; 0, cov)."""
    precision = np.linalg.inv(cov)
    constant = -0.5 * (np.linalg.slogdet(cov)[1] + len(cov) * LOG_2PI)
    return lambda residual: constant - 0.5 * residual @ precision @ residual


# ---- q -------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """q^λ as four functions of λ.

    a_0 = init(λ, y_0), a_t = update(λ, a_{t-1}, y_t), η_t = marginal(λ, a_t), η̃_t(x) = potential(λ, x).
    """

    init: Callable[[ndarray, ndarray], Any]
    update: Callable[[ndarray, Any, ndarray], Any]
    marginal: Callable[[ndarray, Any], tuple[ndarray, ndarray]]
    potential: Callable[[ndarray, ndarray], tuple[ndarray, ndarray]]


def kalman_parameters(lam: ndarray, dim: int, obs_dim: int) -> LinearGaussian:
    """The model whose smoothing law is q^λ.

    The order of λ: diagonal of A [d]; B, row by row [dy d]; log standard deviations of Q [d] and of R [dy];
    mean0 [d]; log standard deviations of Q0 [d]. That is 4 d + dy d + dy numbers.
    """
    sizes = [dim, obs_dim * dim, dim, obs_dim, dim, dim]
    if len(lam) != sum(sizes):
        raise ValueError(f"λ has {len(lam)} entries, not {sum(sizes)}")
    A, B, log_q, log_r, mean0, log_q0 = np.split(np.asarray(lam, dtype=float), np.cumsum(sizes)[:-1])
    Q, R, Q0 = (np.diag(np.exp(2.0 * log_std)) for log_std in (log_q, log_r, log_q0))
    return LinearGaussian(np.diag(A), B.reshape(obs_dim, dim), Q, R, mean0, Q0)


def kalman_family(dim: int, obs_dim: int) -> Family:
    """The Kalman smoothing law; λ as in `kalman_parameters`; a_t = (mean, covariance) of the filter."""

    def correct(own: LinearGaussian, mean: ndarray, cov: ndarray, y: ndarray) -> tuple[ndarray, ndarray]:
        gain = cov @ own.B.T @ np.linalg.inv(own.B @ cov @ own.B.T + own.R)
        cov = cov - gain @ own.B @ cov
        return mean + gain @ (y - own.B @ mean), 0.5 * (cov + cov.T)

    def init(lam, y):
        own = kalman_parameters(lam, dim, obs_dim)
        return correct(own, own.mean0, own.Q0, y)

    def update(lam, a, y):
        own = kalman_parameters(lam, dim, obs_dim)
        mean, cov = a
        # Kalman predict with covariance AΣAᵀ + Q (the appendix on conjugacy has Q only).
        return correct(own, own.A @ mean, own.A @ cov @ own.A.T + own.Q, y)

    def marginal(lam, a):
        mean, cov = a
        precision = np.linalg.inv(cov)
        return precision @ mean, precision

    def potential(lam, x):
        # ψ_t(·, x) = N(x; A ·, Q), as a function of x_{t-1}. Q is diagonal.
        own = kalman_parameters(lam, dim, obs_dim)
        scaled = own.A.T / np.diag(own.Q)
        return scaled @ x, scaled @ own.A

    return Family(init, update, marginal, potential)


# ---- the forward pass: a_t, q_t, ξ_t -------------------------------------------------------------


class Forward(NamedTuple):
    lams: list[ndarray]
    states: list[Any]
    q: list[Normal]
    xi: list[list[ndarray]]


def forward(family: Family, lam, ys: Sequence[ndarray], draws: Sequence[ndarray]) -> Forward:
    """a_t = update(λ_t, a_{t-1}, y_t), q_t = marginal(λ_t, a_t), ξ_t^i = μ_t + L_t^{-T} z_t^i.

    `lam` is one λ, or the list of the λ_t: a_{t-1}, q_{t-1} and ξ_{t-1} are then those made under λ_{t-1}.
    """
    lams = [np.asarray(one, dtype=float) for one in (lam if _moves(lam) else [lam] * len(ys))]
    if not len(lams) == len(ys) == len(draws):
        raise ValueError(f"{len(lams)} parameters, {len(ys)} observations, {len(draws)} sets of draws")
    states, q, xi = [], [], []
    for t, y in enumerate(ys):
        states.append(family.init(lams[t], y) if t == 0 else family.update(lams[t], states[-1], y))
        q.append(Normal(*family.marginal(lams[t], states[-1])))
        xi.append([q[-1].sample(z) for z in draws[t]])
    return Forward(lams, states, q, xi)


def _moves(lam) -> bool:
    return np.ndim(lam[0]) > 0


def backward_kernel(family: Family, lam: ndarray, q_prev: Normal, x: ndarray) -> Normal:
    """q_{t-1|t}(x, ·) ∝ q_{t-1} ψ_t(·, x): natural parameters add, eq. (def:varbackwd)."""
    eta1, precision = family.potential(lam, x)
    return Normal(q_prev.eta1 + eta1, q_prev.precision + precision)


def normalized_weights(kernel: Normal, q_prev: Normal, xi_prev: list[ndarray]) -> ndarray:
    """w_ij of one row i, eq. (backwardweights:online): the two densities, their ratio, its sum."""
    log_ratio = np.array([kernel.log_prob(x) - q_prev.log_prob(x) for x in xi_prev])
    ratio = np.exp(log_ratio - log_ratio.max())
    return ratio / ratio.sum()


def _support(weights, t: int, i: int, kernel: Normal, q_prev: Normal, xi_prev: list[ndarray]):
    """The pairs (j, weight) over which the sums of particle i run."""
    if isinstance(weights, str):
        if weights != "all":
            raise ValueError(f'weights are "all" or a list of index arrays, not {weights!r}')
        return list(enumerate(normalized_weights(kernel, q_prev, xi_prev)))
    row = weights[t][i]
    return [(int(j), 1.0 / len(row)) for j in row]


# ---- dependence on λ -----------------------------------------------------------------------------


class Moved(NamedTuple):
    """One point of the stencil at time t: λ', and η_{t-1}, η_t there."""

    p: int
    coefficient: float
    lam: ndarray
    eta_prev: tuple[ndarray, ndarray] | None
    eta: tuple[ndarray, ndarray]


def sensitivities(family: Family, path: Forward, ys, t: int, depth: int | None) -> list[Moved]:
    """η_{t-1} and η_t at every λ' of the stencil around λ.

    depth=None replays all updates from t = 0 under λ'. With depth=Δ the states a_s, s ≤ t − Δ, are constants,
    in η_{t-1} and in η_t alike; the maps marginal(λ', ·) and potential(λ', ·) are always differentiated.
    """
    moved = []
    for p, coefficient, lam in stencil(path.lams[t]):
        states = []
        for s in range(t + 1):
            if depth is not None and s <= t - depth:
                states.append(path.states[s])
            else:
                states.append(family.init(lam, ys[0]) if s == 0 else family.update(lam, states[-1], ys[s]))
        eta_prev = family.marginal(lam, states[t - 1]) if t > 0 else None
        moved.append(Moved(p, coefficient, lam, eta_prev, family.marginal(lam, states[t])))
    return moved


def _sum_stencil(moved: list[Moved], value: Callable[[Moved], Any]) -> ndarray:
    total = [0.0] * (1 + max(m.p for m in moved))
    for m in moved:
        total[m.p] = total[m.p] + m.coefficient * np.asarray(value(m))
    return np.array(total)


def marginal_slopes(moved: list[Moved]) -> tuple[ndarray, ndarray]:
    """∂η_t/∂λ as (∂η1 [P, d], ∂Λ [P, d, d])."""
    return _sum_stencil(moved, lambda m: m.eta[0]), _sum_stencil(moved, lambda m: m.eta[1])


def kernel_slopes(family: Family, moved: list[Moved], x: ndarray) -> tuple[ndarray, ndarray]:
    """∂(η_{t-1} + η̃_t(x))/∂λ as (∂η1 [P, d], ∂Λ [P, d, d])."""
    potentials = {id(m): family.potential(m.lam, x) for m in moved}
    return (
        _sum_stencil(moved, lambda m: m.eta_prev[0] + potentials[id(m)][0]),
        _sum_stencil(moved, lambda m: m.eta_prev[1] + potentials[id(m)][1]),
    )


# ---- control variates ----------------------------------------------------------------------------


def pairwise_factor(w) -> float:
    """min(1/(1 − Σ_k w_k²), 2)."""
    lost = sum(one * one for one in w)
    return min(1.0 / (1.0 - lost), 2.0) if lost < 1.0 else 2.0


def score_term(w, scores, r, baseline: str) -> ndarray:
    """An estimate of E[∇log q · r] from weighted draws: Σ_j w_j s_j (r_j − baseline).

    "none": no baseline. "same": the paper's, r̄ = Σ_k w_k r_k of the same draws.
    "leave-one-out": Σ_j w_j s_j (r_j − r̄) / (1 − Σ_k w_k²), the last factor at most 2. Why this is
    leave-one-out: summing over pairs, ½ Σ_{j≠k} w_j w_k (s_j − s_k)(r_j − r_k) = Σ_j w_j s_j (r_j − r̄) since
    Σ w = 1, and the pairs j ≠ k have the mass 1 − Σ w²; dividing by it is the U-statistic. With w = 1/M, the
    mean of the others is b_j = (M r̄ − r_j)/(M − 1), so that
    r_j − b_j = (M r_j − M r̄)/(M − 1) = (r_j − r̄)/(1 − 1/M), and Σ_k w_k² = 1/M. ∎
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline is one of {BASELINES}, not {baseline!r}")
    center = 0.0 if baseline == "none" else sum(w_j * r_j for w_j, r_j in zip(w, r, strict=True))
    factor = pairwise_factor(w) if baseline == "leave-one-out" else 1.0
    total = 0.0
    for w_j, s_j, r_j in zip(w, scores, r, strict=True):
        total = total + w_j * s_j * (r_j - center)
    return factor * total
