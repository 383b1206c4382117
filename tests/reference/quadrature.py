"""Expectations under a q with d = 1 and few steps by Gauss-Hermite sums, for families that have no closed form."""

import jax
import jax.numpy as jnp
from numpy.polynomial.hermite_e import hermegauss

from backstream.models.density import log_emission


def expectation(law, function, nodes=24):
    """E[function(X)] under a one-dimensional `Gaussian`."""
    z, w = (jnp.asarray(a) for a in hermegauss(nodes))
    mean, cov = law.moments()
    return (w / w.sum()) @ jax.vmap(function)(mean + jnp.sqrt(cov[0]) * z[:, None])


def filter_states(p, q, ys):
    states = [q.init(p)]
    for y in ys:
        states.append(q.update(p, states[-1], y))
    return states[1:]


def H(p, q, ys, states, t, x):
    """H_t(x), by its recursion: E over X_{t-1} of H_{t-1} + f̃_t, under q_{t-1|t}(x, ·)."""
    emitted = log_emission(p, x, ys[t])
    if t == 0:
        return emitted + p.prior().log_prob(x)
    law = q.marginal(states[t - 1]) * q.kernel(p, states[t]).potential(x)

    def before(x_prev):
        return p.transition(x_prev).log_prob(x) - law.log_prob(x_prev) + H(p, q, ys, states, t - 1, x_prev)

    return emitted + expectation(law, before)


def elbo(p, q, ys):
    states = filter_states(p, q, ys)
    law = q.marginal(states[-1])
    return expectation(law, lambda x: H(p, q, ys, states, len(ys) - 1, x) - law.log_prob(x))
