"""The product's own default posterior: with nothing learned, and after the default settings have learned."""

import equinox as eqx
import jax
import jax.numpy as jnp

from backstream.families import BackwardFamily, Guided
from backstream.families.backward import filter_states
from backstream.learning import Settings, build
from backstream.models import StateSpaceModel
from benchmarks.zoo.case import Data, Posterior


def prepare(model: StateSpaceModel, rows: Data, others: Data | None) -> BackwardFamily:
    """Reads the model, once."""
    return Guided.from_model(model, _first(rows.us))


def learn(model: StateSpaceModel, rows: Data, others: Data) -> BackwardFamily:
    """What the default settings report after other rows of the same model."""
    watched, q, key = build(model, Settings(), _first(others.us))
    state = watched.learner.init(q, _first(others.us), key=key)
    return watched.learner.scan(state, others.ys, others.us)[0].result()


def _first(us):
    return jax.tree.map(lambda leaf: leaf[0], us)


@eqx.filter_jit
def filter_and_smooth(q: BackwardFamily, model: StateSpaceModel, ys, us) -> Posterior:
    states = filter_states(model, q, ys.astype(q.log_inflation.dtype), us)
    mean, cov = jax.vmap(q.moments)(states)

    def back(after, kernel):
        mean, cov = kernel.mean + kernel.gain @ after[0], kernel.cov + kernel.gain @ after[1] @ kernel.gain.T
        return (mean, cov), (mean, cov)

    kernels = jax.tree.map(lambda leaf: leaf[1:], states.kernel)
    last = mean[-1], cov[-1]
    _, earlier = jax.lax.scan(back, last, kernels, reverse=True)
    smoothed = [jnp.concatenate([a, b[None]]) for a, b in zip(earlier, last, strict=True)]
    return Posterior(mean, cov, *smoothed, jax.vmap(q.log_score)(states))
