"""Linear-Gaussian laws as single dense Gaussians, in NumPy: slow, and hard to get wrong.

p is a `LinearGaussian`, of which only the matrices are used. q is any family of the library, of which only the four
methods are used; its kernels are taken as affine, and read off at the origin and at the unit vectors.
"""

import equinox as eqx
import jax
import numpy as np

LOG_2PI = np.log(2 * np.pi)


def matrices(p):
    return (np.asarray(m, dtype=float) for m in p.dense())


def joint_states(p, T):
    """Mean [T d] and covariance [T d, T d] of X_{0:T-1} under p."""
    mean0, Q0, A, _, Q, _ = matrices(p)
    d = len(mean0)
    means, covs = [mean0], [Q0]
    for _ in range(T - 1):
        means.append(A @ means[-1])
        covs.append(A @ covs[-1] @ A.T + Q)
    cov = np.zeros((T, d, T, d))
    for s in range(T):
        cross = covs[s]
        for t in range(s, T):
            cov[t, :, s], cov[s, :, t] = cross, cross.T
            cross = A @ cross
    return np.concatenate(means), cov.reshape(T * d, T * d)


def observation(p, ys):
    """The observed values, and the matrix and noise covariance that give them from X_{0:T-1}."""
    _, _, _, B, _, R = matrices(p)
    ys = np.asarray(ys, dtype=float)
    seen = ~np.isnan(ys.ravel())
    eye = np.eye(len(ys))
    return ys.ravel()[seen], np.kron(eye, B)[seen], np.kron(eye, R)[np.ix_(seen, seen)]


def log_normal(residual, cov):
    return -0.5 * (residual @ np.linalg.solve(cov, residual) + np.linalg.slogdet(cov)[1] + len(residual) * LOG_2PI)


def log_likelihood(p, ys):
    y, H, R = observation(p, ys)
    mean, cov = joint_states(p, len(ys))
    return log_normal(y - H @ mean, H @ cov @ H.T + R)


def posterior(p, ys):
    """Means [T, d] and covariances [T, d, d] of X_t given all of ys."""
    y, H, R = observation(p, ys)
    mean, cov = joint_states(p, len(ys))
    gain = np.linalg.solve(H @ cov @ H.T + R, H @ cov).T
    return blocks(mean + gain @ (y - H @ mean), cov - gain @ H @ cov, len(ys))


def blocks(mean, cov, T):
    d = len(mean) // T
    return mean.reshape(T, d), np.array([cov.reshape(T, d, T, d)[t, :, t] for t in range(T)])


@eqx.filter_jit
def _read(p, q, ys):
    """η1 and precision of q_t, and of ψ_t(·, x) for x = 0 and the unit vectors, for each t."""
    states = [q.init(p)]
    for y in ys:
        states.append(q.update(p, states[-1], y))
    states = states[1:]
    points = jax.numpy.concatenate([np.zeros((1, q.state_dim)), np.eye(q.state_dim)])

    def natural(law):
        return law.eta1, law.precision

    marginals = [natural(q.marginal(state)) for state in states]
    kernels = [q.kernel(p, state) for state in states]
    return marginals, [jax.vmap(lambda x, kernel=kernel: natural(kernel.potential(x)))(points) for kernel in kernels]


def joint_family(p, q, ys):
    """Mean [T d] and covariance [T d, T d] of X_{0:T-1} under q."""
    marginals, potentials = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), _read(p, q, ys))
    T, d = len(ys), q.state_dim
    cov_last = np.linalg.inv(marginals[-1][1])
    mean = np.zeros((T, d))
    cov = np.zeros((T, d, T, d))
    mean[-1], cov[-1, :, -1] = cov_last @ marginals[-1][0], cov_last
    for t in range(T - 1, 0, -1):
        (eta1, precision), (tilde1, tilde2) = marginals[t - 1], potentials[t]
        V = np.linalg.inv(precision + tilde2[0])
        K = V @ (tilde1[1:] - tilde1[0]).T
        mean[t - 1] = V @ (eta1 + tilde1[0]) + K @ mean[t]
        cov[t - 1, :, t:] = np.einsum("ij,jsk->isk", K, cov[t, :, t:])
        cov[t:, :, t - 1] = np.moveaxis(cov[t - 1, :, t:], 0, -1)
        cov[t - 1, :, t - 1] = V + K @ cov[t, :, t] @ K.T
    return mean.ravel(), cov.reshape(T * d, T * d)


def elbo(p, q, ys):
    """E_q[log p(X, y) − log q(X)], from the dense law of X under each."""
    y, H, R = observation(p, ys)
    prior_mean, prior_cov = joint_states(p, len(ys))
    mean, cov = joint_family(p, q, ys)
    log_prior = log_normal(mean - prior_mean, prior_cov) - 0.5 * np.trace(np.linalg.solve(prior_cov, cov))
    log_emission = log_normal(y - H @ mean, R) - 0.5 * np.trace(np.linalg.solve(R, H @ cov @ H.T))
    entropy = 0.5 * (np.linalg.slogdet(cov)[1] + len(mean) * (1 + LOG_2PI))
    return log_prior + log_emission + entropy
