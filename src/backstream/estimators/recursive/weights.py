"""Expectations under the backward kernels from samples of q_{t-1}: the importance weights.

In the frame of q_{t-1} its samples are standard normal draws z^j, and q_{t-1|t}(ξ_t^i, ·) ∝ N(0, I) ψ_i, so that the
weight of z^j for ξ_t^i is w_ij ∝ ψ_i(z^j) = exp(η̃_i · T(z^j)).

A `Weights` chooses, for each i, which j to use and with which weight: a `Pairs`. It averages what is known at the
samples, and turns the values r_ij of an integrand into Ê_i[r] with the cotangent of η_{t-1|t}(ξ_t^i), which is what
∇E_i[r] needs. The outer expectation, under q_t itself, is the same with one row and ψ = 1.
"""

import math
from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from backstream.laws.gaussian import Gaussian, cholesky, inverse, pack, statistic

from .baselines import AbstractBaseline


class Kernels(NamedTuple):
    """Rows of Gaussians proportional to N(0, I) ψ_i, in the frame of the law that was sampled."""

    potential: Float[Array, "n k"]
    """η̃_i, flat."""
    mean: Float[Array, "n d"]
    cov: Float[Array, "n d d"]
    log_normalizer: Float[Array, " n"]

    def mean_statistic(self) -> Float[Array, "n k"]:
        """E_i[T(Z)]."""
        second = self.cov + self.mean[:, :, None] * self.mean[:, None, :]
        return jnp.concatenate([self.mean, pack(second)], axis=1)


def standard_normal(dim: int, dtype) -> Kernels:
    """One row: the sampled law itself."""
    n = dim * (dim + 3) // 2
    zeros = jnp.zeros((1, n), dtype)
    log_normalizer = jnp.full((1,), 0.5 * dim * jnp.log(2 * jnp.pi), dtype)
    return Kernels(zeros, zeros[:, :dim], jnp.eye(dim, dtype=dtype)[None], log_normalizer)


class AbstractPairs(eqx.Module):
    log_potential: eqx.AbstractVar[Float[Array, "n k"]]
    """log ψ_i(z^j) of the pairs in use."""

    @abstractmethod
    def gather(self, values: Float[Array, "m *s"]) -> Float[Array, "#n k *s"]:
        """The values at the samples, laid out by pairs."""

    @abstractmethod
    def average(self, values: Float[Array, "m *s"]) -> Float[Array, "n *s"]:
        """Ê_i[values], for each row i."""

    @abstractmethod
    def centered_average(
        self, values: Float[Array, "m s"], row: Float[Array, " n"], factor: float
    ) -> tuple[Float[Array, "n s"], Float[Array, " s"]]:
        """factor · Ê_i[values] less its mean over the rows i, which have the weights `row`; and that mean."""

    @abstractmethod
    def coefficients(self) -> Float[Array, "n k"]:
        """The weights of the pairs in such an average."""

    @abstractmethod
    def value_and_score(
        self, r: Float[Array, "n k"], baseline: AbstractBaseline
    ) -> tuple[Float[Array, " n"], Float[Array, "n s"]]:
        """Ê_i[r], and S_i = Ê_i[(r − baseline) ∇_η log q_i], the cotangent of q_i's natural parameter."""

    @abstractmethod
    def ess(self) -> Float[Array, ""]:
        """The effective sample size 1/Σ_j w_ij², averaged over the rows."""

    @abstractmethod
    def acceptance(self) -> Float[Array, ""]:
        """The acceptance rate of accept-reject sampling, NaN elsewhere."""


def centered_product(
    w: Float[Array, "n m"], values: Float[Array, "m s"], row: Float[Array, " n"]
) -> tuple[Float[Array, "n s"], Float[Array, " s"]]:
    """w @ values less its mean under the weights `row`, and that mean. Only the small factor is centered."""
    mean = row @ w
    return (w - mean) @ values, mean @ values


class AllPairs(AbstractPairs):
    """Each row i has a weight for every sample j, and its weights sum to one: eq. (backwardweights)."""

    log_potential: Float[Array, "n m"]
    w: Float[Array, "n m"]
    statistics: Float[Array, "m s"]
    kernels: Kernels

    def gather(self, values):
        return values[None]

    def average(self, values):
        return jnp.tensordot(self.w, values, 1)

    def centered_average(self, values, row, factor):
        return centered_product(factor * self.w, values, row)

    def coefficients(self):
        return self.w

    def value_and_score(self, r, baseline):
        C = baseline.center(self.w, r)
        S = C @ self.statistics
        if not baseline.zero_sum:  # ∇_η log q_i = T(z) − E_i[T]; the second part drops out where Σ_j C_ij = 0
            S = S - C.sum(1, keepdims=True) * self.kernels.mean_statistic()
        return (self.w * r).sum(1), S

    def ess(self):
        return (1 / (self.w**2).sum(1)).mean()

    def acceptance(self):
        return jnp.full((), jnp.nan, self.w.dtype)


class SampledPairs(AbstractPairs):
    """M samples for each row, drawn from its weights."""

    log_potential: Float[Array, "n m"]
    index: Int[Array, "n m"]
    statistics: Float[Array, "m_all s"]
    kernels: Kernels
    ess_of_weights: Float[Array, ""]
    accepted: Float[Array, ""]

    def gather(self, values):
        return values[self.index]

    def average(self, values):
        # A sum over draws of [N]-gathers reads N·M rows, and never holds N·M of them at once.
        draws = self.index.shape[1]
        return sum((values[self.index[:, k]] for k in range(1, draws)), values[self.index[:, 0]]) / draws

    def centered_average(self, values, row, factor):
        # The mean by how often each sample is used: one more read of it, and no pass over the averages.
        draws = self.index.shape[1]
        used = jnp.zeros(len(values), row.dtype).at[self.index].add(row[:, None] / draws)
        mean = factor * (used @ values)
        return factor * self.average(values) - mean, mean

    def coefficients(self):
        return jnp.full(self.index.shape, 1 / self.index.shape[1], self.log_potential.dtype)

    def value_and_score(self, r, baseline):
        C = baseline.center(jnp.full_like(r, 1 / r.shape[1]), r)
        S = jnp.einsum("nm,nms->ns", C, self.statistics[self.index])
        if not baseline.zero_sum:
            S = S - C.sum(1, keepdims=True) * self.kernels.mean_statistic()
        return r.mean(1), S

    def ess(self):
        return self.ess_of_weights

    def acceptance(self):
        return self.accepted


class AbstractWeights(eqx.Module):
    @abstractmethod
    def pairs(self, kernels: Kernels, z: Float[Array, "m d"], *, key: Array) -> AbstractPairs:
        """The backward pairs, from draws z of the standard normal."""

    @abstractmethod
    def marginal(self, z: Float[Array, "m d"]) -> AbstractPairs:
        """One row, for expectations under the law of the draws itself."""

    @abstractmethod
    def num_draws(self, num_particles: int) -> int:
        """How many samples each row averages over."""


def _uniform(z: Float[Array, "m d"]) -> AllPairs:
    m, d = z.shape
    zeros = jnp.zeros((1, m), z.dtype)
    return AllPairs(zeros, zeros + 1 / m, statistic(z), standard_normal(d, z.dtype))


class SelfNormalized(AbstractWeights):
    """All N² weights, normalized by their sum."""

    def pairs(self, kernels, z, *, key):
        T = statistic(z)
        log_psi = kernels.potential @ T.T
        return AllPairs(log_psi, jax.nn.softmax(log_psi, axis=1), T, kernels)

    def marginal(self, z):
        return _uniform(z)

    def num_draws(self, num_particles):
        return num_particles


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise ValueError(f"The number of backward draws must be at least 1, not {draws}.")


def _categorical(w: Float[Array, "n m"], draws: int, key: Array) -> Int[Array, "n draws"]:
    """Independent draws from the rows of a matrix of weights, by inversion: first of a block of √M entries, then in it.

    Cumulative sums of whole rows would take most of a step.
    """
    n, m = w.shape
    size = math.isqrt(m - 1) + 1 if m > 1 else 1
    count = -(-m // size)
    blocks = jnp.pad(w, ((0, 0), (0, count * size - m))).reshape(n, count, size)

    def cumulative(rows):
        return rows @ jnp.triu(jnp.ones((rows.shape[-1],) * 2, w.dtype))

    sums = cumulative(blocks.sum(2))
    points = jax.random.uniform(key, (n, draws), w.dtype) * sums[:, -1:]
    block = jnp.minimum((sums[:, None] <= points[..., None]).sum(2), count - 1)
    before = jnp.take_along_axis(jnp.pad(sums, ((0, 0), (1, 0))), block, 1)
    within = cumulative(jnp.take_along_axis(blocks, block[..., None], 1))
    place = jnp.minimum((within <= (points - before)[..., None]).sum(2), size - 1)
    return jnp.minimum(block * size + place, m - 1).astype(jnp.int32)


class BackwardSampling(AbstractWeights):
    """`draws` indices for each row from the categorical law of its weights, as in PaRIS (Olsson and Westerborn)."""

    draws: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        _check_draws(self.draws)

    def pairs(self, kernels, z, *, key):
        T = statistic(z)
        log_psi = kernels.potential @ T.T
        w = jax.nn.softmax(log_psi, axis=1)
        index = _categorical(w, self.draws, key)
        ess = (1 / (w**2).sum(1)).mean()
        nan = jnp.full((), jnp.nan, z.dtype)
        return SampledPairs(jnp.take_along_axis(log_psi, index, 1), index, T, kernels, ess, nan)

    def marginal(self, z):
        return _uniform(z)

    def num_draws(self, num_particles):
        return self.draws


class AcceptReject(AbstractWeights):
    """The same law without normalizing the weights: a uniform index j is accepted with probability ψ_i(z^j)/sup ψ_i.

    The bound is known, log sup ψ_i = ½ η̃1ᵀ Λ̃⁻¹ η̃1, where ψ's precision Λ̃ is positive definite. After `max_trials` the
    rows still without an index get theirs from the exact categorical law, so that no unlucky row stalls the others; so
    does every row where the bound does not exist.
    """

    draws: int = eqx.field(static=True, default=2)
    max_trials: int = eqx.field(static=True, default=32)

    def __check_init__(self):
        _check_draws(self.draws)
        if self.max_trials < 1:
            raise ValueError(f"max_trials must be at least 1, not {self.max_trials}.")

    def pairs(self, kernels, z, *, key):
        T = statistic(z)
        n, (m, d) = len(kernels.potential), z.shape
        shape = (n, self.draws)
        log_sup = jax.vmap(_log_supremum, (0, None))(kernels.potential, d)
        key_loop, key_exact = jax.random.split(key)

        def log_psi_at(index):
            return jnp.einsum("ns,nms->nm", kernels.potential, T[index])

        def trial(loop):
            k, index, done, tried = loop
            key_index, key_accept = jax.random.split(jax.random.fold_in(key_loop, k))
            proposal = jax.random.randint(key_index, shape, 0, m, jnp.int32)
            log_uniform = jnp.log(jax.random.uniform(key_accept, shape, z.dtype))
            accept = log_uniform < log_psi_at(proposal) - log_sup[:, None]
            index = jnp.where(~done & accept, proposal, index)
            return k + 1, index, done | accept, tried + (~done).sum()

        def unfinished(loop):
            k, _, done, _ = loop
            return (k < self.max_trials) & ~done.all()

        nothing = (0, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool), 0)
        _, index, done, tried = jax.lax.while_loop(unfinished, trial, nothing)

        def exact():
            return _categorical(jax.nn.softmax(kernels.potential @ T.T, axis=1), self.draws, key_exact)

        index = jnp.where(done, index, jax.lax.cond(done.all(), lambda: index, exact))
        acceptance = jnp.asarray(done.sum() / tried, z.dtype)
        nan = jnp.full((), jnp.nan, z.dtype)
        return SampledPairs(log_psi_at(index), index, T, kernels, nan, acceptance)

    def marginal(self, z):
        return _uniform(z)

    def num_draws(self, num_particles):
        return self.draws


def _log_supremum(potential: Float[Array, " s"], dim: int) -> Float[Array, ""]:
    """sup_z η̃ · T(z), NaN (so that nothing is accepted) where ψ is not integrable."""
    psi = Gaussian(potential[:dim], potential[dim:])
    half = inverse(cholesky(psi.precision)) @ psi.eta1
    return 0.5 * half @ half
