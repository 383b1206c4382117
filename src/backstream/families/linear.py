"""Linear-Gaussian dynamics, shared by the filter's predict step and by the potential of several families."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from backstream.families.covariance import PositiveDefinite, guard
from backstream.families.kernels import AffinePotential
from backstream.laws.gaussian import Gaussian, cholesky, inverse, pack, unpack
from backstream.models.matrices import (
    Matrix,
    dense,
    floating,
    multiply,
    require_matrix,
    require_positive,
    require_vector,
)

LEAST_A, LEAST_RATE, LEAST_TIME = 1e-3, 1e-5, 1e-6
"""Where time is continuous: the least A, the least |log A| and the shortest step that differ from zero."""


class LinearState(NamedTuple):
    """q_t = N(mean, F Fᵀ), the state a_t of the families with linear dynamics.

    Mean and covariance are carried, not η: rounding errors of η come back multiplied by the condition number of the
    precision at every step, whereas those of a covariance drown in the noise that the next step adds. `factor` is
    the triangle of F: with the mean d(d+3)/2 components, as many as η has.
    """

    mean: Float[Array, " d"]
    factor: Float[Array, " d*(d+1)//2"]
    moves: Bool[Array, ""]
    """Whether a transition leads to the next row: not before the first."""
    link: Any = None
    """What else ψ_t depends on, where the dynamics are not the same at all times."""

    def gaussian(self) -> Gaussian:
        root = inverse(self.unpacked())
        precision = guard(root.T @ root)
        return Gaussian.from_precision(precision @ self.mean, precision)

    def unpacked(self) -> Float[Array, "d d"]:
        """F."""
        return jnp.tril(unpack(self.factor, len(self.mean)))

    def unmoved(self) -> "Prediction":
        """This law as the one of the next row, with a factor as wide as that of a prediction."""
        F = self.unpacked()
        return Prediction(self.mean, jnp.concatenate([F, jnp.zeros_like(F)], axis=1))


class Prediction(NamedTuple):
    """The law of X_t before y_t is read: N(mean, F Fᵀ), with a factor of any width."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d n"]

    def variance(self, B: Float[Array, "k d"] | None = None) -> Float[Array, "..."]:
        """The variances of X_t, or those of B X_t."""
        return ((self.factor if B is None else B @ self.factor) ** 2).sum(1)

    def add_site(self, W: Float[Array, "k d"], e: Float[Array, " k"]) -> LinearState:
        """Its product with exp(−½ ‖W (x − mean) − e‖²): k observations with unit noise, and their residuals.

        With its derivative in closed form, as everything that learns differentiates through here.
        """
        mean, F = condition(self.mean, self.factor, W, e)
        return LinearState(mean, pack(F.T), jnp.asarray(True))


@jax.custom_jvp
def condition(
    mean: Float[Array, " d"], factor: Float[Array, "d n"], W: Float[Array, "k d"], e: Float[Array, " k"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The mean and the Cholesky factor of N(mean, C), C = F Fᵀ, given k observations W (x − mean) = e + N(0, I).

    The gain is K = C Wᵀ (I + W C Wᵀ)⁻¹ and the covariance, in Joseph's form, (I − K W) C (I − K W)ᵀ + K Kᵀ: a sum of
    squares, which rounding cannot make indefinite.
    """
    posterior, L, _, _ = _condition(mean, factor, W, e)
    return posterior, L


def _condition(mean, factor, W, e):
    seen = W @ factor
    root = inverse(cholesky(guard(seen @ seen.T + jnp.eye(len(e), dtype=e.dtype))))
    K = (factor @ (root @ seen).T) @ root
    rest = factor - K @ seen
    return mean + K @ e, cholesky(guard(rest @ rest.T + K @ K.T)), K, rest


@condition.defjvp
def _condition_jvp(primals, tangents):
    """From Σ⁻¹ = C⁻¹ + Wᵀ W: dΣ = (I − K W) dC (I − K W)ᵀ − Σ d(Wᵀ W) Σ, and the mean is m + Σ Wᵀ e."""
    (mean, factor, W, e), (d_mean, d_factor, d_W, d_e) = primals, tangents
    posterior, L, K, rest = _condition(mean, factor, W, e)
    cov, X = L @ L.T, inverse(L)
    half = ((d_factor - K @ (W @ d_factor)) @ rest.T) - (K @ d_W) @ cov
    d_cov = half + half.T
    d_posterior = d_mean + d_cov @ (W.T @ e) + cov @ (d_W.T @ e) + K @ d_e
    lower = jnp.tril(jnp.ones_like(L)) - 0.5 * jnp.eye(len(L), dtype=L.dtype)
    return (posterior, L), (d_posterior, L @ (lower * (X @ d_cov @ X.T)))


class LinearDynamics(eqx.Module):
    """X_0 ~ N(mean0, prior), X_t = A X_{t-1} + drift + N(0, noise).

    `A` is a 2-d array, or a 1-d array standing for a diagonal matrix. `LinearDynamics.create` takes scales, not log
    scales.
    """

    mean0: Float[Array, " d"]
    prior: PositiveDefinite
    A: Matrix
    noise: PositiveDefinite
    drift: Float[Array, " d"] | None = None

    @classmethod
    def create(
        cls,
        mean0: ArrayLike,
        prior_scale: ArrayLike,
        A: ArrayLike,
        noise_scale: ArrayLike,
        drift: ArrayLike | None = None,
    ) -> "LinearDynamics":
        """From standard deviations, or lower Cholesky factors, of the prior and of the noise."""
        mean0, A, prior_scale, noise_scale = (floating(value) for value in (mean0, A, prior_scale, noise_scale))
        drift = None if drift is None else floating(drift)
        if mean0.ndim != 1:
            raise ValueError(f"mean0 must be a vector, one number for each state, but has shape {mean0.shape}.")
        d = len(mean0)
        require_matrix("A", A, d, d)
        require_matrix("prior_scale", prior_scale, d, d)
        require_matrix("noise_scale", noise_scale, d, d)
        for name, scale in (("prior_scale", prior_scale), ("noise_scale", noise_scale)):
            require_positive(name, jnp.abs(scale if scale.ndim == 1 else jnp.diag(scale)))
        if drift is not None:
            require_vector("drift", drift, d)
        return cls(mean0, PositiveDefinite.from_scale(prior_scale), A, PositiveDefinite.from_scale(noise_scale), drift)

    @property
    def dim(self) -> int:
        return self.mean0.shape[-1]

    def over(self, elapsed: Float[Array, ""]) -> "LinearDynamics":
        """The dynamics over another length of time than one: A^τ, with the noise and the drift that gather meanwhile.

        These are the Ornstein–Uhlenbeck processes that look like this one when seen at the times 0, 1, 2, …
        """
        if self.A.ndim != 1 or not self.noise.diagonal:
            raise ValueError("Steps of unequal length need a diagonal A and diagonal noise.")
        rate = jnp.log(jnp.maximum(self.A, LEAST_A))
        rate = jnp.where(jnp.abs(rate) < LEAST_RATE, -LEAST_RATE, rate)
        tau = jnp.maximum(elapsed, LEAST_TIME).astype(rate.dtype)
        noise = PositiveDefinite(self.noise.log_scale + 0.5 * jnp.log(jnp.expm1(2 * tau * rate) / jnp.expm1(2 * rate)))
        drift = None if self.drift is None else self.drift * jnp.expm1(tau * rate) / jnp.expm1(rate)
        return LinearDynamics(self.mean0, self.prior, jnp.exp(tau * rate), noise, drift)

    def start(self) -> LinearState:
        """The law of X_0, before any row."""
        return prior_state(self.mean0, self.prior)

    def predict(self, filtered: LinearState, leak: float = 0.0) -> Prediction:
        """The law of X_t before y_t is read: the prior at the first row, and `move` after it. Both are always finite:
        neither spoils the derivative of the other."""
        moved = self.move(filtered, leak)
        return jax.tree.map(lambda a, b: jnp.where(filtered.moves, a, b), moved, filtered.unmoved())

    def move(self, filtered: LinearState, leak: float = 0.0) -> Prediction:
        """N(A μ + drift, A Σ Aᵀ + Q), from the filter N(μ, Σ) at t − 1.

        With a `leak` it is multiplied, coordinate by coordinate, with the prior to the power `leak`, so that no
        variance exceeds that of the prior divided by `leak`, even where A expands and no observation comes.
        """
        mean = multiply(self.A, filtered.mean)
        mean = mean if self.drift is None else mean + self.drift
        F = filtered.unpacked()
        moved = self.A[:, None] * F if self.A.ndim == 1 else self.A @ F
        prediction = Prediction(mean, jnp.concatenate([moved, self.noise.factor()], axis=1))
        if leak == 0:
            return prediction
        shrink = 1 / (1 + leak * prediction.variance() / self.prior.variance())
        mean = self.mean0 + shrink * (mean - self.mean0)
        return Prediction(mean, jnp.sqrt(shrink)[:, None] * prediction.factor)

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        """N(x; A x_prev + drift, Q), a function of x_prev: η̃1 = Aᵀ Q⁻¹ (x − drift), Λ̃ = Aᵀ Q⁻¹ A.

        Λ̃ does not touch x, so that it stays a single matrix under `vmap` over x.
        """
        centered = x if self.drift is None else x - self.drift
        if self.A.ndim == 1 and self.noise.diagonal:
            gain = self.A * jnp.exp(-2 * self.noise.log_scale)
            return Gaussian.from_precision(gain * centered, jnp.diag(gain * self.A))
        whitened = self.noise.whiten(dense(self.A))
        root = self.noise.whiten(jnp.eye(self.dim, dtype=whitened.dtype))
        return Gaussian.from_precision((whitened.T @ root) @ centered, whitened.T @ whitened)


def prior_state(mean0: Float[Array, " d"], prior: PositiveDefinite) -> LinearState:
    """The state before the first row."""
    return LinearState(mean0, pack(prior.factor().T), jnp.asarray(False))


class LinearKernel(AffinePotential):
    """ψ_t(x_prev, x) = N(x; A x_prev + drift, Q)."""

    dynamics: LinearDynamics

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        return self.dynamics.potential(x)
