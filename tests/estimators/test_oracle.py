"""Is the oracle itself right? Exact values where they exist, stated error rates where it is random."""

import numpy as np
import pytest
from scipy import stats

import oracle

NO_CAP = float("inf")


def model_of(theta, dim, obs_dim):
    return oracle.kalman_parameters(theta, dim, obs_dim)


def problem(dim, obs_dim, num_steps, seed=0):
    """A dense model p, a λ that is not its own, and observations from p."""
    rng = np.random.default_rng(seed)

    def spd(n, scale):
        root = rng.normal(size=(n, n))
        return scale * (np.eye(n) + 0.3 * root @ root.T / n)

    A = np.diag(rng.uniform(0.6, 0.9, dim)) + 0.1 * rng.normal(size=(dim, dim)) * (dim > 1)
    B = np.eye(obs_dim, dim) + 0.3 * rng.normal(size=(obs_dim, dim))
    p = oracle.LinearGaussian(A, B, spd(dim, 0.4), spd(obs_dim, 0.5), rng.normal(size=dim), spd(dim, 0.8))
    x, ys = p.mean0 + np.linalg.cholesky(p.Q0) @ rng.normal(size=dim), []
    for t in range(num_steps):
        x = x if t == 0 else A @ x + np.linalg.cholesky(p.Q) @ rng.normal(size=dim)
        ys.append(B @ x + np.linalg.cholesky(p.R) @ rng.normal(size=obs_dim))
    lam = np.concatenate(
        [
            rng.uniform(0.4, 0.8, dim),
            (np.eye(obs_dim, dim) + 0.2 * rng.normal(size=(obs_dim, dim))).ravel(),
            rng.uniform(-0.7, -0.2, dim),
            rng.uniform(-0.5, 0.1, obs_dim),
            0.3 * rng.normal(size=dim),
            rng.uniform(-0.3, 0.3, dim),
        ]
    )
    return p, oracle.kalman_family(dim, obs_dim), lam, ys


def normal_draws(num_steps, num_particles, dim, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(num_particles, dim)) for _ in range(num_steps)]


def t_critical(num_runs, num_comparisons, error_rate):
    """Two-sided Student quantile; Bonferroni over the comparisons."""
    return stats.t.ppf(1.0 - error_rate / (2 * num_comparisons), num_runs - 1)


def t_statistics(runs, exact):
    runs = np.array(runs)
    return (runs.mean(0) - exact) / (runs.std(0, ddof=1) / np.sqrt(len(runs)))


# ---- exact pieces --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_scores_are_differences_of_the_densities(depth):
    """The hand-derived ∇log q_{t-1|t} and ∇log q_t against differences of the log densities themselves."""
    _, family, lam, ys = problem(2, 2, 4)
    draws = normal_draws(4, 2, 2, seed=1)
    path, t = oracle.forward(family, lam, ys, draws), 3

    def states(moved):
        made = []
        for s in range(t + 1):
            if depth is not None and s <= t - depth:
                made.append(path.states[s])
            else:
                made.append(family.init(moved, ys[0]) if s == 0 else family.update(moved, made[-1], ys[s]))
        return made

    def log_marginal(moved, x):
        return oracle.Normal(*family.marginal(moved, states(moved)[t])).log_prob(x)

    def log_kernel(moved, x, x_prev):
        q_prev = oracle.Normal(*family.marginal(moved, states(moved)[t - 1]))
        return oracle.backward_kernel(family, moved, q_prev, x).log_prob(x_prev)

    def difference(f):
        steps = 1e-6 * np.eye(len(lam))
        return np.array([(f(lam + step) - f(lam - step)) / 2e-6 for step in steps])

    moved = oracle.sensitivities(family, path, ys, t, depth)
    x, x_prev = path.xi[t][0], path.xi[t - 1][1]
    kernel = oracle.backward_kernel(family, lam, path.q[t - 1], x)
    marginal_score = oracle.score(path.q[t], *oracle.marginal_slopes(moved), x)
    kernel_score = oracle.score(kernel, *oracle.kernel_slopes(family, moved, x), x_prev)
    np.testing.assert_allclose(marginal_score, difference(lambda m: log_marginal(m, x)), atol=1e-7)
    np.testing.assert_allclose(kernel_score, difference(lambda m: log_kernel(m, x, x_prev)), atol=1e-7)


def test_dense_elbo_of_the_true_posterior_is_the_log_likelihood():
    """Where q is p's own smoothing law, the bound is tight and stationary."""
    _, family, lam, ys = problem(2, 3, 4)
    own = oracle.kalman_parameters(lam, 2, 3)
    elbo, gradient = oracle.dense_elbo(own, family, lam, ys)
    assert elbo == pytest.approx(oracle.dense_log_likelihood(own, ys), abs=1e-10)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_dense_elbo_is_a_lower_bound():
    p, family, lam, ys = problem(2, 2, 4)
    assert oracle.dense_elbo(p, family, lam, ys)[0] < oracle.dense_log_likelihood(p, ys)


def test_dense_renewal_with_gamma_one_is_the_elbo():
    """Two derivations of one number: KL of dense joints, and the sum of block terms."""
    p, family, lam, ys = problem(2, 2, 4)
    elbo, gradient = oracle.dense_elbo(p, family, lam, ys)
    value, slope = oracle.dense_renewal(p, family, lam, ys, 1.0)
    assert value == pytest.approx(elbo, abs=1e-10)
    np.testing.assert_allclose(slope, gradient, atol=1e-8)


def test_dense_law_refuses_kernels_that_are_not_affine():
    _, family, lam, ys = problem(1, 1, 2)
    bent = family._replace(potential=lambda lam, x: (np.sin(x), np.eye(1)))
    with pytest.raises(ValueError, match="not affine"):
        oracle.dense_law(bent, lam, ys)


# ---- the recursion -------------------------------------------------------------------------------


def quantile_draws(num_steps, num_particles):
    """The N mid-quantiles of N(0, 1), scaled to unit variance: a quadrature without noise (d=1)."""
    z = stats.norm.ppf((np.arange(num_particles) + 0.5) / num_particles)
    return [(z / np.sqrt(np.mean(z**2)))[:, None]] * num_steps


def gradient_limit(p, family, lam, ys, **options):
    """The gradient at the last t for 20, 40, 80 quantiles, extrapolated geometrically (Aitken) to N = ∞."""
    coarse, middle, fine = (
        oracle.recursive_score(p, family, lam, ys, quantile_draws(len(ys), N), **options).gradients[-1]
        for N in (20, 40, 80)
    )
    first, second = middle - coarse, fine - middle
    ratio = first @ second / (first @ first)
    return fine + ratio / (1.0 - ratio) * second


@pytest.mark.parametrize("baseline", oracle.BASELINES)
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_recursion_converges_to_the_dense_gradient_on_quantiles(baseline, gamma):
    """Proposition 1 as a quadrature, T=3, d=1: the limit is the exact gradient.

    The extrapolation itself is good to 1–2 %; a missing entropy term would be off by 36 %.
    """
    p, family, lam, ys = problem(1, 1, 3)
    _, gradient = oracle.dense_renewal(p, family, lam, ys, gamma)
    limit = gradient_limit(p, family, lam, ys, baseline=baseline, gamma=gamma)
    assert np.linalg.norm(limit - gradient) < 0.03 * np.linalg.norm(gradient)


def test_quantile_limit_notices_a_missing_entropy_term():
    p, family, lam, ys = problem(1, 1, 3)
    _, gradient = oracle.dense_elbo(p, family, lam, ys)
    limit = gradient_limit(p, family, lam, ys, entropy_term=False)
    assert np.linalg.norm(limit - gradient) > 0.3 * np.linalg.norm(gradient)


@pytest.mark.slow
def test_recursion_approaches_the_dense_elbo_and_its_gradient():
    """Random draws, T=3, d=1, N=100: ELBO and 6 gradient entries at the last t, over 10 seeds.

    Fails with probability 1e-3 if the estimator has the exact mean (Bonferroni over 7 t-statistics with 9
    degrees of freedom).
    """
    p, family, lam, ys = problem(1, 1, 3)
    elbo, gradient = oracle.dense_elbo(p, family, lam, ys)
    runs = []
    for seed in range(10):
        run = oracle.recursive_score(p, family, lam, ys, normal_draws(3, 100, 1, 100 + seed))
        runs.append(np.concatenate([run.elbos[-1:], run.gradients[-1]]))
    t = t_statistics(runs, np.concatenate([[elbo], gradient]))
    assert np.all(np.abs(t) < t_critical(10, 7, 1e-3)), t


def test_single_step_gradient_needs_the_entropy_term():
    """T=1: with −log q_t the mean is exact (error rate 1e-3), without it an entry is off by over 10 SE."""
    p, family, lam, ys = problem(1, 1, 1)
    _, gradient = oracle.dense_elbo(p, family, lam, ys)
    # Only B, log R, mean0 and log Q0 move q_0; the other entries are zero in both.
    moves = np.abs(gradient) > 1e-9
    with_term, without = [], []
    for seed in range(20):
        draws = normal_draws(1, 1000, 1, 200 + seed)
        with_term.append(oracle.recursive_score(p, family, lam, ys, draws).gradients[0][moves])
        run = oracle.recursive_score(p, family, lam, ys, draws, entropy_term=False)
        without.append(run.gradients[0][moves])
    assert np.all(np.abs(t_statistics(with_term, gradient[moves])) < t_critical(20, moves.sum(), 1e-3))
    assert np.abs(t_statistics(without, gradient[moves])).max() > 10.0


def test_uniform_weights_make_the_pairwise_form_leave_one_out():
    rng = np.random.default_rng(0)
    for M in (2, 3, 7):
        scores, r = rng.normal(size=(M, 4)), rng.normal(size=M)
        textbook = sum(scores[j] * (r[j] - np.delete(r, j).mean()) for j in range(M)) / M
        pairwise = oracle.score_term([1 / M] * M, scores, r, "leave-one-out")
        np.testing.assert_allclose(pairwise, textbook, atol=1e-14)


def test_pairwise_factor_is_guarded():
    assert oracle.pairwise_factor([1.0, 0.0]) == 2.0
    assert oracle.pairwise_factor([0.9, 0.1]) == 2.0
    assert oracle.pairwise_factor([0.25] * 4) == pytest.approx(4 / 3)


def test_sampled_indices_and_baselines_by_hand():
    """M=2, T=2: H, G and the gradient of every baseline, written out."""
    p, family, lam, ys = problem(1, 1, 2)
    draws = normal_draws(2, 3, 1, seed=3)
    indices = [None, np.array([[0, 2], [1, 1], [2, 1]])]
    path = oracle.forward(family, lam, ys, draws)
    moved = oracle.sensitivities(family, path, ys, 1, None)
    for baseline in oracle.BASELINES:
        run = oracle.recursive_score(p, family, lam, ys, draws, weights=indices, baseline=baseline)
        H0 = [p.log_prior(x) + p.log_emission(x, ys[0]) for x in path.xi[0]]
        H, G, outer = [], [], []
        for i, x in enumerate(path.xi[1]):
            kernel = oracle.backward_kernel(family, lam, path.q[0], x)
            slopes = oracle.kernel_slopes(family, moved, x)
            r, s = [], []
            for j in indices[1][i]:
                x_prev = path.xi[0][j]
                log_l = p.log_transition(x_prev, x) + p.log_emission(x, ys[1])
                r.append(H0[j] + log_l - kernel.log_prob(x_prev))
                s.append(oracle.score(kernel, *slopes, x_prev))
            H.append((r[0] + r[1]) / 2)
            b = {"none": (0.0, 0.0), "same": (H[-1], H[-1]), "leave-one-out": (r[1], r[0])}[baseline]
            G.append((s[0] * (r[0] - b[0]) + s[1] * (r[1] - b[1])) / 2)
            outer.append(oracle.score(path.q[1], *oracle.marginal_slopes(moved), x))
        r = np.array(H) - [path.q[1].log_prob(x) for x in path.xi[1]]
        without = [np.delete(r, i).mean() for i in range(3)]
        others = {"none": [0.0] * 3, "same": [r.mean()] * 3, "leave-one-out": without}[baseline]
        gradient = sum(outer[i] * (r[i] - others[i]) + G[i] for i in range(3)) / 3
        np.testing.assert_allclose(run.H[1], H, atol=1e-12)
        np.testing.assert_allclose(run.G[1], G, atol=1e-12)
        np.testing.assert_allclose(run.gradients[1], gradient, atol=1e-12)


def test_uniform_weights_over_all_pairs_are_every_index_once():
    """With A = 0 the potential is flat and w = 1/N: all pairs, or the indices 0…N−1, give the same."""
    p, family, lam, ys = problem(1, 1, 3)
    lam = np.concatenate([[0.0], lam[1:]])
    draws, N = normal_draws(3, 5, 1, seed=4), 5
    indices = [np.tile(np.arange(N), (N, 1))] * 3
    every = oracle.recursive_score(p, family, lam, ys, draws)
    listed = oracle.recursive_score(p, family, lam, ys, draws, weights=indices)
    np.testing.assert_allclose(every.W[2], 1 / N, atol=1e-12)
    np.testing.assert_allclose(listed.elbos, every.elbos, atol=1e-10)
    np.testing.assert_allclose(listed.gradients, every.gradients, atol=1e-9)


def test_a_depth_that_reaches_the_start_is_exact_and_a_short_one_is_not():
    p, family, lam, ys = problem(1, 1, 4)
    draws = normal_draws(4, 4, 1, seed=5)
    exact = oracle.recursive_score(p, family, lam, ys, draws)
    deep = oracle.recursive_score(p, family, lam, ys, draws, depth=4)
    short = oracle.recursive_score(p, family, lam, ys, draws, depth=1)
    np.testing.assert_array_equal(deep.gradients, exact.gradients)
    np.testing.assert_array_equal(short.elbos, exact.elbos)
    assert np.abs(short.gradients[-1] - exact.gradients[-1]).max() > 1e-3


def test_a_sequence_of_equal_parameters_is_one_parameter():
    p, family, lam, ys = problem(1, 1, 3)
    draws = normal_draws(3, 4, 1, seed=6)
    run = oracle.recursive_score(p, family, [lam] * 3, ys, draws)
    assert run.gradients is None
    np.testing.assert_array_equal(run.elbos, oracle.recursive_score(p, family, lam, ys, draws).elbos)
    moving = oracle.recursive_score(p, family, [lam, lam, lam + 0.1], ys, draws)
    np.testing.assert_array_equal(moving.elbos[:2], run.elbos[:2])
    assert moving.elbos[2] != run.elbos[2]


# ---- moment-corrected weights --------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
def test_moment_corrected_weights_are_exact_for_linear_gaussian(gamma):
    """H, r and G are quadratic: with all second-order features, no ridge and no cap, any N gives the dense
    values.

    This checks the recursions of H and G, the renewal objective and the entropy term at every t without any
    noise.
    """
    p, family, lam, ys = problem(2, 2, 4)
    run = oracle.moment_corrected(
        p, family, lam, ys, normal_draws(4, 9, 2, seed=7), gamma=gamma, cap=NO_CAP, cross=True
    )
    for t in range(4):
        elbo, gradient = oracle.dense_renewal(p, family, lam, ys[: t + 1], gamma)
        assert run.elbos[t] == pytest.approx(elbo, abs=1e-8)
        np.testing.assert_allclose(run.gradients[t], gradient, atol=1e-7)


def test_no_correction_under_a_cap_of_zero():
    """κ = 0 leaves the plain weights, and the recursion is `recursive_score`."""
    p, family, lam, ys = problem(2, 2, 3)
    draws = normal_draws(3, 8, 2, seed=8)
    for baseline in oracle.BASELINES:
        plain = oracle.recursive_score(p, family, lam, ys, draws, baseline=baseline, gamma=0.8)
        capped = oracle.moment_corrected(p, family, lam, ys, draws, baseline=baseline, gamma=0.8, cap=0.0)
        np.testing.assert_allclose(capped.elbos, plain.elbos, atol=1e-10)
        np.testing.assert_allclose(capped.gradients, plain.gradients, atol=1e-9)


def test_corrected_rows_have_the_exact_moments_unless_capped():
    rng = np.random.default_rng(9)
    Phi = np.array([oracle.features(z, True) for z in rng.normal(size=(30, 2))])
    w, E = rng.dirichlet(np.full(30, 0.2)), np.array([1.0, 0.3, -0.2, 0.1, -0.1, 0.05])
    free, alpha = oracle.correct_row(w, Phi, E, oracle.Moments(0.0, NO_CAP, True))
    assert alpha == 1.0
    np.testing.assert_allclose(free @ Phi, E, atol=1e-10)
    row = free - w
    kappa = 0.25 * free @ free
    capped, alpha = oracle.correct_row(w, Phi, E, oracle.Moments(0.0, kappa, True))
    assert alpha == pytest.approx(0.25)
    np.testing.assert_allclose(capped, w + 0.25 * row, atol=1e-12)


# ---- functionals and θ ---------------------------------------------------------------------------


def test_additive_functional_of_the_states_is_exact_with_corrected_weights():
    """Σ_s X_s has the dense law's smoothing means summed."""
    _, family, lam, ys = problem(2, 2, 4)
    draws = normal_draws(4, 9, 2, seed=10)
    result = oracle.additive_functional(
        family, lam, ys, draws, lambda x: x, lambda x_prev, x: x, moments=oracle.Moments(0.0, NO_CAP, True)
    )
    for t in range(4):
        expected = oracle.dense_law(family, lam, ys[: t + 1]).mean.reshape(-1, 2).sum(0)
        np.testing.assert_allclose(result.means[t], expected, atol=1e-9)


def test_additive_functional_of_the_elbo_terms_is_H():
    p, family, lam, ys = problem(1, 1, 2)
    draws = normal_draws(2, 6, 1, seed=11)
    path = oracle.forward(family, lam, ys, draws)

    def h(x_prev, x):
        kernel = oracle.backward_kernel(family, lam, path.q[0], x)
        return p.log_transition(x_prev, x) + p.log_emission(x, ys[1]) - kernel.log_prob(x_prev)

    indices = [None, np.random.default_rng(0).integers(6, size=(6, 2))]
    for weights in ("all", indices):
        result = oracle.additive_functional(
            family, lam, ys, draws, lambda x: p.log_prior(x) + p.log_emission(x, ys[0]), h, weights
        )
        run = oracle.recursive_score(p, family, lam, ys, draws, weights=weights)
        np.testing.assert_allclose(result.T[1], run.H[1], atol=1e-12)


def test_model_gradient_is_exact_with_corrected_weights():
    """∇_θ L_t = E_q[∇_θ log p]: the derivative of the dense ELBO in the model's parameters."""
    _, family, lam, ys = problem(2, 2, 3)
    theta = problem(2, 2, 3, seed=12)[2]
    draws = normal_draws(3, 9, 2, seed=13)
    result = oracle.model_gradient(
        lambda th: model_of(th, 2, 2),
        theta,
        family,
        lam,
        ys,
        draws,
        moments=oracle.Moments(0.0, NO_CAP, True),
    )
    for t in range(3):
        exact = oracle.derivative(
            lambda th, t=t: oracle.dense_value(model_of(th, 2, 2), family, lam, ys[: t + 1]), theta
        )
        np.testing.assert_allclose(result.means[t], exact, atol=1e-7)
