"""The recursion in its ratio form, for any law that can be sampled and evaluated.

With V_t = H_t − log q_t, so that L_t = E_{q_t}[V_t], and ρ_t(x, ·) = q_{t-1|t}(x, ·) / q_{t-1}, the recursion is

    V_t(x) = log g_t(x) − log q_t(x) + E_{q_{t-1|t}(x, ·)}[V_{t-1}(X) + log m_t(X, x) − log ρ_t(x, X)].

From N samples ξ_t^i of each q_t, the weights of ξ_{t-1}^j are w_ij ∝ ρ_t(ξ_t^i, ξ_{t-1}^j), normalised by their sum.
Only densities and draws of q_t are needed: a mixture will do. Where q is good V hardly varies, and what the weights get
wrong of it does not matter, whatever their effective sample size.

With the model's own dynamics as kernels, q_{t-1|t}(x, ·) ∝ q_{t-1} m_t(·, x), it is ρ_t = m_t / c_t(x) with
c_t(x) = E_{q_{t-1}}[m_t(X, x)], and V_t(x) = log {g_t(x) c_t(x) / q_t(x)} + E[V_{t-1}(X)].
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from backstream._jax.compensated_sums import Running
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition, log_transitions

from ..base import Estimate, OnlineEstimate, OnlineEstimator, check_case, flatten, like


class Samples(NamedTuple):
    """N draws of q_t, with its density at them."""

    state: PyTree
    xi: Float[Array, "n d"]
    log_q: Float[Array, " n"]

    @classmethod
    def draw(cls, q: BackwardFamily, state: PyTree, number: int, *, key: Array) -> "Samples":
        law = q.marginal(state)
        xi = law.sample((number,), key=key)
        return cls(state, xi, jax.vmap(law.log_prob)(xi))


class AbstractBackward(eqx.Module):
    """Which backward kernels q has."""

    @abstractmethod
    def log_ratios(
        self,
        p: StateSpaceModel,
        q: BackwardFamily,
        before: Samples,
        after: Samples,
        log_m: Float[Array, "n n"],
        u: Inputs,
        *,
        key: Array,
    ) -> Float[Array, "n n"]:
        """log ρ_t(ξ_t^i, ξ_{t-1}^j). `log_m` are the log densities of the model's moves between them."""


class OwnKernels(AbstractBackward):
    """Those of the family."""

    def log_ratios(self, p, q, before, after, log_m, u, *, key):
        kernel, law = q.kernel(p, after.state), q.marginal(before.state)

        def row(x):
            return jax.vmap(kernel.at(law, x).log_prob)(before.xi)

        return jax.vmap(row)(after.xi) - before.log_q


class TrueDynamics(AbstractBackward):
    """The model's own: q_{t-1|t}(x, ·) ∝ q_{t-1} m_t(·, x).

    The normaliser c_t(x) is the mean of q_{t-1} m_t / κ over `draws` fresh draws of the family's own kernel κ(x, ·),
    which is near: a mean of m_t over draws of q_{t-1} has next to none that count, beyond a few dimensions. Its
    logarithm is too low, on average, by half the relative variance of that mean.
    """

    draws: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, not {self.draws}.")

    def log_ratios(self, p, q, before, after, log_m, u, *, key):
        kernel, law = q.kernel(p, after.state), q.marginal(before.state)

        def log_normaliser(x, key):
            own = kernel.at(law, x)

            def log_weight(origin):
                return law.log_prob(origin) + log_transition(p, origin, x, u) - own.log_prob(origin)

            return jax.nn.logsumexp(jax.vmap(log_weight)(own.sample((self.draws,), key=key))) - jnp.log(self.draws)

        log_c = jax.vmap(log_normaliser)(after.xi, jax.random.split(key, len(after.xi)))
        return log_m - log_c[:, None]


class RatioCarry(NamedTuple):
    """What is handed from one observation to the next: of constant size, and bounded."""

    samples: Samples
    V: Running
    S: Running | None


class RatioScore(OnlineEstimator):
    """The ELBO from one observation to the next, and its gradient in θ at a given q, for a family of any laws.

    `num_particles` is N; `backward` says which kernels q has: the family's own, or the model's dynamics. With
    `learn_model` the score S_t^i = Σ_j w_ij (S_{t-1}^j + ∇_θ log m_t g_t) is carried along: the gradient in θ, without
    what θ changes in a q that reads it. There is none in λ: q is taken as it is.

        estimator = RatioScore(100, learn_model=True)
        carry, estimate = estimator.init(p, q, ys[0], key=key)
        carry, estimate = estimator.step(p, q, carry, ys[1], key=another_key)
        estimate.total.elbo, estimate.increment.model_gradient
    """

    num_particles: int = eqx.field(static=True)
    backward: AbstractBackward = OwnKernels()
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.num_particles < 1:
            raise ValueError(f"num_particles must be at least 1, not {self.num_particles}.")

    @property
    def learns_family(self) -> bool:
        return False

    def init(self, p, q, y, u=None, *, key):
        check_case(p, q, y, u)
        samples = Samples.draw(q, first_state(p, q, y, u), self.num_particles, key=key)

        def log_joint(p, x):
            return log_prior(p, x, u) + log_emission(p, x, y, u)

        V = jax.vmap(lambda x: log_joint(p, x))(samples.xi) - samples.log_q
        carry, S = RatioCarry(samples, Running.zeros(self.num_particles, (), V.dtype), None), None
        if self.learn_model:
            theta, rebuild = flatten(p)
            S = jax.vmap(jax.grad(lambda v, x: log_joint(rebuild(v), x)), (None, 0))(theta, samples.xi)
            carry = carry._replace(S=Running.zeros(self.num_particles, theta.shape, theta.dtype))
        return self._conclude(p, q, carry, V, S, jnp.full_like(V[0], jnp.nan))

    def step(self, p, q, carry, y, u=None, *, key):
        key_draw, key_ratio = jax.random.split(key)
        before = carry.samples
        after = Samples.draw(q, q.update(p, before.state, y, u), self.num_particles, key=key_draw)

        log_m = log_transitions(p, before.xi, after.xi, u)
        log_ratio = self.backward.log_ratios(p, q, before, after, log_m, u, key=key_ratio)
        w = jax.nn.softmax(log_ratio, axis=1)
        log_g = jax.vmap(lambda x: log_emission(p, x, y, u))(after.xi)
        V = log_g - after.log_q + (w * (carry.V.at_samples + log_m - log_ratio)).sum(1)
        S = None
        if carry.S is not None:
            S = w @ carry.S.at_samples + self._model_score(p, w, before.xi, after.xi, y, u)
        return self._conclude(p, q, carry._replace(samples=after), V, S, (1 / (w**2).sum(1)).mean())

    def _model_score(self, p, w, xi_before, xi, y, u) -> Float[Array, "n t"]:
        """Σ_j w_ij ∇_θ {log m_t(ξ_{t-1}^j, ξ_t^i) + log g_t(ξ_t^i)} for each i."""
        theta, rebuild = flatten(p)

        def averaged(v, x, weight):
            p = rebuild(v)
            return weight @ log_transitions(p, xi_before, x[None], u)[0] + log_emission(p, x, y, u)

        return jax.vmap(jax.grad(averaged), (None, 0, 0))(theta, xi, w)

    def _conclude(self, p, q, carry: RatioCarry, V, S, ess) -> tuple[RatioCarry, OnlineEstimate]:
        """L_t and its gradient, and what they add; V and S are kept centred, and what is taken out is summed apart."""
        running, elbo, elbo_change = carry.V.advance(V - V.mean(), V.mean(), V.mean())
        carry, gradient, change = carry._replace(V=running), None, None
        if carry.S is not None and S is not None:
            scores, gradient, change = carry.S.advance(S - S.mean(0), S.mean(0), S.mean(0))
            carry = carry._replace(S=scores)
        nothing = like(q, jnp.zeros_like(flatten(q)[0]))

        def estimate(elbo, gradient):
            return Estimate(elbo, nothing, None if gradient is None else like(p, gradient))

        nan = jnp.full_like(elbo, jnp.nan)
        return carry, OnlineEstimate(estimate(elbo, gradient), estimate(elbo_change, change), ess, nan)
