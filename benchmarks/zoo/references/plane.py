"""The posterior of a model with two states that move independently of each other, on a dense grid in float64."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.zoo import laws
from benchmarks.zoo.case import Data, Posterior

MOST_AT_EDGE = 1e-6


@dataclass(frozen=True)
class Plane:
    """Forward and backward recursions over `nodes` × `nodes` equidistant nodes of the square of half width `reach`.

    The two states have normal transitions and priors with independent coordinates, the same for both and without
    inputs, so that a move is a product with one matrix on each side. The result with half as many nodes is the proof.
    """

    reach: float
    nodes: int = 200
    name: str = "grid"

    def run(self, model, data: Data, seed: int) -> tuple[Posterior, Posterior, str]:
        found = []
        for nodes in (self.nodes, self.nodes // 2):
            posterior, edge = plane_smoother(model, jnp.linspace(-self.reach, self.reach, nodes), jnp.asarray(data.ys))
            if float(edge) > MOST_AT_EDGE:
                raise ValueError(f"A share of {float(edge):.1g} of a row is at the edge of the grid.")
            found.append(Posterior(*map(np.asarray, posterior)))
        return found[0], found[1], f"{self.nodes} × {self.nodes} nodes"


@eqx.filter_jit
def plane_smoother(model, nodes: jax.Array, ys: jax.Array) -> tuple[Posterior, jax.Array]:
    """Filter and smoother on the nodes, and the largest share of a row's mass on the edge."""
    step, count = nodes[1] - nodes[0], len(nodes)

    def density(law, x):  # of the first coordinate, which moves as the second does
        base = law.base_dist
        return jnp.exp(-0.5 * ((x - base.loc[0]) / base.scale[0]) ** 2) / (base.scale[0] * jnp.sqrt(2 * jnp.pi))

    move = jax.vmap(lambda origin: density(model.transition(jnp.stack([origin, origin])), nodes) * step, out_axes=1)(
        nodes
    )
    alone = density(model.prior(), nodes) * step
    points = jnp.stack(jnp.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)

    def forward(before, row):
        t, y = row
        predicted = jnp.where(t == 0, jnp.outer(alone, alone), move @ before @ move.T)
        log_g = jax.vmap(lambda x: laws.log_emission(model, x, y, None))(points).reshape(count, count)
        top = log_g.max()
        joint = predicted * jnp.exp(log_g - top)
        total = joint.sum()
        return joint / total, (joint / total, predicted, jnp.log(total) + top)

    start = jnp.zeros((count, count))
    _, (filtered, predicted, score) = jax.lax.scan(forward, start, (jnp.arange(len(ys)), ys))

    def backward(later, row):
        filtered, predicted_next = row
        ratio = jnp.where(predicted_next > 0, later / jnp.maximum(predicted_next, 1e-300), 0.0)
        smoothed = filtered * (move.T @ ratio @ move)
        smoothed = smoothed / smoothed.sum()
        return smoothed, smoothed

    _, smoothed = jax.lax.scan(backward, filtered[-1], (filtered[:-1], predicted[1:]), reverse=True)
    smoothed = jnp.concatenate([smoothed, filtered[-1:]])
    edge = jnp.maximum(filtered[:, [0, -1]].sum((1, 2)), filtered[:, :, [0, -1]].sum((1, 2))).max()
    return Posterior(*_moments(filtered, nodes), *_moments(smoothed, nodes), score), edge


def _moments(mass: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    margins = jnp.stack([mass.sum(2), mass.sum(1)], 1)
    mean = margins @ nodes
    second = margins @ nodes**2
    cross = jnp.einsum("tij,i,j->t", mass, nodes, nodes)
    raw = jnp.stack([jnp.stack([second[:, 0], cross], 1), jnp.stack([cross, second[:, 1]], 1)], 1)
    return mean, raw - mean[:, :, None] * mean[:, None, :]
