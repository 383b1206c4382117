"""Backward kernels with a potential of any form."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .base import BackwardFamily
from .kernels import Kernel
from .networks import perceptron

MOST = 3.0
"""|f| is at most this: no single state can take all the weight, and draws of a tilted kernel need few proposals."""


class Tilt(eqx.Module):
    """f(x_{t-1}, x_t), a network of both. It starts at zero."""

    net: eqx.nn.MLP
    scale: tuple[float, ...] = eqx.field(static=True)
    """How far the states reach, so that the network reads numbers around one."""

    def __call__(self, origin: Float[Array, " d"], x: Float[Array, " d"]) -> Float[Array, ""]:
        scale = jnp.asarray(self.scale, x.dtype)
        return MOST * jnp.tanh(self.net(jnp.concatenate([origin / scale, x / scale]))[0] / MOST)


class TiltedLaw(eqx.Module):
    """base · exp f(·, x), over its normalizer. Draws are picked by weight among proposals of the base, and the
    normalizer is a mean over such proposals, the same each time."""

    base: Any
    tilt: Tilt
    x: Float[Array, " d"]
    proposals: int = eqx.field(static=True, default=64)

    def sample(self, shape: tuple[int, ...] = (), *, key: Array) -> Float[Array, "..."]:
        """Draws, of shape (*shape, d)."""
        key_base, key_pick = jax.random.split(key)
        found = self.base.sample((*shape, self.proposals), key=key_base)
        picked = jax.random.categorical(key_pick, self._tilts(found))
        return jnp.take_along_axis(found, picked[..., None, None], axis=-2)[..., 0, :]

    def log_prob(self, origin: Float[Array, " d"]) -> Float[Array, ""]:
        proposed = self._tilts(self.base.sample((self.proposals,), key=jax.random.key(0)))
        log_mean = jax.nn.logsumexp(proposed) - jnp.log(self.proposals)
        return self.base.log_prob(origin) + self.tilt(origin, self.x) - log_mean

    def _tilts(self, origins: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        return jnp.vectorize(lambda origin: self.tilt(origin, self.x), signature="(d)->()")(origins)


class TiltedKernel(Kernel):
    """q_{t-1|t}(x, ·) ∝ κ(x, ·) exp f(·, x), with the kernel κ of another family."""

    base: Kernel
    tilt: Tilt

    def at(self, before, x):
        return TiltedLaw(self.base.at(before, x), self.tilt, x)

    def potential(self, x):
        raise TypeError("A free potential is no normal law: use RatioScore with FreePotentials.")

    def affine(self, before):
        raise TypeError("A free potential is not affine: use RatioScore with FreePotentials.")


class Tilted(BackwardFamily):
    """Another family whose backward kernels are multiplied by exp f(x_{t-1}, x_t), where f may be any function: here a
    network. The laws q_t are those of the other family.

    `RatioScore(100, FreePotentials())` gives the ELBO and its gradient.

    >>> from backstream.families import Guided
    >>> from backstream.models import Growth
    >>> base = Guided.from_model(Growth(), jnp.array(0.0))
    >>> q = Tilted.create(base, scale=(10.0,), key=jax.random.key(0))
    >>> float(q.tilt(jnp.array([1.0]), jnp.array([2.0])))
    0.0
    """

    affine: ClassVar[bool] = False
    amortized: ClassVar[bool] = True
    gaussian: ClassVar[bool] = False

    base: BackwardFamily
    tilt: Tilt

    @classmethod
    def create(
        cls, base: BackwardFamily, scale: tuple[float, ...], width: int = 16, last_gain: float = 0.0, *, key: Array
    ) -> "Tilted":
        """Args:
        base: The family whose kernels are tilted.
        scale: How far the states reach.
        width: Hidden units of the network.
        last_gain: Shrinks the weights of its last layer; with 0 the kernels start as those of the base.
        key: Of the network's start.
        """
        if len(scale) != base.state_dim:
            raise ValueError(f"scale must have {base.state_dim} entries, one for each state, not {len(scale)}.")
        dtype = next(leaf.dtype for leaf in jax.tree.leaves(base) if eqx.is_inexact_array(leaf))
        net = perceptron(2 * base.state_dim, 1, width, last_gain=last_gain, key=key, dtype=dtype)
        return cls(base, Tilt(net, scale))

    @property
    def state_dim(self) -> int:
        return self.base.state_dim

    @property
    def obs_dim(self) -> int:
        return self.base.obs_dim

    def init(self, p, u=None):
        return self.base.init(p, u)

    def update(self, p, state, y, u=None):
        return self.base.update(p, state, y, u)

    def marginal(self, state):
        return self.base.marginal(state)

    def moments(self, state):
        return self.base.moments(state)

    def sample(self, state, *, key):
        return self.base.sample(state, key=key)

    def kernel(self, p, state):
        return TiltedKernel(self.base.kernel(p, state), self.tilt)
