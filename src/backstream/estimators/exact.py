"""The ELBO and its gradient in closed form, for a linear-Gaussian p and a q with affine Gaussian kernels.

Then H_t is a quadratic form (paper, section on the linear-Gaussian model). Around the mean μ_t of q_t,

    H_t(μ_t + δ) = −½ δᵀ Ω_t δ + ω_t · δ + Σ_{s≤t} c_s,

and q_{t-1|t}(μ_t + δ, ·) = N(μ_{t-1} + s_t + K_t δ, V_t), so that E[H_{t-1} + log m_t − log q_{t-1|t}] is one again. The
constants c_s are summed at the end, in pairs, and not one after the other.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from backstream.families.backward import AffineKernel, backward_chain, filter_states
from backstream.families.base import BackwardFamily
from backstream.families.kalman import Kalman
from backstream.gaussian import LOG_2PI
from backstream.models.base import Inputs
from backstream.models.linear_gaussian import LinearGaussian

from .base import OfflineEstimator, differentiate


class Quadratic(NamedTuple):
    """δ ↦ −½ δᵀ Ω δ + ω · δ + c."""

    Omega: Float[Array, "d d"]
    omega: Float[Array, " d"]
    c: Float[Array, ""]

    def __add__(self, other):
        return Quadratic(*(a + b for a, b in zip(self, other, strict=True)))

    def through(self, kernel_mean: Float[Array, " d"], gain: Float[Array, "d d"]) -> "Quadratic":
        """δ ↦ the value at kernel_mean + gain δ."""
        slope = self.omega - self.Omega @ kernel_mean
        return Quadratic(
            gain.T @ self.Omega @ gain,
            gain.T @ slope,
            self.c + 0.5 * kernel_mean @ (self.omega + slope),
        )


def log_gaussian(residual: Float[Array, " n"], slope: Float[Array, "n d"], cov: Float[Array, "n n"]) -> Quadratic:
    """δ ↦ log N(residual − slope δ; 0, cov)."""
    factor = jnp.linalg.cholesky(cov)
    scaled = cho_solve((factor, True), jnp.column_stack([slope, residual]))
    log_det = jnp.log(jnp.diag(factor)).sum()
    return Quadratic(
        slope.T @ scaled[:, :-1],
        slope.T @ scaled[:, -1],
        -0.5 * residual @ scaled[:, -1] - log_det - 0.5 * len(residual) * LOG_2PI,
    )


def emission(x: Float[Array, " d"], y: Float[Array, " dy"], B, R) -> Quadratic:
    """δ ↦ log g(x + δ, y), with what is missing in y integrated out.

    A missing coordinate becomes an observed zero, uncorrelated with the others, of an emission that does not
    depend on the state: its likelihood is the constant N(0; 0, 1), which is taken out again.
    """
    seen = ~jnp.isnan(y)
    B = jnp.where(seen[:, None], B, 0)
    R = jnp.where(seen[:, None] & seen[None, :], R, jnp.eye(len(y), dtype=R.dtype))
    residual = jnp.where(seen, jnp.where(seen, y, 0) - B @ x, 0)
    form = log_gaussian(residual, B, R)
    return form._replace(c=form.c + 0.5 * LOG_2PI * (~seen).sum())


class Exact(OfflineEstimator):
    """The exact ELBO, and its exact gradient by automatic differentiation.

    For p a `LinearGaussian` and q a family with affine kernels (`Kalman`, `Conjugate`, `Innovation`). `learn_model` adds
    the gradient with respect to θ. `key` is not used.

    Missing observations are integrated out, single coordinates too, whatever the covariance of the emission.
    """

    learn_model: bool = eqx.field(static=True, default=False)

    def __call__(self, p, q, ys, inputs=None, *, key=None):
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
    eye = jnp.eye(d, dtype=Q0.dtype)
    chain = backward_chain(q, filter_states(q, ys, inputs))
    means, covs = jax.vmap(lambda marginal: marginal.moments())(chain.marginals)
    # H_t is expanded about points that do not depend on λ, although they are where the means are.
    anchors = jax.lax.stop_gradient(means)
    likelihoods = jax.vmap(lambda x, y: emission(x, y, B, R))(anchors, ys)

    def link(kernel: AffineKernel, anchor_before):
        # E[log m_t − log q_{t-1|t}]: x_t − A x_{t-1} has mean anchor − A mean + (I − A K) δ
        moved = log_gaussian(kernel.anchor - A @ kernel.mean, A @ kernel.gain - eye, Q)
        scaled = cho_solve((jnp.linalg.cholesky(Q), True), A @ kernel.root.T)
        spread = -0.5 * ((A @ kernel.root.T) * scaled).sum()
        entropy = 0.5 * d * (1 + LOG_2PI) - kernel.log_det
        return kernel.mean - anchor_before, moved._replace(c=moved.c + spread + entropy)

    shifts, moves = jax.vmap(link)(chain.kernels, anchors[:-1])

    def advance(H, scanned):
        kernel, shift, move, likelihood = scanned
        spread = -0.5 * ((kernel.root @ H.Omega) * kernel.root).sum()
        H = H.through(shift, kernel.gain) + move + likelihood
        # The constant leaves the recursion here.
        return H._replace(c=jnp.zeros_like(H.c)), H.c + spread

    first, rest = (jax.tree.map(lambda leaf, part=part: leaf[part], likelihoods) for part in (0, slice(1, None)))
    start = log_gaussian(anchors[0] - mean0, -eye, Q0) + first
    H, constants = jax.lax.scan(advance, start, (chain.kernels, shifts, moves, rest))

    mean, cov = means[-1], covs[-1]
    delta = mean - anchors[-1]
    expected = H.c + H.omega @ delta - 0.5 * (delta @ H.Omega @ delta + (H.Omega * cov).sum())
    entropy = 0.5 * d * (1 + LOG_2PI) + jnp.log(jnp.diag(jnp.linalg.cholesky(cov))).sum()
    return expected + entropy + constants.sum()


def exact_log_likelihood(p: LinearGaussian, ys: Float[Array, "t dy"]) -> Float[Array, ""]:
    """log p(y_{0:T-1}): the ELBO of the smoothing law itself, which is in the family `Kalman`."""
    return exact_elbo(p, Kalman.from_model(p), ys)
