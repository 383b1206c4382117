"""Linear-Gaussian dynamics, shared by the filter's predict step and by the potential of several families."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from backstream.families.covariance import PositiveDefinite, guard, inverse_root
from backstream.gaussian import Gaussian
from backstream.models.matrices import Matrix, Scale, dense, multiply, require_matrix, require_positive, require_vector


class Prediction(NamedTuple):
    """The law of X_t before y_t is read."""

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]
    precision: Float[Array, "d d"]

    def add_site(self, eta1: Float[Array, " d"], precision: Float[Array, "d d"]) -> Gaussian:
        """Its product with exp(η1 · x − ½ xᵀ Λ x): conjugacy, natural parameters add."""
        return Gaussian.from_precision(self.precision @ self.mean + eta1, guard(self.precision + precision))


class LinearDynamics(eqx.Module):
    """X_0 ~ N(mean0, prior), X_t = A X_{t-1} + drift + N(0, noise).
     `A` is a 2-d array, or a 1-d array standing for a diagonal matrix. With `drift=None` there is none, and none
    is learned. `LinearDynamics.create` takes scales, not log scales.
    """

    mean0: Float[Array, " d"]
    prior: PositiveDefinite
    A: Matrix
    noise: PositiveDefinite
    drift: Float[Array, " d"] | None = None

    @classmethod
    def create(
        cls, mean0: ArrayLike, prior_scale: Scale, A: ArrayLike, noise_scale: Scale, drift: ArrayLike | None = None
    ) -> "LinearDynamics":
        """From standard deviations, or lower Cholesky factors, of the prior and of the noise."""
        mean0, A, prior_scale, noise_scale = (jnp.asarray(value) for value in (mean0, A, prior_scale, noise_scale))
        drift = None if drift is None else jnp.asarray(drift)
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

    def start(self) -> Prediction:
        """The law of X_0."""
        return Prediction(self.mean0, self.prior.dense(), self.prior.inverse())

    def predict(self, filtered: Gaussian) -> Prediction:
        """N(A μ + drift, A Σ Aᵀ + noise), from the filter N(μ, Σ) at t − 1."""
        root = inverse_root(filtered.precision)
        mean = multiply(self.A, root.T @ (root @ filtered.eta1))
        moved = self.A[:, None] * root.T if self.A.ndim == 1 else self.A @ root.T
        cov = moved @ moved.T + self.noise.dense()
        root = inverse_root(cov)
        return Prediction(mean if self.drift is None else mean + self.drift, cov, root.T @ root)

    def potential(self, x: Float[Array, " d"]) -> Gaussian:
        """N(x; A x_prev + drift, noise) as a function of x_prev: η̃1 = Aᵀ noise⁻¹ (x − drift), Λ̃ = Aᵀ
        noise⁻¹ A.

        Λ̃ does not touch x, so that it stays a single matrix under `vmap` over x.
        """
        centred = x if self.drift is None else x - self.drift
        if self.A.ndim == 1 and self.noise.diagonal:
            gain = self.A * jnp.exp(-2 * self.noise.log_scale)
            return Gaussian.from_precision(gain * centred, jnp.diag(gain * self.A))
        whitened = self.noise.whiten(dense(self.A))
        root = self.noise.whiten(jnp.eye(self.dim, dtype=whitened.dtype))
        return Gaussian.from_precision((whitened.T @ root) @ centred, whitened.T @ whitened)
