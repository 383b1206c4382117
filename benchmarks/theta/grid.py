"""The likelihood of models with one state, by quadrature on a fixed grid: no approximation of the filter is in it."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import backstream as bs
from backstream.learning.parameters import ModelParameters
from benchmarks.theta.offline import newton

NODES = 128
"""Their distance is below half a standard deviation of the transition: the rectangle rule has then converged to all
digits."""


class Likelihood(NamedTuple):
    """Of the rows of one stream, as a function of the unconstrained parameters."""

    parameters: ModelParameters
    rebuild: Any
    ys: jax.Array
    nodes: jax.Array

    @classmethod
    def of(cls, p: bs.StateSpaceModel, ys: np.ndarray, between: tuple[float, float]) -> "Likelihood":
        parameters = ModelParameters(p)
        rebuild = jax.tree_util.Partial(ravel_pytree(parameters.unconstrained())[1])
        return cls(parameters, rebuild, jnp.asarray(ys), jnp.linspace(*between, NODES)[:, None])

    def mean_log_score(self, raw: np.ndarray) -> float:
        return float(_mean_log_score(jnp.asarray(raw), self))

    def newton(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maximum likelihood from a θ nearby, and its covariance."""
        return newton(functools.partial(_gradient, likelihood=self), np.asarray(raw), len(self.ys))


@eqx.filter_jit
def _mean_log_score(raw, likelihood: Likelihood):
    p, nodes = likelihood.parameters.model(likelihood.rebuild(raw)), likelihood.nodes
    width = nodes[1, 0] - nodes[0, 0]
    moves = width * jnp.exp(jax.vmap(lambda x: p.transition(x).log_prob(nodes))(nodes).T)

    def step(law, y):
        seen = jax.vmap(lambda x: p.emission(x).log_prob(y))(nodes)
        most = seen.max()
        joint = law * jnp.exp(seen - most)
        total = width * joint.sum()
        return moves @ (joint / total), most + jnp.log(total)

    return jax.lax.scan(step, jnp.exp(p.prior().log_prob(nodes)), likelihood.ys)[1].mean()


@eqx.filter_jit
def _gradient(raw, likelihood: Likelihood):
    return jax.grad(_mean_log_score)(raw, likelihood)
