"""What the four methods of a family amount to over a sequence: states, backward kernels, trajectories.

Nothing here knows the family that it works with, except whether its kernels are affine.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from backstream.gaussian import LOG_2PI, Gaussian, inverse_root

from .base import BackwardFamily, Inputs, State


def filter_states(q: BackwardFamily, ys: Float[Array, "t dy"], inputs: Inputs = None) -> State:
    """a_0, …, a_{T-1}, stacked: each leaf has a leading axis of length T."""

    def update(state, scanned):
        y, u = scanned
        state = q.update(state, y, u)
        return state, state

    first, rest = (jax.tree.map(lambda leaf, part=part: leaf[part], (ys, inputs)) for part in (0, slice(1, None)))
    start = q.init(*first)
    _, later = jax.lax.scan(update, start, rest)
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a, b.dtype)[None], b]), start, later)


class AffineKernel(NamedTuple):
    """q_{t-1|t}(x, ·) = N(mean + gain x, rootᵀ root), for a family whose kernels are affine."""

    mean: Float[Array, " d"]
    gain: Float[Array, "d d"]
    root: Float[Array, "d d"]

    @property
    def cov(self) -> Float[Array, "d d"]:
        return self.root.T @ self.root

    @property
    def log_det(self) -> Float[Array, ""]:
        """log of the determinant of the inverse root: minus half that of the covariance."""
        return -jnp.log(jnp.diag(self.root)).sum()

    def mean_at(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.mean + self.gain @ x


def affine_kernel(q: BackwardFamily, before: Gaussian, state: State) -> AffineKernel:
    """q_{t-1|t} of an affine family, where η̃1(x) = F x + f and η̃2 does not depend on x.

    `before` is q_{t-1}, `state` is a_t.
    """
    origin = jnp.zeros_like(before.eta1)
    kernel = before * q.potential(state, origin)
    F = jax.jacfwd(lambda x: q.potential(state, x).eta1)(origin)
    root = inverse_root(kernel.precision)
    return AffineKernel(root.T @ (root @ kernel.eta1), root.T @ (root @ F), root)


class Chain(NamedTuple):
    """q_{0:T-1} as a backward Markov chain: what does not depend on the trajectory is computed once, for all t."""

    states: State
    marginals: Gaussian
    kernels: PyTree
    """The T − 1 affine kernels, or None where they are not affine."""

    def drop_last(self) -> "Chain":
        """q_{0:T-2}, for the same states."""
        return jax.tree.map(lambda leaf: leaf[:-1], self)


def backward_chain(q: BackwardFamily, states: State) -> Chain:
    marginals = jax.vmap(q.marginal)(states)
    if not q.affine:
        return Chain(states, marginals, None)
    before, after = jax.tree.map(lambda leaf: leaf[:-1], marginals), jax.tree.map(lambda leaf: leaf[1:], states)
    return Chain(states, marginals, jax.vmap(lambda marginal, state: affine_kernel(q, marginal, state))(before, after))


def sample_chain(
    q: BackwardFamily, chain: Chain, z: Float[Array, "t d"]
) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """One trajectory, reparameterised by standard normal noise, with the log densities of its links.

    The t-th is log q_{t|t+1}(x_{t+1}, x_t) and the last log q_{T-1}(x_{T-1}): they add up to log q_{0:T-1}.
    Under `vmap` over z, whatever does not depend on x is factorised once for all trajectories.
    """
    end = jax.tree.map(lambda leaf: leaf[-1], chain.marginals).frame()
    last = end.restore(z[-1])
    xs, log_det = _walk(q, chain, last, z[:-1]) if chain.kernels is None else _walk_affine(chain.kernels, last, z[:-1])
    log_det = jnp.concatenate([log_det, end.log_det[None]])
    log_q = log_det - 0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * LOG_2PI
    return jnp.concatenate([xs, last[None]]), log_q


def _walk(q: BackwardFamily, chain: Chain, last: Float[Array, " d"], z: Float[Array, "t d"]) -> tuple[Array, Array]:
    """The states before the last, and log |∂z/∂x| of each."""

    def back(x, scanned):
        before, state, z = scanned
        frame = (before * q.potential(state, x)).frame()
        x = frame.restore(z)
        return x, (x, frame.log_det)

    before, after = (
        jax.tree.map(lambda leaf: leaf[:-1], chain.marginals),
        jax.tree.map(lambda leaf: leaf[1:], chain.states),
    )
    return jax.lax.scan(back, last, (before, after, z), reverse=True)[1]


def _walk_affine(kernels: AffineKernel, last: Float[Array, " d"], z: Float[Array, "t d"]) -> tuple[Array, Array]:
    """The same, where nothing is left to factorise."""

    def back(x, scanned):
        kernel, noise = scanned
        x = kernel.mean_at(x) + noise
        return x, x

    noise = jnp.einsum("ti,tij->tj", z, kernels.root)
    xs = jax.lax.scan(back, last, (kernels, noise), reverse=True)[1]
    return xs, jax.vmap(lambda kernel: kernel.log_det)(kernels)
