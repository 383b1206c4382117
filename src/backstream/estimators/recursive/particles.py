"""N i.i.d. samples of q_t, and the backward kernels that lead from them to those of q_{t-1}."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from backstream.families.base import BackwardFamily
from backstream.families.kernels import Kernel
from backstream.laws.gaussian import Frame, Gaussian
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_transitions, log_transitions_at

from .weights import AbstractPairs, Kernels, SampledPairs


class Particles(NamedTuple):
    """Samples ξ of q_t = N(μ, (L Lᵀ)⁻¹), kept as the standard normal draws z that made them: ξ = μ + L⁻ᵀ z."""

    state: PyTree
    frame: Frame
    z: Float[Array, "n d"]

    @property
    def xi(self) -> Float[Array, "n d"]:
        return self.frame.restore(self.z)

    def log_q(self) -> Float[Array, " n"]:
        """log q_t(ξ_t)."""
        return self.frame.log_prob(self.z)


def draw(q: BackwardFamily, state: PyTree, num_particles: int, *, key: Array) -> Particles:
    frame = q.marginal(state).frame()
    return Particles(state, frame, standard_draws(key, (num_particles, q.state_dim), frame.mean.dtype))


def standard_draws(key: Array, shape: tuple[int, int], dtype) -> Float[Array, "n d"]:
    return jax.random.normal(key, shape, dtype)


def backward_kernels(kernel: Kernel, previous: Particles, xi: Float[Array, "n d"]) -> Kernels:
    """q_{t-1|t}(ξ_t^i, ·) ∝ q_{t-1} ψ_t(·, ξ_t^i) for all i, in the frame of q_{t-1}.

    Everything for one ξ happens inside one vmap: where ψ's precision does not depend on ξ, JAX factorizes it once.
    """

    def one(x):
        psi = kernel.potential(x).into(previous.frame)
        law = psi * Gaussian.from_precision(jnp.zeros_like(x), jnp.eye(len(x), dtype=x.dtype))
        mean, cov = law.moments()
        return Kernels(psi.eta, mean, cov, law.log_normalizer())

    return jax.vmap(one)(xi)


def log_backward(previous: Particles, pairs: AbstractPairs, kernels: Kernels) -> Float[Array, "n k"]:
    """log q_{t-1|t}(ξ_t^i, ξ_{t-1}^j) of the pairs in use."""
    log_standard = pairs.gather(-0.5 * (previous.z**2).sum(1))
    return pairs.log_potential + log_standard - kernels.log_normalizer[:, None] + previous.frame.log_det


def log_transition(
    p: StateSpaceModel, pairs: AbstractPairs, xi_previous: Float[Array, "n d"], xi: Float[Array, "n d"], u: Inputs
) -> Float[Array, "n k"]:
    """log m_t(ξ_{t-1}^j, ξ_t^i) of the pairs in use."""
    if isinstance(pairs, SampledPairs):
        return log_transitions_at(p, xi_previous[pairs.index], xi, u)
    return log_transitions(p, xi_previous, xi, u)
