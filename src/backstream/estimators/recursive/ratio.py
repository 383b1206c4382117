"""The recursion in its ratio form, for any law that can be sampled and evaluated.

With V_t = H_t − log q_t, so that L_t = E_{q_t}[V_t], and ρ_t(x, ·) = q_{t-1|t}(x, ·) / q_{t-1}, the recursion is

    V_t(x) = log g_t(x) − log q_t(x) + E_{q_{t-1|t}(x, ·)}[V_{t-1}(X) + log m_t(X, x) − log ρ_t(x, X)].

From N samples ξ_t^i of each q_t, the weights of ξ_{t-1}^j are w_ij ∝ ρ_t(ξ_t^i, ξ_{t-1}^j), normalized by their sum.
Only densities and draws of q_t are needed: a mixture will do. Where q is good V hardly varies, and what the weights get
wrong of it does not matter, whatever their effective sample size.

With the model's own dynamics as kernels, q_{t-1|t}(x, ·) ∝ q_{t-1} m_t(·, x), it is ρ_t = m_t / c_t(x) with
c_t(x) = E_{q_{t-1}}[m_t(X, x)], and V_t(x) = log {g_t(x) c_t(x) / q_t(x)} + E[V_{t-1}(X)].

The gradient in λ is that of the paper's recursion, with G_t(x) = ∇{V_t(x) + log q_t(x)}. With r_ij what is averaged
above and C_ij = w_ij (r_ij − baseline), Σ_j C_ij = 0, no normalizer of a kernel has to be differentiated:

    G_t^i = Σ_j w_ij G_{t-1}^j + Σ_j C_ij ∇log {q_{t-1}(ξ_{t-1}^j) ρ_t(ξ_t^i, ξ_{t-1}^j)}
    ∇L_t  = mean_i {G_t^i + ∇log q_t(ξ_t^i) (V_t^i − baseline)}
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compensated_sums import Running
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.families.kernels import Kernel
from backstream.families.tilted import TiltedKernel
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition, log_transitions

from ..base import Estimate, OnlineEstimate, OnlineEstimator, flatten, like
from ..first_row import NOT_SEEN, FirstRowApart
from .baselines import AbstractBaseline, LeaveOneOut
from .functionals import AdditiveFunctional
from .objectives import AbstractObjective, Increment
from .pullback import pull_back, pull_back_mean
from .sensitivity import AbstractSensitivity, Cotangents, Forward
from .weights import centered_product


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

    @abstractmethod
    def scores(
        self, p: StateSpaceModel, q: BackwardFamily, before: Samples, after: Samples, C: Float[Array, "n n"]
    ) -> Cotangents:
        """Σ_j C_ij ∇log {q_{t-1} ρ_t} at ξ_{t-1}^j and ξ_t^i, for each i, where the rows of C add up to zero."""


class OwnKernels(AbstractBackward):
    """Those of the family."""

    def log_ratios(self, p, q, before, after, log_m, u, *, key):
        kernel, law = q.kernel(p, after.state), q.marginal(before.state)
        return _log_kernels(kernel, law, before.xi, after.xi) - before.log_q

    def scores(self, p, q, before, after, C):
        return _scores(_log_kernels, p, q, before, after, C)


class TrueDynamics(AbstractBackward):
    """The model's own: q_{t-1|t}(x, ·) ∝ q_{t-1} m_t(·, x).

    The normalizer c_t(x) is the mean of q_{t-1} m_t / κ over `draws` fresh draws of the family's own kernel κ(x, ·),
    which is near: a mean of m_t over draws of q_{t-1} has next to none that count, beyond a few dimensions. Its
    logarithm is too low, on average, by half the relative variance of that mean.

    All N² pairs are weighted. The weights that draw indices instead, `BackwardSampling` and `AcceptReject`, need a
    normal potential, and are for `RecursiveScore`.
    """

    draws: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        _check_draws(self.draws)

    def log_ratios(self, p, q, before, after, log_m, u, *, key):
        kernel, law = q.kernel(p, after.state), q.marginal(before.state)

        def log_weight(own, origin, x):
            return law.log_prob(origin) + log_transition(p, origin, x, u) - own.log_prob(origin)

        return log_m - _log_means(kernel, law, after.xi, log_weight, self.draws, key)[:, None]

    def scores(self, p, q, before, after, C):
        # m_t does not depend on λ: of q_{t-1} ρ_t only q_{t-1} counts.
        ones = jnp.ones((len(before.xi), 1), C.dtype)
        rows = pull_back(lambda q, a, x: q.marginal(a).log_prob(x)[None], q, before.state, ones, before.xi).combine(C)
        return Cotangents(rows.direct, rows.to_now, None)


class FreePotentials(AbstractBackward):
    """Those of a `Tilted` family: its base's kernel times exp f(x_{t-1}, x_t), with any function f.

    The normalizer is the mean of exp f over `draws` fresh draws of the base's kernel: exact where f is constant. Its
    logarithm is too low, on average, by half the relative variance of that mean.
    """

    draws: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        _check_draws(self.draws)

    def log_ratios(self, p, q, before, after, log_m, u, *, key):
        kernel, law = _tilted(q.kernel(p, after.state)), q.marginal(before.state)
        log_mean = _log_means(kernel.base, law, after.xi, lambda _, *ends: kernel.tilt(*ends), self.draws, key)
        return _log_tilted(kernel, law, before.xi, after.xi) - before.log_q - log_mean[:, None]

    def scores(self, p, q, before, after, C):
        return _scores(_log_tilted, p, q, before, after, C)


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}.")


def _tilted(kernel: Kernel) -> TiltedKernel:
    if not isinstance(kernel, TiltedKernel):
        raise TypeError(f"FreePotentials is for the family Tilted: a {type(kernel).__name__} has no free potential.")
    return kernel


def _log_kernels(
    kernel: Kernel, law: Any, origins: Float[Array, "m d"], targets: Float[Array, "n d"]
) -> Float[Array, "n m"]:
    """log q_{t-1|t}(x, ·), for each target x at each origin."""
    return jax.vmap(lambda x: jax.vmap(kernel.at(law, x).log_prob)(origins))(targets)


def _log_tilted(
    kernel: TiltedKernel, law: Any, origins: Float[Array, "m d"], targets: Float[Array, "n d"]
) -> Float[Array, "n m"]:
    """The same of a tilted kernel, without its normalizer."""
    tilts = jax.vmap(lambda x: jax.vmap(lambda origin: kernel.tilt(origin, x))(origins))(targets)
    return _log_kernels(kernel.base, law, origins, targets) + tilts


def _log_means(
    kernel: Kernel,
    law: Any,
    targets: Float[Array, "n d"],
    log_weight: Callable[[Any, Array, Array], Array],
    draws: int,
    key: Array,
) -> Float[Array, " n"]:
    """The logarithm of the mean of exp log_weight(κ(x, ·), X, x) over draws X of κ(x, ·), for each target x."""

    def one(x, key):
        own = kernel.at(law, x)
        log_weights = jax.vmap(lambda origin: log_weight(own, origin, x))(own.sample((draws,), key=key))
        return jax.nn.logsumexp(log_weights) - jnp.log(draws)

    return jax.vmap(one)(targets, jax.random.split(key, len(targets)))


def _scores(
    log_kernels: Callable[..., Array],
    p: StateSpaceModel,
    q: BackwardFamily,
    before: Samples,
    after: Samples,
    C: Float[Array, "n n"],
) -> Cotangents:
    """Through what of the kernel comes from a_t, and through q_{t-1}, which a kernel may read."""
    kernel, law = q.kernel(p, after.state), q.marginal(before.state)

    def by_kernel(q, a, x):
        return log_kernels(q.kernel(p, a), law, before.xi, x[None])[0]

    def by_marginal(q, a, x):
        return log_kernels(kernel, q.marginal(a), before.xi, x[None])[0]

    now = pull_back(by_kernel, q, after.state, C, after.xi)
    past = pull_back(by_marginal, q, before.state, C, after.xi)
    return Cotangents([*now.direct, *past.direct], past.to_now, now.to_now)


class RatioCarry(NamedTuple):
    """What is handed from one observation to the next: of constant size, and bounded."""

    seen: Int[Array, ""]
    samples: Samples
    sensitivity: Any
    V: Running
    G: Running | None
    S: Running | None
    F: Running | None


class AtSamples(NamedTuple):
    """What is known at the samples of one time. `G_bar` is the mean of G, and the term of q_t itself."""

    V: Float[Array, " n"]
    G: Any = None
    G_bar: Any = None
    S: Any = None
    F: Any = None


class RatioScore(FirstRowApart, OnlineEstimator):
    """The ELBO from one observation to the next, and its gradient, for a family of any laws.

    `num_particles` is N. `backward` says which kernels q has: the family's own, the model's dynamics, or free
    potentials. `sensitivity` says how a_{t-1} and a_t depend on λ; without one, q is taken as it is, and there is no
    gradient in λ. `objective` is what is ascended, `baseline` the control variate. With `learn_model` the score
    S_t^i = Σ_j w_ij (S_{t-1}^j + ∇_θ log m_t g_t) is carried along: the gradient in θ, without what θ changes in a q
    that reads it. `functional` is an additive functional whose expectation under q_{0:t} is carried along too.

        estimator = RatioScore(100, learn_model=True)
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
        estimate.total.elbo, estimate.increment.gradient, estimate.increment.model_gradient
    """

    num_particles: int = eqx.field(static=True)
    backward: AbstractBackward = OwnKernels()
    sensitivity: AbstractSensitivity | None = Forward()
    objective: AbstractObjective = Increment()
    baseline: AbstractBaseline = LeaveOneOut()
    learn_model: bool = eqx.field(static=True, default=False)
    functional: AdditiveFunctional | None = None

    def __check_init__(self):
        if self.num_particles < 1:
            raise ValueError(f"num_particles must be at least 1, not {self.num_particles}.")
        if self.sensitivity is not None and (self.num_particles < 2 or not self.baseline.zero_sum):
            raise ValueError("The gradient of the ratio form needs at least 2 particles, and a baseline.")

    @property
    def learns_family(self) -> bool:
        return self.sensitivity is not None

    def check_family(self, q):
        if self.sensitivity is not None:
            self.sensitivity.check_family(q)

    def first(self, p, q, y, u, key):
        samples = Samples.draw(q, first_state(p, q, y, u), self.num_particles, key=key)

        def log_joint(p, x):
            return log_prior(p, x, u) + log_emission(p, x, y, u)

        V = jax.vmap(lambda x: log_joint(p, x))(samples.xi) - samples.log_q
        carry = RatioCarry(jnp.asarray(NOT_SEEN), samples, None, self._zeros((), V), None, None, None)
        found = AtSamples(V)
        if self.sensitivity is not None:
            [outer], sensitivity = self.sensitivity.init(p, q, y, u)(self._outer(q, samples, V))
            lam = flatten(q)[0]
            carry = carry._replace(sensitivity=sensitivity, G=self._zeros(lam.shape, lam))
            G, zero = jnp.zeros((self.num_particles, lam.size), lam.dtype), jnp.zeros_like(lam)
            found = found._replace(G=G, G_bar=(zero, outer.add_to(zero)))
        if self.learn_model:
            theta, rebuild = flatten(p)
            S = jax.vmap(jax.grad(lambda v, x: log_joint(rebuild(v), x)), (None, 0))(theta, samples.xi)
            carry, found = carry._replace(S=self._zeros(theta.shape, theta)), found._replace(S=S)
        if self.functional is not None:
            F = self.functional.at_first(samples.xi, y)
            carry, found = carry._replace(F=self._zeros(F.shape[1:], F)), found._replace(F=F)
        return self._conclude(p, q, carry, found, y, jnp.full_like(V[0], jnp.nan))

    def _zeros(self, shape, like: Array) -> Running:
        return Running.zeros(self.num_particles, shape, like.dtype)

    def later(self, p, q, carry, y, u, key):
        key_draw, key_ratio = jax.random.split(key)
        before, gamma = carry.samples, self.objective.discount
        after = Samples.draw(q, q.update(p, before.state, y, u), self.num_particles, key=key_draw)

        log_m = log_transitions(p, before.xi, after.xi, u)
        log_ratio = self.backward.log_ratios(p, q, before, after, log_m, u, key=key_ratio)
        w = jax.nn.softmax(log_ratio, axis=1)
        log_g = jax.vmap(lambda x: log_emission(p, x, y, u))(after.xi)
        r = gamma * carry.V.at_samples + log_m - log_ratio
        V = log_g - after.log_q + (w * r).sum(1)

        found = AtSamples(V)
        if self.sensitivity is not None:
            row = jnp.full(self.num_particles, 1 / self.num_particles, w.dtype)
            scores = self.backward.scores(p, q, before, after, self.baseline.center(w, r)).centered(row)
            pull = self.sensitivity.advance(p, q, carry.sensitivity, before.state, y, u)
            (*pulled, outer), sensitivity = pull(*scores, self._outer(q, after, V))
            sums = zip(pulled, centered_product(gamma * w, carry.G.at_samples, row), strict=True)
            G, inner = (score.add_to(past) for score, past in sums)
            found = found._replace(G=G, G_bar=(inner, outer.add_to(jnp.zeros_like(inner))))
            carry = carry._replace(sensitivity=sensitivity)
        if carry.S is not None:
            S = gamma * w @ carry.S.at_samples + self._model_score(p, w, before.xi, after.xi, y, u)
            found = found._replace(S=S)
        if carry.F is not None and self.functional is not None:
            added = jax.vmap(self.functional.row_average, (0, None, 0, None))(w, before.xi, after.xi, y)
            found = found._replace(F=w @ carry.F.at_samples + added)
        carry = carry._replace(samples=after)
        return self._conclude(p, q, carry, found, y, (1 / (w**2).sum(1)).mean())

    def _outer(self, q, samples: Samples, V: Float[Array, " n"]) -> Cotangents:
        """Of mean_i ∇log q_t(ξ_t^i) (V_t^i − baseline)."""
        row = jnp.full(len(V), 1 / len(V), V.dtype)
        C = self.baseline.center(row[None], V[None])[0]

        def log_q(q, a, x):
            return q.marginal(a).log_prob(x)[None]

        return pull_back_mean(log_q, q, samples.state, C[:, None], samples.xi, jnp.ones_like(row))

    def _model_score(self, p, w, xi_before, xi, y, u) -> Float[Array, "n t"]:
        """Σ_j w_ij ∇_θ {log m_t(ξ_{t-1}^j, ξ_t^i) + log g_t(ξ_t^i)} for each i."""
        theta, rebuild = flatten(p)

        def averaged(v, x, weight):
            p = rebuild(v)
            return weight @ log_transitions(p, xi_before, x[None], u)[0] + log_emission(p, x, y, u)

        return jax.vmap(jax.grad(averaged), (None, 0, 0))(theta, xi, w)

    def expectation(self, q: BackwardFamily, carry: RatioCarry) -> PyTree:
        """What a carry knows of the additive functional: its expectation under q_{0:t}."""
        if self.functional is None or carry.F is None:
            raise ValueError("There is no functional whose expectation could be told: give RatioScore one.")
        xi = carry.samples.xi
        return self.functional.restore(carry.F.sum.total() + carry.F.rest, xi, jnp.zeros(q.obs_dim, xi.dtype))

    def _conclude(self, p, q, carry: RatioCarry, found: AtSamples, y, ess) -> tuple[RatioCarry, OnlineEstimate]:
        """L_t and its gradients, and what they add; V, G, S and F are kept centered, and what is taken out is summed
        apart."""
        gamma, direction, V = self.objective.discount, self.objective.direction, found.V
        running, elbo, elbo_change = carry.V.advance(V - V.mean(), V.mean(), V.mean(), gamma)
        carry, gradient, change, functional = carry._replace(V=running), None, None, None
        slope = slope_change = jnp.zeros_like(flatten(q)[0])
        if carry.G is not None and found.G_bar is not None:
            inner, outer = found.G_bar
            kept, slope, slope_change = carry.G.advance(found.G, inner + outer, inner, gamma)
            carry = carry._replace(G=kept)
        if carry.S is not None and found.S is not None:
            S_bar = found.S.mean(0)
            scores, gradient, change = carry.S.advance(found.S - S_bar, S_bar, S_bar, gamma)
            carry = carry._replace(S=scores)
        if carry.F is not None and found.F is not None and self.functional is not None:
            F_bar = found.F.mean(0)
            kept, functional, _ = carry.F.advance(found.F - F_bar, F_bar, F_bar)
            carry, functional = carry._replace(F=kept), self.functional.restore(functional, carry.samples.xi, y)

        def estimate(elbo, slope, gradient):
            return Estimate(elbo, like(q, slope), None if gradient is None else like(p, gradient))

        increment = estimate(
            direction(elbo, elbo_change),
            direction(slope, slope_change),
            None if gradient is None or change is None else direction(gradient, change),
        )
        nan = jnp.full_like(elbo, jnp.nan)
        return carry, OnlineEstimate(estimate(elbo, slope, gradient), increment, ess, nan, functional)
