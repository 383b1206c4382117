"""What the four methods of a family amount to over a sequence: states, backward kernels, trajectories.

Nothing here knows the family that it works with, except whether its kernels are affine.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from backstream._jax.choosing import choose
from backstream.laws.gaussian import LOG_2PI, Gaussian
from backstream.models.base import StateSpaceModel

from .base import BackwardFamily, Inputs, State
from .kernels import AffineKernel


def first_state(p: StateSpaceModel, q: BackwardFamily, y: Float[Array, " dy"], u: Inputs = None) -> State:
    """a_0."""
    return q.update(p, q.init(p, u), y, u)


def filter_states(p: StateSpaceModel, q: BackwardFamily, ys: Float[Array, "t dy"], inputs: Inputs = None) -> State:
    """a_0, …, a_{T-1}, stacked: each leaf has a leading axis of length T."""

    def update(state, scanned):
        state = q.update(p, state, *scanned)
        return state, state

    return jax.lax.scan(update, q.init(p, jax.tree.map(lambda leaf: leaf[0], inputs)), (ys, inputs))[1]


class Chain(NamedTuple):
    """q_{0:T-1} as a backward Markov chain: what does not depend on the trajectory is computed once, for all t."""

    states: State
    marginals: Gaussian
    links: Bool[Array, " links"] | None
    """Between which of the states there is a kernel; None: between all. Where there is none, a trajectory goes on with
    an independent draw from the marginal."""
    kernels: Any
    """The T − 1 affine kernels, or None where they are not affine."""

    def drop_last(self) -> "Chain":
        """q_{0:T-2}, for the same states."""
        return jax.tree.map(lambda leaf: leaf[:-1], self)


def backward_chain(
    p: StateSpaceModel, q: BackwardFamily, states: State, links: Bool[Array, " links"] | None = None
) -> Chain:
    if not q.gaussian:
        raise TypeError(
            f"{type(q).__name__} has several components: there are no reparameterized trajectories through them. "
            "Its log score has a gradient: use LogScore."
        )
    marginals = jax.vmap(q.marginal)(states)
    if not q.affine:
        return Chain(states, marginals, links, None)

    def kernel(p, q, before, state) -> AffineKernel:
        return q.kernel(p, state).affine(before)

    def one(before, state, link) -> AffineKernel:
        if link is None:
            return kernel(p, q, before, state)
        return choose(link, kernel, lambda p, q, before, state: AffineKernel.independent(before), p, q, before, state)

    before, after = jax.tree.map(lambda leaf: leaf[:-1], marginals), jax.tree.map(lambda leaf: leaf[1:], states)
    return Chain(states, marginals, links, jax.vmap(one)(before, after, links))


def sample_chain(
    p: StateSpaceModel, q: BackwardFamily, chain: Chain, z: Float[Array, "t d"]
) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """One trajectory, reparameterized by standard normal noise, with the log densities of its links.

    The t-th is log q_{t|t+1}(x_{t+1}, x_t) and the last log q_{T-1}(x_{T-1}): they add up to log q_{0:T-1}.
    Under `vmap` over z, whatever does not depend on x is factorized once for all trajectories.
    """
    end = jax.tree.map(lambda leaf: leaf[-1], chain.marginals).frame()
    last = end.restore(z[-1])
    if chain.kernels is None:
        xs, log_det = _walk(p, q, chain, last, z[:-1])
    else:
        xs, log_det = _walk_affine(chain.kernels, last, z[:-1])
    log_det = jnp.concatenate([log_det, end.log_det[None]])
    log_q = log_det - 0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * LOG_2PI
    return jnp.concatenate([xs, last[None]]), log_q


def _walk(
    p: StateSpaceModel, q: BackwardFamily, chain: Chain, last: Float[Array, " d"], z: Float[Array, "t d"]
) -> tuple[Array, Array]:
    """The states before the last, and log |∂z/∂x| of each."""

    def law(p, q, before, state, x) -> Gaussian:
        return before * q.kernel(p, state).potential(x)

    def back(x, scanned):
        before, state, link, z = scanned
        if link is None:
            frame = law(p, q, before, state, x).frame()
        else:
            frame = choose(link, law, lambda p, q, before, *_: before, p, q, before, state, x).frame()
        x = frame.restore(z)
        return x, (x, frame.log_det)

    before, after = (
        jax.tree.map(lambda leaf: leaf[:-1], chain.marginals),
        jax.tree.map(lambda leaf: leaf[1:], chain.states),
    )
    return jax.lax.scan(back, last, (before, after, chain.links, z), reverse=True)[1]


def _walk_affine(kernels: AffineKernel, last: Float[Array, " d"], z: Float[Array, "t d"]) -> tuple[Array, Array]:
    """The same, where nothing is left to factorize."""

    def back(x, scanned):
        kernel, noise = scanned
        x = kernel.mean_at(x) + noise
        return x, x

    noise = jnp.einsum("ti,tij->tj", z, kernels.root)
    xs = jax.lax.scan(back, last, (kernels, noise), reverse=True)[1]
    return xs, jax.vmap(lambda kernel: kernel.log_det)(kernels)


def sample_backward(
    p: StateSpaceModel, q: BackwardFamily, states: State, *, key: Array
) -> tuple[Float[Array, "t d"], Float[Array, " t"]]:
    """One trajectory with the log densities of its links, as `sample_chain`, of any family: laws are only sampled and
    evaluated. There is no derivative along the path."""
    times = jnp.arange(len(jax.tree.leaves(states)[0]))
    laws = jax.vmap(q.marginal)(states)
    end = jax.tree.map(lambda leaf: leaf[-1], laws)
    last = end.sample(key=jax.random.fold_in(key, times[-1]))

    def back(x, scanned):
        t, before, state = scanned
        law = q.kernel(p, state).at(before, x)
        x = law.sample(key=jax.random.fold_in(key, t))
        return x, (x, law.log_prob(x))

    before, after = jax.tree.map(lambda leaf: leaf[:-1], laws), jax.tree.map(lambda leaf: leaf[1:], states)
    _, (xs, log_q) = jax.lax.scan(back, last, (times[:-1], before, after), reverse=True)
    return jnp.concatenate([xs, last[None]]), jnp.concatenate([log_q, end.log_prob(last)[None]])
