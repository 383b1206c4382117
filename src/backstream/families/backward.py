"""What the four methods of a family amount to over a sequence: states, backward kernels, trajectories.

Nothing here knows the family that it works with, except whether its kernels are affine.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from backstream.gaussian import LOG_2PI, Gaussian

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
    """q_{t-1|t}(x, ·) = N(mean + gain (x − anchor), rootᵀ root), for a family whose kernels are affine."""

    anchor: Float[Array, " d"]
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
        return self.mean + self.gain @ (x - self.anchor)


def affine_kernel(q: BackwardFamily, before: Gaussian, state: State, anchor: Float[Array, " d"]) -> AffineKernel:
    """q_{t-1|t} of an affine family, where η̃1(x) = η̃1(anchor) + F (x − anchor) and η̃2 does not depend on x.

    `before` is q_{t-1}, `state` is a_t, `anchor` any point; one near the x in use keeps float32 precise.
    """
    kernel = before * q.potential(state, anchor)
    F = jax.jacfwd(lambda x: q.potential(state, x).eta1)(anchor)
    root = solve_triangular(jnp.linalg.cholesky(kernel.precision), jnp.eye(q.state_dim, dtype=anchor.dtype), lower=True)
    cov = root.T @ root
    return AffineKernel(anchor, cov @ kernel.eta1, cov @ F, root)


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
    before = jax.tree.map(lambda leaf: leaf[:-1], marginals)
    after = jax.tree.map(lambda leaf: leaf[1:], (states, marginals))

    def link(before, state, marginal):
        # The kernel is the same whatever the anchor, so that nothing is lost by not differentiating through it.
        return affine_kernel(q, before, state, jax.lax.stop_gradient(marginal.moments()[0]))

    return Chain(states, marginals, jax.vmap(link)(before, *after))


def sample_chain(
    q: BackwardFamily, chain: Chain, z: Float[Array, "t d"], *, unroll: int = 1
) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """One trajectory, reparameterised by standard normal noise, with the log densities of its links.

    The t-th is log q_{t|t+1}(x_{t+1}, x_t) and the last log q_{T-1}(x_{T-1}): they add up to log q_{0:T-1}.
    Under `vmap` over z, whatever does not depend on x is factorised once for all trajectories.
    """
    end = jax.tree.map(lambda leaf: leaf[-1], chain.marginals).frame()
    last = end.restore(z[-1])

    if chain.kernels is None:

        def back(x, scanned):
            before, state, z = scanned
            frame = (before * q.potential(state, x)).frame()
            x = frame.restore(z)
            return x, (x, frame.log_det)

        before = jax.tree.map(lambda leaf: leaf[:-1], chain.marginals)
        after = jax.tree.map(lambda leaf: leaf[1:], chain.states)
        _, (xs, log_det) = jax.lax.scan(back, last, (before, after, z[:-1]), reverse=True, unroll=unroll)
    else:
        noise = jnp.einsum("ti,tij->tj", z[:-1], chain.kernels.root)

        def back(x, scanned):
            kernel, noise = scanned
            x = kernel.mean_at(x) + noise
            return x, x

        _, xs = jax.lax.scan(back, last, (chain.kernels, noise), reverse=True, unroll=unroll)
        log_det = jax.vmap(lambda kernel: kernel.log_det)(chain.kernels)

    log_det = jnp.concatenate([log_det, end.log_det[None]])
    log_q = log_det - 0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * LOG_2PI
    return jnp.concatenate([xs, last[None]]), log_q
