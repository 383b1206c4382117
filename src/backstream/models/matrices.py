"""Matrices that are diagonal (given as a vector) or full, and Gaussian noise of either kind.

A matrix A is a 1-d array, its diagonal, or a 2-d array. A noise of covariance S Sᵀ is kept as its `scale` S:
a 1-d array of standard deviations, or a 2-d lower-triangular factor. The sign of a column of S changes
nothing, so a scale that learning pushes through zero still stands for a covariance.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

Matrix = Float[Array, " n"] | Float[Array, "n m"]
Scale = Float[Array, " n"] | Float[Array, "n n"]


def floating(value: ArrayLike) -> Float[Array, "..."]:
    """A JAX array of the value's own floating type, or of the default one where it holds integers."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def multiply(matrix: Matrix, x: Float[Array, " m"]) -> Float[Array, " n"]:
    """A x."""
    return matrix * x if matrix.ndim == 1 else matrix @ x


def dense(matrix: Matrix) -> Float[Array, "n m"]:
    """A as a 2-d array."""
    return jnp.diag(matrix) if matrix.ndim == 1 else matrix


def scale_of(noise: Scale) -> Scale:
    """S, from standard deviations (1-d, returned as they are) or a covariance (2-d)."""
    return noise if noise.ndim == 1 else jnp.linalg.cholesky(noise)


def covariance_of(scale: Scale) -> Float[Array, "n n"]:
    """S Sᵀ."""
    if scale.ndim == 1:
        return jnp.diag(scale**2)
    factor = jnp.tril(scale)
    return factor @ factor.T


def normal(mean: Float[Array, " n"], scale: Scale) -> dist.Distribution:
    """N(mean, S Sᵀ), with independent coordinates where S is diagonal."""
    if scale.ndim == 1:
        return dist.Normal(mean, jnp.abs(scale)).to_event(1)
    factor = jnp.tril(scale)
    return dist.MultivariateNormal(mean, scale_tril=factor * jnp.sign(jnp.diag(factor)))


def known(value: ArrayLike) -> bool:
    """Whether the value can be looked at now: not while JAX traces."""
    return not isinstance(value, Tracer)


def require_matrix(name: str, matrix: Array, rows: int, columns: int) -> None:
    """Raises unless `matrix` is `rows` × `columns`, or the diagonal of a square one."""
    shapes = {(rows, columns)} | ({(rows,)} if rows == columns else set())
    if matrix.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in sorted(shapes, key=len))
        raise ValueError(f"{name} must have shape {wanted}, not {matrix.shape}.")


def require_vector(name: str, vector: Array, size: int) -> None:
    if vector.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), not {vector.shape}.")


def require_positive(name: str, value: ArrayLike) -> None:
    if known(value) and not np.all(np.asarray(value) > 0):
        raise ValueError(f"{name} must be positive, but is {np.asarray(value).tolist()}.")


def require_noise(name: str, noise: Array, size: int) -> None:
    """Raises unless `noise` holds `size` standard deviations, or a covariance matrix."""
    if not size:
        raise ValueError(f"{name} is that of a model with no states or no observations: it needs at least one of each.")
    if noise.shape not in {(size,), (size, size)}:
        raise ValueError(
            f"{name} must be standard deviations of shape ({size},) or a covariance of shape ({size}, {size}), "
            f"but has shape {noise.shape}."
        )
    if noise.ndim == 1:
        require_positive(f"{name}, a vector of standard deviations,", noise)
    elif known(noise):
        value = np.asarray(noise, dtype=np.float64)
        if not np.allclose(value, value.T, rtol=1e-5, atol=0.0):
            raise ValueError(f"{name}, a covariance, must be symmetric, but is {value.tolist()}.")
        if not np.linalg.eigvalsh(value)[0] > 0:
            raise ValueError(f"{name}, a covariance, must be positive definite, but is {value.tolist()}.")
