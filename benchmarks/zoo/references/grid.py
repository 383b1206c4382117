"""The posterior of a model with one state, on a dense grid in float64."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import laws
from benchmarks.zoo.case import Data, Posterior

MOST_AT_EDGE = 1e-6
WIDENING = 1.5
MOST_WIDENINGS = 6


@dataclass(frozen=True)
class Grid:
    """Forward and backward recursions over equidistant nodes that reach `margin` beyond the simulated states.

    The step is that of `nodes` nodes over that range. It must be below the standard deviation of the transition, where
    the trapezoidal rule's error is far below 1e-6; the result with half as many nodes is the proof. Where mass is at
    an end, the range grows, with the same step.
    """

    margin: float
    nodes: int = 1200
    name: str = "grid"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        center, reach = (data.states.max() + data.states.min()) / 2, np.ptp(data.states) / 2 + self.margin
        rows = jnp.asarray(data.ys), jax.tree.map(jnp.asarray, data.us)
        wider = [WIDENING**turn for turn in range(MOST_WIDENINGS + 1)]
        for factor in wider:
            most = round(factor * self.nodes)
            found = [
                grid_smoother(model, jnp.linspace(center - factor * reach, center + factor * reach, nodes), *rows)
                for nodes in (most, most // 2)
            ]
            edge = max(float(edge) for _, edge in found)
            if edge <= MOST_AT_EDGE:
                full, half = (Posterior(*map(np.asarray, posterior)) for posterior, _ in found)
                return full, half, f"{most} nodes"
        raise ValueError(
            f"A share of {edge:.1g} of a row is at the edge of a grid that is {wider[-1]:.0f} times as wide."
        )


@eqx.filter_jit
def grid_smoother(model, nodes: jax.Array, ys: jax.Array, us) -> tuple[Posterior, jax.Array]:
    """Filter and smoother on the nodes, and the largest share of a row's mass at either end.

    Where inputs change the transition, its matrix is made for every row.
    """
    x = nodes[:, None]

    def kernel(u):  # column j: from node j
        laws_at = jax.vmap(lambda origin: jax.vmap(model.transition(origin, u).log_prob)(x), out_axes=1)(x)
        return jnp.exp(laws_at) * (nodes[1] - nodes[0])

    def seen(y, u):
        return jax.vmap(lambda point: laws.log_emission(model, point, y, u))(x)

    first = jax.tree.map(lambda leaf: leaf[0], us)
    fixed = kernel(None) if us is None else None
    matrix = (lambda u: fixed) if us is None else kernel
    step = nodes[1] - nodes[0]
    prior = jax.vmap(model.prior(first).log_prob)(x)

    def forward(before, row):
        t, y, u = row
        predicted = jnp.where(t == 0, jnp.exp(prior) * step, matrix(u) @ before)
        log_g = seen(y, u)
        top = log_g.max()
        joint = predicted * jnp.exp(log_g - top)
        total = joint.sum()
        return joint / total, (joint / total, predicted, jnp.log(total) + top)

    rows = jnp.arange(len(ys)), ys, us
    _, (filtered, predicted, score) = jax.lax.scan(forward, jnp.zeros_like(nodes), rows)

    def backward(later, row):
        filtered, predicted_next, u_next = row
        ratio = jnp.where(predicted_next > 0, later / jnp.maximum(predicted_next, 1e-300), 0.0)
        smoothed = filtered * (matrix(u_next).T @ ratio)
        smoothed = smoothed / smoothed.sum()
        return smoothed, smoothed

    rows = filtered[:-1], predicted[1:], jax.tree.map(lambda leaf: leaf[1:], us)
    _, smoothed = jax.lax.scan(backward, filtered[-1], rows, reverse=True)
    smoothed = jnp.concatenate([smoothed, filtered[-1:]])
    edge = jnp.maximum(filtered[:, 0].max(), filtered[:, -1].max())
    return Posterior(*_moments(filtered, nodes), *_moments(smoothed, nodes), score), edge


def _moments(mass: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = mass @ nodes
    return mean[:, None], (mass * (nodes - mean[:, None]) ** 2).sum(1)[:, None, None]
