"""The score estimator where the whole sequence is at hand: the same numbers, by reverse-mode differentiation."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from backstream.estimators.base import OfflineEstimator, differentiate
from backstream.estimators.recursive.particles import Particles, backward_kernels, draw, log_backward, log_transition
from backstream.estimators.recursive.score import RecursiveScore
from backstream.estimators.recursive.sensitivity import Forward
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.models.density import log_emission, log_prior


class ReverseScore(OfflineEstimator):
    """What the steps of `score` add up to over a sequence with λ held still, for a sequence that fits in memory.

    With the paper's increments that is the ELBO and its gradient, as by `Scan(score)`; with `Renewal(γ)` the sum over t
    of (1 − γ) L_t^γ. The recursion carries G_t^i, a row of P numbers for each sample, and ∂a_t/∂λ, because it must not
    look back. Here a single number g_t^i is carried instead of G_t^i,

        g_t^i = Σ_j w_ij g_{t-1}^j + S_i · (η_{t-1} + η̃_t(ξ_t^i)),

    with samples, weights and S_i (see `score.py`) frozen, so that ∇g_t^i = G_t^i. One backward pass through all states
    a_t differentiates it. Memory grows with T; no product with ∂a_t/∂λ is ever formed.

        estimate = ReverseScore(RecursiveScore(2))(p, q, ys, key=key)
    """

    score: RecursiveScore

    def __check_init__(self):
        if not isinstance(self.score.sensitivity, Forward):
            name = type(self.score.sensitivity).__name__
            raise ValueError(f"ReverseScore differentiates through all states: it cannot do {name}().")
        if self.score.learn_model or self.score.functional is not None:
            raise ValueError("ReverseScore gives the gradient in λ only: no learn_model and no functional.")

    def estimate(self, p, q, ys, inputs, key):
        score, gamma = self.score, self.score.objective.discount
        telescopes = gamma == 1  # what the observations add is L_T: only the last outer term is left
        first, later = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in (0, slice(1, None)))
        frozen = _frozen(q)

        def sample(state, key) -> Particles:
            return draw(frozen, stop_gradient(state), score.num_particles, key=key)

        def log_g(xi, y, u):
            return jax.vmap(lambda x: log_emission(p, x, y, u))(xi)

        def eta_backward(q, a_previous, a, previous: Particles, xi):
            """η_{t-1|t}(ξ^i) in the frame of q_{t-1}, a function of λ."""
            before = q.marginal(a_previous).into(previous.frame).eta
            return before + jax.vmap(lambda x: q.kernel(p, a).potential(x).into(previous.frame).eta)(xi)

        def surrogate(p, q):
            """Something that has the gradient, and the objective itself."""

            def outer(a, now: Particles, H, g, shift):
                """Both for L_t, given H_t less `shift`."""
                marginal = score.weights.marginal(now.z)
                value, S = marginal.value_and_score((H - now.log_q())[None], score.baseline)
                return marginal.average(g)[0] + S[0] @ q.marginal(a).into(now.frame).eta, value[0] + shift

            def add(sums, *latest):
                if telescopes:
                    return sums
                return jax.tree.map(lambda total, new: total + (1 - gamma) * new, sums, outer(*latest))

            def advance(carry, scanned):
                (a_previous, previous, H, g, shift), sums = carry
                t, y, u = scanned
                a = q.update(p, a_previous, y, u)
                key_draw, key_pairs = jax.random.split(jax.random.fold_in(key, t))
                now = sample(a, key_draw)
                xi_previous, xi = previous.xi, now.xi
                kernels = backward_kernels(frozen.kernel(p, now.state), previous, xi)
                pairs = score.weights.pairs(kernels, previous.z, key=key_pairs)
                f = log_transition(p, pairs, xi_previous, xi, u) + log_g(xi, y, u)[:, None]
                renewed = score.objective.renew(H, previous.log_q())
                r = pairs.gather(renewed) + f - log_backward(previous, pairs, kernels)
                H, S = pairs.value_and_score(r, score.baseline)
                g = gamma * pairs.average(g) + (S * eta_backward(q, a_previous, a, previous, xi)).sum(1)
                taken = H.mean() if score.baseline.zero_sum else jnp.zeros_like(shift)
                latest = a, now, H - taken, g, gamma * shift + taken
                return (latest, add(sums, *latest)), None

            a = first_state(p, q, ys[0], first)
            start = sample(a, jax.random.fold_in(key, 0))
            H = jax.vmap(lambda x: log_prior(p, x, first))(start.xi) + log_g(start.xi, ys[0], first)
            zero = jnp.zeros_like(H[0])
            latest = a, start, H, jnp.zeros_like(H), zero
            steps = (jnp.arange(1, len(ys)), ys[1:], later)
            (latest, sums), _ = jax.lax.scan(advance, (latest, add((zero, zero), *latest)), steps)
            return outer(*latest) if telescopes else sums

        estimate, objective = differentiate(surrogate, p, q, learn_model=False, has_aux=True)
        return estimate._replace(elbo=objective)


def _frozen(q: BackwardFamily) -> BackwardFamily:
    arrays, static = eqx.partition(q, eqx.is_inexact_array)
    return eqx.combine(stop_gradient(arrays), static)
