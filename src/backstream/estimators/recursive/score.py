"""The recursive score estimator: the paper's Algorithm 1, with its errata put right.

With N i.i.d. samples ξ_t^i of q_t and the weights w_ij of the backward kernels (eq. backwardweights),

    H_t^i = Σ_j w_ij (H_{t-1}^j + f̃_t(ξ_{t-1}^j, ξ_t^i))                                             (approx:Hstat)
    G_t^i = Σ_j w_ij {G_{t-1}^j + ∇log q_{t-1|t}(ξ_t^i, ξ_{t-1}^j) (H_{t-1}^j + f̃_t − baseline)}     (approx:Gstat)
    L_t   = mean_i {H_t^i − log q_t(ξ_t^i)}                                                          (approx:ELBO)
    ∇L_t  = mean_i {G_t^i + ∇log q_t(ξ_t^i) (H_t^i − log q_t(ξ_t^i) − baseline)}                     (approx:grad:ELBO)

where f̃_t = log m_t + log g_t − log q_{t-1|t}. Where the printed text differs it is wrong, and the appendix' own proof
says so: the sum for G runs over j; the last line needs the entropy term −log q_t; H on the right-hand side of
Algorithm 1 has time t − 1; ∇log q_t is taken under λ_t; the online update ascends ∇L_t − ∇L_{t-1}, not ∇L_t.

Three pieces of algebra make it fast and keep it bounded:

* q_{t-1|t}(ξ^i, ·) has natural parameter η_{t-1} + η̃_t(ξ^i) and sufficient statistic T, so that the score term of
  particle i is the pullback of one vector, S_i = Σ_j C_ij T(ξ_{t-1}^j), through λ ↦ η_{t-1} + η̃_t(ξ^i): N pullbacks,
  never N² gradients.
* H and G may be shifted by any constant. They are centered at every step, and what was taken out is summed apart,
  compensated: nothing else in the carry grows with t.
* All of it happens in the frame of q_{t-1}, where its samples are standard normal draws.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compensated_sums import Running
from backstream.estimators.base import Estimate, OnlineEstimate, OnlineEstimator, flatten, like
from backstream.estimators.first_row import NOT_SEEN, FirstRowApart
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.models.density import log_emission, log_prior, log_transitions

from .baselines import AbstractBaseline, LeaveOneOut
from .functionals import AdditiveFunctional, vmap_rows
from .objectives import AbstractObjective, Increment
from .particles import Particles, backward_kernels, draw, log_backward, log_transition
from .pullback import pull_back, pull_back_mean
from .sensitivity import AbstractSensitivity, Cotangents, Forward
from .weights import AbstractWeights, SelfNormalized


class ScoreCarry(NamedTuple):
    """What is handed from one observation to the next: of constant size, and bounded."""

    seen: Int[Array, ""]
    particles: Particles
    sensitivity: Any
    H: Running
    G: Running | None
    S: Running | None
    F: Running | None


class AtSamples(NamedTuple):
    """What one step finds at the samples of q_t, less what was taken out before."""

    elbo: Float[Array, ""]
    outer: Float[Array, " p"]
    """The gradient's own score term, the mean of ∇log q_t (H_t − log q_t)."""
    H: Float[Array, " n"]
    G: Float[Array, "n p"] | None
    G_bar: Float[Array, " p"]
    S: Float[Array, "n t"] | None
    F: Float[Array, "n f"] | None


class RecursiveScore(FirstRowApart, OnlineEstimator):
    """The ELBO and its gradient from one observation to the next, without ever going back.

    `num_particles` is N. `weights` chooses the backward weights, `baseline` the control variate, `sensitivity` how
    η_{t-1} and η_t depend on λ, `objective` what is ascended. `learn_model` adds the gradient in θ at a given q,
    without what θ changes in a q that reads it; `functional` an additive functional whose expectation under q_{0:t}
    rides on the same weights.

        estimator = RecursiveScore(100)
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
        estimate.increment.gradient
    """

    num_particles: int = eqx.field(static=True)
    weights: AbstractWeights = SelfNormalized()
    sensitivity: AbstractSensitivity = Forward()
    baseline: AbstractBaseline = LeaveOneOut()
    objective: AbstractObjective = Increment()
    learn_model: bool = eqx.field(static=True, default=False)
    functional: AdditiveFunctional | None = None

    def __check_init__(self):
        if self.num_particles < 1:
            raise ValueError(f"num_particles must be at least 1, not {self.num_particles}.")
        draws = min(self.num_particles, self.weights.num_draws(self.num_particles))
        if draws < self.baseline.least_draws:
            raise ValueError(
                f"{type(self.baseline).__name__} needs at least {self.baseline.least_draws} draws to average over, "
                f"but there are {self.num_particles} particles and {type(self.weights).__name__} uses {draws}."
            )

    def check_family(self, q):
        self.sensitivity.check_family(q)

    def first(self, p, q, y, u, key):
        particles = draw(q, first_state(p, q, y, u), self.num_particles, key=key)
        (lam, _), (theta, rebuild), xi = flatten(q), flatten(p), particles.xi

        def log_joint(p, x):  # log ℓ_0(x, y_0) = log χ(x) + log g_0(x, y_0)
            return log_prior(p, x, u) + log_emission(p, x, y, u)

        def nothing(*shape):
            return Running.zeros(self.num_particles, shape, lam.dtype)

        S = F = None
        if self.learn_model:
            S = jax.vmap(jax.grad(lambda v, x: log_joint(rebuild(v), x)), (None, 0))(theta, xi)
        if self.functional is not None:
            F = self.functional.at_first(xi, y)
        H = jax.vmap(lambda x: log_joint(p, x))(xi)
        marginal, nan = self.weights.marginal(particles.z), jnp.full((), jnp.nan, lam.dtype)
        elbo, outer = self._outer(q, particles, marginal, H)
        [pulled], sensitivity = self.sensitivity.init(p, q, y, u)(outer)
        carry = ScoreCarry(
            jnp.asarray(NOT_SEEN),
            particles,
            sensitivity,
            H=nothing(),
            G=nothing(lam.size) if self.sensitivity.remembers else None,
            S=None if S is None else nothing(*S.shape[1:]),
            F=None if F is None else nothing(*F.shape[1:]),
        )
        G, zero = None if carry.G is None else carry.G.at_samples, jnp.zeros_like(lam)
        found = AtSamples(elbo, pulled.add_to(zero), H, G, zero, S, F)
        return self._conclude(p, q, carry, marginal, found, y, (nan, nan))

    def later(self, p, q, carry, y, u, key):
        key_draw, key_pairs = jax.random.split(key)
        previous, gamma = carry.particles, self.objective.discount

        # a_t, q_t and its samples ξ_t; the backward kernels q_{t-1|t}(ξ_t^i, ·) and their weights w_ij
        particles = draw(q, q.update(p, previous.state, y, u), self.num_particles, key=key_draw)
        xi_previous, xi = previous.xi, particles.xi
        kernels = backward_kernels(q.kernel(p, particles.state), previous, xi)
        pairs = self.weights.pairs(kernels, previous.z, key=key_pairs)

        # r_ij = H_{t-1}^j + f̃_t(ξ_{t-1}^j, ξ_t^i)
        log_m = log_transition(p, pairs, xi_previous, xi, u)
        log_g = jax.vmap(lambda x: log_emission(p, x, y, u))(xi)
        H_previous = self.objective.renew(carry.H.at_samples, previous.log_q())
        r = pairs.gather(H_previous) + log_m + log_g[:, None] - log_backward(previous, pairs, kernels)

        # H_t^i, and S_i = Σ_j C_ij T(ξ_{t-1}^j) pulled back through λ ↦ η_{t-1} + η̃_t(ξ^i)
        H, eta_cotangents = pairs.value_and_score(r, self.baseline)
        marginal = self.weights.marginal(particles.z)
        row = marginal.coefficients()[0]
        elbo, outer = self._outer(q, particles, marginal, H)
        if carry.G is None:  # of G only its mean is needed, and one pullback gives it
            to_mean = partial(pull_back_mean, row=row)
            scores = [self._pull_backward(to_mean, p, q, previous, particles.state, xi, eta_cotangents)]
        else:
            scores = self._pull_backward(pull_back, p, q, previous, particles.state, xi, eta_cotangents).centered(row)
        pull = self.sensitivity.advance(p, q, carry.sensitivity, previous.state, y, u)
        (*pulled, pulled_outer), sensitivity = pull(*scores, outer)
        zero = jnp.zeros_like(flatten(q)[0])
        G = S = F = None
        if carry.G is not None:
            # G_t^i less its mean, and the mean, each formed once: what is centered are the small factors
            sums = zip(pulled, pairs.centered_average(carry.G.at_samples, row, gamma), strict=True)
            G, G_bar = (score.add_to(past) for score, past in sums)
            G = G if self.baseline.zero_sum else G + G_bar
        else:
            G_bar = pulled[0].add_to(zero)
        if carry.S is not None:
            S = gamma * pairs.average(carry.S.at_samples) + self._model_score(p, pairs, xi_previous, xi, y, u)
        if self.functional is not None:
            F = pairs.average(carry.F.at_samples) + self.functional.average(pairs, xi_previous, xi, y)
        carry = carry._replace(particles=particles, sensitivity=sensitivity)
        found = AtSamples(elbo, pulled_outer.add_to(zero), H, G, G_bar, S, F)
        return self._conclude(p, q, carry, marginal, found, y, (pairs.ess(), pairs.acceptance()))

    def by_sample(self, carry):
        marks = jax.tree.map(lambda _: False, carry)
        found = {"particles": marks.particles._replace(z=True)}
        for name in ("H", "G", "S", "F"):
            running = getattr(marks, name)
            found[name] = None if running is None else running._replace(at_samples=True)
        return marks._replace(**found)

    def expectation(self, q: BackwardFamily, carry: ScoreCarry) -> PyTree:
        """What a carry knows of the additive functional: its expectation under q_{0:t}. A learner's state holds such a
        carry, and so does each stream of a panel."""
        if self.functional is None or carry.F is None:
            raise ValueError("There is no functional whose expectation could be told: give RecursiveScore one.")
        total, xi = carry.F.sum.total() + carry.F.rest, carry.particles.xi
        return self.functional.restore(total, xi, jnp.zeros(q.obs_dim, xi.dtype))

    def _outer(self, q, particles, marginal, H) -> tuple[Float[Array, ""], Cotangents]:
        """L_t less what was taken out of H, and the cotangent of its own score term, ∇log q_t (H_t − log q_t)."""
        r = H - particles.log_q()  # with the entropy term, which the printed algorithm lacks
        elbo, eta_cotangent = marginal.value_and_score(r[None], self.baseline)
        return elbo[0], self._pull_marginal(q, particles, eta_cotangent[0])

    def _conclude(self, p, q, carry, marginal, found: AtSamples, y, quality: tuple[Array, Array]):
        """From what is known at the samples of q_t to L_t, ∇L_t and what they add to L_{t-1}, ∇L_{t-1}. `quality` is
        the weights' effective sample size and share of accepted draws."""
        elbo, outer, H, G, G_bar, S, F = found
        particles, gamma, direction = carry.particles, self.objective.discount, self.objective.direction
        shift = 1.0 if self.baseline.zero_sum else 0.0  # without a baseline nothing may be taken out
        H_shift = shift * marginal.average(H)[0]

        running_H, L, L_change = carry.H.advance(H - H_shift, elbo, H_shift, gamma)
        running_G, running_S, running_F = carry.G, carry.S, carry.F
        gradient = gradient_change = G_bar + outer
        model_gradient = model_change = functional = None
        if running_G is not None:
            running_G, gradient, gradient_change = running_G.advance(G, G_bar + outer, shift * G_bar, gamma)
        if running_S is not None:
            S_bar = marginal.average(S)[0]
            running_S, model_gradient, model_change = running_S.advance(S - S_bar, S_bar, S_bar, gamma)
        if self.functional is not None:
            F_bar = marginal.average(F)[0]
            running_F, functional, _ = running_F.advance(F - F_bar, F_bar, F_bar)
            functional = self.functional.restore(functional, particles.xi, y)

        def estimate(elbo, gradient, model_gradient):
            return Estimate(elbo, like(q, gradient), None if model_gradient is None else like(p, model_gradient))

        increment = estimate(
            direction(L, L_change),
            direction(gradient, gradient_change),
            None if model_gradient is None or model_change is None else direction(model_gradient, model_change),
        )
        total = estimate(L, gradient, model_gradient)
        carry = carry._replace(H=running_H, G=running_G, S=running_S, F=running_F)
        return carry, OnlineEstimate(total, increment, *quality, functional)

    def _pull_backward(self, pull_back, p, q, previous, state, xi, cotangents) -> Cotangents:
        """Cotangents of η_{t-1|t}(ξ^i) = η_{t-1} + η̃_t(ξ^i), in the frame of q_{t-1}: one row for each i, or a
        mean."""
        through_potential = pull_back(
            lambda q, a, x: q.kernel(p, a).potential(x).into(previous.frame).eta, q, state, cotangents, xi
        )
        through_marginal = pull_back(
            lambda q, a, _: q.marginal(a).into(previous.frame).eta, q, previous.state, cotangents, xi
        )
        direct = [*through_potential.direct, *through_marginal.direct]
        return Cotangents(direct, through_marginal.to_now, through_potential.to_now)

    def _pull_marginal(self, q, particles, cotangent) -> Cotangents:
        """A cotangent of η_t, in the frame of q_t."""

        def eta(q, a, _):
            return q.marginal(a).into(particles.frame).eta

        one = jnp.ones(1, cotangent.dtype)
        return pull_back_mean(eta, q, particles.state, cotangent[None], particles.xi[:1], one)

    def _model_score(self, p, pairs, xi_previous, xi, y, u) -> Float[Array, "n t"]:
        """Ê_i[∇_θ log ℓ_t(X_{t-1}, ξ_t^i)] for each i."""
        theta, rebuild = flatten(p)

        def row(x_previous, x, coefficients):
            def averaged(v):
                p = rebuild(v)
                return coefficients @ log_transitions(p, x_previous, x[None], u)[0] + log_emission(p, x, y, u)

            return jax.grad(averaged)(theta)

        return vmap_rows(row, pairs, xi_previous)(xi, pairs.coefficients())
