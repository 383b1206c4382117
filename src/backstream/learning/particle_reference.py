"""An absolute check: the log-likelihood of some rows by small particle filters, which know nothing of q but its law
before the first of them.

Each filter's estimate of the likelihood is unbiased, so that by Markov's inequality it exceeds the truth by a nats with
a probability of e^{-a} at most: a posterior whose log score lies further below has lost that much. Whether the filters
would have found a loss is said by their effective sample size.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compiling import compiled
from backstream._jax.hashed_keys import hashed
from backstream.estimators.fixed_lag import window_elbo
from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.models.base import StateSpaceModel, transition_law
from backstream.models.density import log_emission
from backstream.models.laws import draw

ROWS = 64
"""At most, in one check."""
FILTERS, PARTICLES = 4, 512
TRAJECTORIES = 16
"""For the ELBO of a family without a log score."""
LEAST_ESS = 0.1
"""Of the particles, on average: with less, the filters say nothing about how good the posterior is."""
WIDEST_ERROR = 3.0
"""Nats: an estimate with a larger standard error says nothing either."""


class Reference(NamedTuple):
    """What the filters say of `rows` rows. `gap` is their log-likelihood less q's log score, or its ELBO where it has
    no score, in nats per row, and `error` its standard error; `ess` is a share of the particles. Where the filters
    cannot be trusted, `several` is by how much several components predict better than one, if that was tried."""

    rows: int
    gap: float
    error: float
    ess: float
    several: float = math.nan
    several_error: float = math.nan

    @property
    def is_trusted(self) -> bool:
        return self.ess >= LEAST_ESS and self.error * self.rows <= WIDEST_ERROR


def particle_reference(
    p: StateSpaceModel, q: BackwardFamily, anchor: PyTree, ys: Any, inputs: Any, *, key: Array
) -> Reference:
    """Compares q with particle filters on the first of the rows that follow the state `anchor`, ROWS at most."""
    count = min(len(ys), ROWS)

    def padded(leaf):
        leaf = np.asarray(leaf)[:count]
        return np.concatenate([leaf, np.repeat(leaf[-1:], ROWS - count, 0)])

    if isinstance(q, ScoringFamily):  # one program for all lengths: a missing row has no score
        ys, inputs = jax.tree.map(padded, (ys, inputs))
        ys[count:] = np.nan
    else:
        ys, inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], (ys, inputs))
    found, score, ess = _compared(p, q, anchor, ys, inputs, np.asarray(count), key)
    found, score = np.asarray(found, float), float(score)
    top = found.max()
    total = top + np.log(np.mean(np.exp(found - top))) if np.isfinite(top) else np.nan
    error = found.std(ddof=1) / np.sqrt(len(found)) if np.isfinite(found).all() else np.inf
    return Reference(count, float(total - score) / count, float(error) / count, float(ess))


@compiled(quickly=True)
def _compared(p, q, anchor, ys, inputs, count, key):
    keys = jax.random.split(hashed(key), FILTERS + 1)
    found, ess = jax.vmap(lambda key: _log_likelihood(p, q, anchor, ys, inputs, count, key))(keys[1:])
    return found, _score(p, q, anchor, ys, inputs, keys[0]), ess.mean()


def _score(p, q, anchor, ys, inputs, key) -> Float[Array, ""]:
    """q's log score of the rows, or its ELBO."""
    if not isinstance(q, ScoringFamily):
        return window_elbo(p, q, anchor, ys, inputs, TRAJECTORIES, key=key).mean()

    def step(state, row):
        state = q.update(p, state, *row)
        return state, q.log_score(state)

    return jax.lax.scan(step, anchor, (ys, inputs))[1].sum()


def _resampled(w: Float[Array, " n"], uniform: Float[Array, ""]) -> Int[Array, " n"]:
    """Systematic resampling: particle i takes the points (k + uniform)/n that lie between the sums of the weights up to
    it. They are counted and not searched for, which would take longer than all the rest of a filter."""
    n, cumulative = len(w), jnp.cumsum(w)
    before = jnp.ceil(cumulative / cumulative[-1] * n - uniform).astype(int)  # points before the end of each
    ends = jnp.zeros(n + 1, int).at[jnp.clip(before, 0, n)].add(1)
    return jnp.minimum(jnp.cumsum(ends)[:n], n - 1)


def _log_likelihood(p, q, anchor, ys, inputs, count, key) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A bootstrap filter: the log-likelihood of the first `count` rows, and its mean effective sample size."""
    begin, resample, move = jax.random.split(key, 3)
    x = jax.vmap(lambda key: q.sample(anchor, key=key))(jax.random.split(begin, PARTICLES))
    uniform = jax.random.uniform(resample, (len(ys),), x.dtype)

    def step(k, loop):
        x, log_w, total, ess = loop
        y, u = jax.tree.map(lambda leaf: leaf[k], (ys, inputs))
        keys = jax.random.split(jax.random.fold_in(move, k), PARTICLES)
        x = jax.vmap(lambda x, key: draw(transition_law(p, x, u), key=key).astype(x.dtype))(x, keys)
        log_w = log_w + jax.vmap(lambda x: log_emission(p, x, y, u))(x)
        mass = jax.nn.logsumexp(log_w)
        w = jnp.where(jnp.isfinite(mass), jnp.exp(log_w - mass), 1 / PARTICLES)
        share = 1 / (PARTICLES * (w**2).sum())
        few = share < 0.5
        x = jnp.where(few, x[_resampled(w, uniform[k])], x)
        log_w = jnp.where(few, -jnp.log(float(PARTICLES)), jnp.log(w)).astype(x.dtype)
        return x, log_w, total + mass, ess + share

    zero, even = jnp.zeros((), x.dtype), jnp.full(PARTICLES, -jnp.log(float(PARTICLES)), x.dtype)
    _, _, total, ess = jax.lax.fori_loop(0, count, step, (x, even, zero, zero))
    return total, ess / count
