"""The mesh of devices that a panel lives on, and what crosses it: rows on their way in, and infos
on their way out."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from backstream.estimators.recursive.score import RecursiveScore
from backstream.learning.online import OnlineLearner
from backstream.learning.records import Info

from .tick_layout import Layout

STREAMS, PARTICLES = "streams", "particles"


def device_mesh(particle_devices: int = 1) -> Mesh:
    """All devices of this process: `particle_devices` of them for each stream, the streams over the rest."""
    devices = jax.devices()
    if particle_devices < 1 or len(devices) % particle_devices:
        raise ValueError(
            f"{len(devices)} devices cannot be divided into groups of {particle_devices}: the number of devices for "
            "the particles of a stream must divide their number."
        )
    return Mesh(np.asarray(devices).reshape(-1, particle_devices), (STREAMS, PARTICLES))


def check_mesh(mesh: Mesh, learner: OnlineLearner) -> None:
    """Raises ValueError where a mesh does not divide the work."""
    if set(mesh.axis_names) != {STREAMS, PARTICLES}:
        raise ValueError(f"A panel's mesh has the axes {STREAMS} and {PARTICLES}, not {', '.join(mesh.axis_names)}.")
    parts = mesh.shape[PARTICLES]
    if parts == 1:
        return
    if not isinstance(learner.estimator, RecursiveScore):
        raise ValueError(
            f"{type(learner.estimator).__name__} has no particles to divide: give the axis {PARTICLES} the size 1, "
            f"not {parts}."
        )
    if learner.estimator.num_particles % parts:
        raise ValueError(
            f"{learner.estimator.num_particles} particles cannot be divided evenly over {parts} devices: choose a "
            f"multiple of {parts}."
        )


def by_shard(function: Any, mesh: Mesh) -> Any:
    """A function of arrays with a leading axis of shards, done by each shard for its part."""
    spec = PartitionSpec(STREAMS)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={STREAMS}, check_vma=False)


def deal(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays with a leading axis of shards, each part on its own device."""
    sharding = NamedSharding(mesh, PartitionSpec(STREAMS))
    return jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda i: leaf[i]), tree)


def gathered(infos: Info, layout: Layout, mesh: Mesh) -> Info:
    """The infos of all rows as NumPy arrays, also from other processes, in one exchange of bytes."""
    if infos.t.is_fully_addressable:
        return jax.tree.map(lambda leaf: layout.unlay(np.asarray(leaf)), infos)
    at, rank = layout.dense()
    rows = np.asarray(_as_bytes(infos, deal(at, mesh), mesh))[layout.place[0], rank]
    parts, start = [], 0
    for leaf in infos:
        shape = leaf.shape[3:]
        end = start + leaf.dtype.itemsize * math.prod(shape)
        parts.append(np.ascontiguousarray(rows[:, start:end]).view(leaf.dtype).reshape(len(rows), *shape))
        start = end
    return Info(*parts)


@partial(jax.jit, static_argnums=2)
def _as_bytes(infos: Info, at: Array, mesh: Mesh) -> Array:
    """[shard, rank, bytes]: the infos of all rows, on every device."""

    def of(leaf):
        leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
        return jax.lax.bitcast_convert_type(leaf, jnp.uint8).reshape(leaf.shape[0], -1, leaf[0, 0, 0].nbytes)

    def rows(infos, at):
        return jax.vmap(lambda told, at: told[at])(jnp.concatenate([of(leaf) for leaf in infos], axis=-1), at)

    return jax.lax.with_sharding_constraint(by_shard(rows, mesh)(infos, at), NamedSharding(mesh, PartitionSpec()))
