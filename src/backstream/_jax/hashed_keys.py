"""Keys for draws that only check: their bits are hashes of counters.

JAX's own generator takes a hundred operations for a number, more than a small model takes to move a state. What is
drawn with these keys is compared with rows or averaged, and nothing is learned from it: a hash that mixes all bits is
good enough. It is that of C. Wellons' search for integer hashes of low bias ("lowbias32"), once for each word of a key.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, UInt32

GOLDEN = 0x9E3779B9
SPLIT, BITS, FOLDED = (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
"""Digits of π, which keep splitting, drawing and folding apart."""


def hashed(key: Array) -> Array:
    """A key of this kind from one of JAX's default kind, with the same words."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_HASHED)


def threefry(key: Array) -> Array:
    """A key of JAX's default kind from one of this kind, for samplers that accept no other."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def is_hashed(key: Array) -> bool:
    return jax.random.key_impl(key) == _HASHED


def _mixed(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


def _words(key: UInt32[Array, "2"], counters: Any, salt: int) -> UInt32[Array, "*n"]:
    return _mixed(_mixed(counters * jnp.uint32(GOLDEN) + key[0] + jnp.uint32(salt)) ^ key[1])


def _counters(shape: tuple[int, ...]) -> UInt32[Array, "*n"]:
    return jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


def _seed(seed: Array) -> UInt32[Array, "2"]:
    return _fold_in(jnp.zeros(2, jnp.uint32), seed)


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
    return jnp.stack([_words(key, _counters(shape), salt) for salt in SPLIT], -1)


def _fold_in(key: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    return jnp.stack([_words(key, jnp.asarray(data).astype(jnp.uint32), salt) for salt in FOLDED], -1)


def _random_bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> Array:
    high, low = (_words(key, _counters(shape), salt) for salt in BITS)
    if width == 64:
        return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
    return high if width == 32 else (high >> (32 - width)).astype(f"uint{width}")


_HASHED: Any = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="hashed", tag="hashed"
)
