"""The ELBO and its gradient in closed form, for a linear-Gaussian p and a q with affine Gaussian kernels.

Then H_t is a quadratic form (paper, section on the linear-Gaussian model). In homogeneous coordinates v = (x − x̄_t, 1)
about a point x̄_t it is H_t(x) = −½ vᵀ M_t v + Σ_{s≤t} c_s. In such coordinates an affine map is a matrix, and q_{t-1|t}
takes v to a Gaussian with mean K_t v and covariance V_t, so that

    M_t = K_tᵀ M_{t-1} K_t + N_t,

where −½ vᵀ N_t v is the part of log m_t and log g_t that depends on x, and c_t the rest: log-normalizers, the entropy
of q_{t-1|t} and −½ tr(V_t (M_{t-1} + Aᵀ Q⁻¹ A)). The constants are summed at the end, in pairs, and not one by one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from backstream.estimators.base import OfflineEstimator, differentiate
from backstream.families.backward import AffineKernel, backward_chain, filter_states
from backstream.families.base import BackwardFamily
from backstream.families.kalman import Kalman
from backstream.laws.gaussian import LOG_2PI, inverse_root
from backstream.models.base import Inputs
from backstream.models.linear_gaussian import LinearGaussian


class Exact(OfflineEstimator):
    """The exact ELBO, and its exact gradient by automatic differentiation.

    For p a `LinearGaussian` and q a family with affine kernels (`Kalman`, `Conjugate`). `learn_model`
    adds the gradient with respect to θ. `key` is not used.

    Missing observations are integrated out.

    >>> p = LinearGaussian.random(2, 3, key=jax.random.key(0))
    >>> _, ys = p.simulate(10, key=jax.random.key(1))
    >>> estimate = eqx.filter_jit(Exact())(p, Kalman.from_model(p), ys)
    >>> estimate.gradient.B.shape
    (3, 2)
    """

    learn_model: bool = eqx.field(static=True, default=False)

    def __call__(self, p, q, ys, inputs=None, *, key=None):
        """The ELBO of the sequence and its gradient. Nothing is drawn: a key is not needed."""
        return super().__call__(p, q, ys, inputs, key=key)

    def estimate(self, p, q, ys, inputs, key):
        if not isinstance(p, LinearGaussian):
            raise TypeError(f"Exact needs a LinearGaussian model, not {type(p).__name__}.")
        if not q.affine:
            raise TypeError(
                f"Exact needs a family whose backward kernels are affine in x, and those of {type(q).__name__} are not."
            )
        return differentiate(lambda p, q: exact_elbo(p, q, ys, inputs), p, q, self.learn_model)


def exact_elbo(
    p: LinearGaussian, q: BackwardFamily, ys: Float[Array, "t dy"], inputs: Inputs = None
) -> Float[Array, ""]:
    """L_T = E_{q_T}[H_T − log q_T]. See `Exact` for what p and q have to be."""
    mean0, Q0, A, B, Q, R = p.dense()
    d = q.state_dim
    eye, corner = jnp.eye(d, dtype=Q.dtype), jnp.zeros((d + 1, d + 1), Q.dtype).at[d, d].set(1)
    chain = backward_chain(p, q, filter_states(p, q, ys, inputs))
    # The points about which H_t is expanded are the means of q_t, but they are not moved by λ.
    points = jax.vmap(lambda marginal: marginal.moments()[0])(jax.lax.stop_gradient(chain.marginals))

    likelihoods, constants = jax.vmap(lambda x, y: emission(x, y, B, R))(points, ys)
    prior, constant = log_gaussian(jnp.column_stack([eye, points[0] - mean0]), inverse_root(Q0))
    root = inverse_root(Q)

    def link(kernel: AffineKernel, before, now):
        K = jnp.column_stack([kernel.gain, kernel.mean_at(now) - before])
        residual = jnp.column_stack([eye, now]) - A @ K.at[:, -1].add(before)
        move, constant = log_gaussian(residual, root)
        spread = 0.5 * ((root @ A @ kernel.root.T) ** 2).sum()
        entropy = 0.5 * d * (1 + LOG_2PI) - kernel.log_det
        return jnp.concatenate([K, corner[-1:]]), move, constant + entropy - spread

    K, moves, more = jax.vmap(link)(chain.kernels, points[:-1], points[1:])

    def advance(M, scanned):
        K, N = scanned
        M_now = K.T @ M @ K + N
        # vᵀ M v has a constant as well, the corner, which leaves the recursion.
        return M_now * (1 - corner), (M[:d, :d], M_now[d, d])

    start = prior + likelihoods[0]
    M, (before, corners) = jax.lax.scan(advance, start * (1 - corner), (K, moves + likelihoods[1:]))
    spreads = jax.vmap(lambda kernel, M: ((kernel.root @ M) * kernel.root).sum())(chain.kernels, before)

    mean, cov = jax.tree.map(lambda leaf: leaf[-1], chain.marginals).moments()
    v = jnp.append(mean - points[-1], 1)
    end = -0.5 * (v @ M @ v + (M[:d, :d] * cov).sum()) + 0.5 * d * (1 + LOG_2PI) - log_det(inverse_root(cov))
    return end + constant + constants.sum() + more.sum() - 0.5 * (start[d, d] + (corners + spreads).sum())


def log_det(root: Float[Array, "n n"]) -> Float[Array, ""]:
    return jnp.log(jnp.diag(root)).sum()


def log_gaussian(
    residual: Float[Array, "n k"], root: Float[Array, "n n"]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """log N(residual v; 0, (rootᵀ root)⁻¹) = −½ vᵀ M v + c: M and c."""
    scaled = root @ residual
    return scaled.T @ scaled, log_det(root) - 0.5 * len(root) * LOG_2PI


def emission(
    x: Float[Array, " d"], y: Float[Array, " dy"], B: Float[Array, "dy d"], R: Float[Array, "dy dy"]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """log g(x + δ, y) in v = (δ, 1), with what is missing in y integrated out.

    A missing coordinate is replaced by an observed zero of noise alone, independent of the others and of variance one:
    its likelihood is the constant N(0; 0, 1), which is taken out again.
    """
    seen = ~jnp.isnan(y)
    residual = jnp.column_stack([B, B @ x - jnp.where(seen, y, 0)]) * seen[:, None]
    R = jnp.where(seen[:, None] & seen, R, jnp.eye(len(y), dtype=R.dtype))
    M, c = log_gaussian(residual, inverse_root(R))
    return M, c + 0.5 * LOG_2PI * (~seen).sum()


def exact_log_likelihood(p: LinearGaussian, ys: Float[Array, "t dy"]) -> Float[Array, ""]:
    """log p(y_{0:T-1}): the ELBO of the smoothing law itself, which is in the family `Kalman`."""
    return exact_elbo(p, Kalman.from_model(p), ys)
