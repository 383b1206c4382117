"""A linear-Gaussian model of three states and two columns, and modules in other precisions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from backstream.models import LinearGaussian


def random_covariance(rng, dim):
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    return root @ root.T + 0.1 * np.eye(dim)


def linear_model(full, seed=0, d=3, dy=2):
    """A random linear-Gaussian model, with full matrices or with diagonal A and covariances."""
    rng = np.random.default_rng(seed)
    if full:
        A = 0.9 * np.linalg.qr(rng.normal(size=(d, d)))[0]
        Q0, Q, R = (random_covariance(rng, size) for size in (d, d, dy))
    else:
        A = rng.uniform(0.5, 0.95, d)
        Q0, Q, R = (rng.uniform(0.2, 1.0, size) for size in (d, d, dy))
    return LinearGaussian(rng.normal(size=d), Q0, A, rng.normal(size=(dy, d)), Q, R)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def single(tree):
    return cast(tree, jnp.float32)
