"""The score estimator where the whole sequence is at hand: the same numbers, by reverse-mode differentiation."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from backstream.families.base import BackwardFamily
from backstream.models.density import log_emission, log_prior

from .base import OfflineEstimator, check_case, differentiate, require_amortised
from .objectives import Increment
from .particles import Particles, backward_kernels, draw, log_backward, log_transition
from .score import RecursiveScore
from .sensitivity import Forward


class ReverseScore(OfflineEstimator):
    """The ELBO and gradient of `Scan(score)`, for a sequence that fits in memory.

    The recursion carries G_t^i, a row of P numbers for each sample, and ∂a_t/∂λ, because it must not look back. Here a
    single number g_t^i is carried in the place of G_t^i,

        g_t^i = Σ_j w_ij g_{t-1}^j + S_i · (η_{t-1} + η̃_t(ξ_t^i)),

    with samples, weights and S_i (see `score.py`) frozen, so that ∇g_t^i = G_t^i. One backward pass differentiates the
    mean of g_T, through all states a_t. Memory grows with T; time does not depend on the size of the state.

        estimate = ReverseScore(RecursiveScore(2))(p, q, ys, key=key)
    """

    score: RecursiveScore

    def __check_init__(self):
        if not isinstance(self.score.sensitivity, Forward):
            name = type(self.score.sensitivity).__name__
            raise ValueError(f"ReverseScore differentiates through all states: it cannot do {name}().")
        if not isinstance(self.score.objective, Increment):
            raise ValueError(f"ReverseScore ascends the ELBO itself, not {type(self.score.objective).__name__}.")
        if self.score.learn_model or self.score.functional is not None:
            raise ValueError("ReverseScore gives the gradient in λ only: no learn_model and no functional.")

    def __call__(self, p, q, ys, inputs=None, *, key):
        check_case(p, q, ys, inputs)
        require_amortised(q)
        score = self.score
        first, later = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in (0, slice(1, None)))
        frozen: BackwardFamily = stop_gradient_of(q)

        def sample(state, key) -> Particles:
            return draw(frozen, stop_gradient(state), score.num_particles, key=key)

        def log_g(xi, y, u):
            return jax.vmap(lambda x: log_emission(p, x, y, u))(xi)

        def along(q, state, previous: Particles, xi):
            """η_{t-1|t}(ξ^i) in the frame of q_{t-1}, a function of λ."""
            before = q.marginal(state[0]).into(previous.frame).eta
            return before + jax.vmap(lambda x: q.potential(state[1], x).into(previous.frame).eta)(xi)

        def surrogate(p, q):
            """Something whose gradient is that of the ELBO, and the ELBO."""

            def advance(carry, scanned):
                a_previous, previous, H, g, shift = carry
                t, y, u = scanned
                a = q.update(a_previous, y, u)
                key_draw, key_pairs = jax.random.split(jax.random.fold_in(key, t))
                now = sample(a, key_draw)
                xi_previous, xi = previous.xi, now.xi
                kernels = backward_kernels(frozen, previous, now.state, xi)
                pairs = score.weights.pairs(kernels, previous.z, key=key_pairs)
                f = log_transition(p, pairs, xi_previous, xi, u) + log_g(xi, y, u)[:, None]
                r = pairs.gather(H) + f - log_backward(previous, pairs, kernels)
                H, S = pairs.value_and_score(r, score.baseline)
                g = pairs.average(g) + (S * along(q, (a_previous, a), previous, xi)).sum(1)
                taken = H.mean() if score.baseline.zero_sum else jnp.zeros_like(shift)
                return (a, now, H - taken, g, shift + taken), None

            a = q.init(ys[0], first)
            start = sample(a, jax.random.fold_in(key, 0))
            H = jax.vmap(lambda x: log_prior(p, x, first))(start.xi) + log_g(start.xi, ys[0], first)
            carry = (a, start, H, jnp.zeros_like(H), jnp.zeros_like(H[0]))
            (a, last, H, g, shift), _ = jax.lax.scan(advance, carry, (jnp.arange(1, len(ys)), ys[1:], later))
            marginal = score.weights.marginal(last.z)
            value, S = marginal.value_and_score((H - last.log_q())[None], score.baseline)
            eta = q.marginal(a).into(last.frame).eta
            return marginal.average(g)[0] + S[0] @ eta, value[0] + shift

        estimate, elbo = differentiate(surrogate, p, q, learn_model=False, has_aux=True)
        return estimate._replace(elbo=elbo)


def stop_gradient_of(q: BackwardFamily) -> BackwardFamily:
    arrays, static = eqx.partition(q, eqx.is_inexact_array)
    return eqx.combine(stop_gradient(arrays), static)
