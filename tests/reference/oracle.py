"""A second, slow reading of the paper's equations: plain NumPy, float64, one particle at a time.

Nothing here is shared with the library and nothing is vectorized over particles. Wherever the text of the
paper is wrong the corrected equation is used, with a comment.

The model p is any object with `log_prior(x)`, `log_transition(x_prev, x)` and `log_emission(x, y)`: a `Model`
of three callables, or a `LinearGaussian`. The family q is any object with the four callables of `Family`,
functions of a flat parameter vector λ; `kalman_family` is a concrete one. Gaussians are pairs (η1, Λ) that
stand for exp(η1·x − ½ xᵀΛx).

Derivatives with respect to λ are five-point central differences of (η1, Λ), of expectations, or of the dense
ELBO; the score ∇log q follows from those of (η1, Λ) by hand (`score`). With a step of 1e-3 they are good to
about 1e-11.
"""

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
