"""The alternative that the paper warns of: differentiating the self-normalized recursion end to end."""

import equinox as eqx
import jax
import jax.numpy as jnp

from backstream.estimators.base import OfflineEstimator, differentiate
from backstream.estimators.recursive.particles import backward_kernels, draw, log_backward, log_transition
from backstream.estimators.recursive.weights import SelfNormalized
from backstream.families.backward import first_state
from backstream.models.density import log_emission, log_prior


class AutodiffThroughWeights(OfflineEstimator):
    """The recursion for H, with reparameterized samples, differentiated end to end. **Wrong; for comparison only.**

    It does without the recursion for G, and its variance is low. But Ĥ_t = Σ_j w_ij (Ĥ_{t-1} + f̃_t) is biased, because
    the weights are normalized by their own sum, and the bias depends on λ. What is differentiated is the ELBO plus that
    bias: an optimizer is shown the way to the λ where the bias is largest, and takes it. The ELBO it prints then rises
    above log p(y), which no ELBO can do, while q gets worse (paper, section "Offline computation", last paragraph). The
    gradient of the score estimator is biased too, but is not the gradient of a bias.
    """

    num_particles: int = eqx.field(static=True)
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.num_particles < 1:
            raise ValueError(f"num_particles must be at least 1, not {self.num_particles}.")

    def estimate(self, p, q, ys, inputs, key):
        weights = SelfNormalized()
        first, later = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in (0, slice(1, None)))

        def elbo(p, q):
            def sample(state, t):
                return draw(q, state, self.num_particles, key=jax.random.fold_in(key, t))

            def log_g(xi, y, u):
                return jax.vmap(lambda x: log_emission(p, x, y, u))(xi)

            def advance(carry, scanned):
                previous, H = carry
                t, y, u = scanned
                now = sample(q.update(p, previous.state, y, u), t)
                kernels = backward_kernels(q.kernel(p, now.state), previous, now.xi)
                pairs = weights.pairs(kernels, previous.z, key=key)  # all pairs: nothing is drawn
                f = log_transition(p, pairs, previous.xi, now.xi, u) + log_g(now.xi, y, u)[:, None]
                f = f - log_backward(previous, pairs, kernels)
                return (now, (pairs.coefficients() * (H[None] + f)).sum(1)), None

            start = sample(first_state(p, q, ys[0], first), 0)
            H = jax.vmap(lambda x: log_prior(p, x, first))(start.xi) + log_g(start.xi, ys[0], first)
            (last, H), _ = jax.lax.scan(advance, (start, H), (jnp.arange(1, len(ys)), ys[1:], later))
            return (H - last.log_q()).mean()

        return differentiate(elbo, p, q, self.learn_model)
