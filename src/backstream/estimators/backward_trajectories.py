"""The estimator from reparameterized backward trajectories over a whole sequence.

Along a trajectory x_t ~ q_t, x_{s-1} ~ q_{s-1|s}(x_s, ·), drawn backwards with noise that does not depend on λ, the
ELBO is the mean of

    log χ(x_0) + Σ_s log g_s(x_s, y_s) + Σ_s {log m_s(x_{s-1}, x_s) − log q_{s-1|s}(x_s, x_{s-1})} − log q_t(x_t),

and its gradient that of the derivative along the path.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from backstream.families.backward import backward_chain, filter_states, sample_chain
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition

from .base import OfflineEstimator, differentiate


def check_num_trajectories(num_trajectories: int) -> None:
    if num_trajectories < 1:
        raise ValueError(f"num_trajectories must be at least 1, not {num_trajectories}.")


def emissions(p: StateSpaceModel, xs: Float[Array, "t d"], ys: Array, us: Inputs) -> Float[Array, " t"]:
    """log g_s(x_s, y_s)."""
    return jax.vmap(lambda x, y, u: log_emission(p, x, y, u))(xs, ys, us)


def transitions(p: StateSpaceModel, xs: Float[Array, "t d"], us: Inputs) -> Float[Array, " t-1"]:
    """log m_s(x_{s-1}, x_s), s ≥ 1. `us` are the inputs from the second row on."""
    return jax.vmap(lambda x_prev, x, u: log_transition(p, x_prev, x, u))(xs[:-1], xs[1:], us)


class BackwardTrajectories(OfflineEstimator):
    """The unbiased ELBO and gradient of a whole sequence, from `num_trajectories` reparameterized trajectories.

    The paper's "backward MC". Time and memory are linear in the length of the sequence. `learn_model` adds the
    gradient with respect to θ.

        estimate = BackwardTrajectories(10)(p, q, ys, key=key)
    """

    num_trajectories: int = eqx.field(static=True)
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_num_trajectories(self.num_trajectories)

    def estimate(self, p, q, ys, inputs, key):
        first, later = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in (0, slice(1, None)))

        def elbo(p, q):
            chain = backward_chain(p, q, filter_states(p, q, ys, inputs))
            shape = (self.num_trajectories, len(ys), q.state_dim)

            def one(z):
                xs, log_q = sample_chain(p, q, chain, z)
                log_p = emissions(p, xs, ys, inputs).sum() + transitions(p, xs, later).sum()
                return log_prior(p, xs[0], first) + log_p - log_q.sum()

            return jax.vmap(one)(jax.random.normal(key, shape, chain.marginals.eta1.dtype)).mean()

        return differentiate(elbo, p, q, self.learn_model)
