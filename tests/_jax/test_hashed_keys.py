"""Draws with hashed keys are as good as independent, in every way in which they are made.

Each test of uniformity or correlation is at a level of 1e-4, with the seed fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from backstream._jax.hashed_keys import hashed, is_hashed, threefry
from backstream.models.laws import draw

KEY = hashed(jax.random.key(7))
N = 4096


def of_keys(keys):
    return np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys))


WAYS = {
    "one key": lambda: np.asarray(jax.random.uniform(KEY, (N, 2))),
    "keys that are split": lambda: of_keys(jax.random.split(KEY, N)),
    "keys of rows": lambda: of_keys(jax.vmap(lambda t: jax.random.fold_in(KEY, t))(jnp.arange(N))),
    "keys of rows, hashed afterwards": lambda: of_keys(
        jax.vmap(lambda t: hashed(jax.random.fold_in(jax.random.key(7), t)))(jnp.arange(N))
    ),
    "keys whose words differ by one": lambda: of_keys(
        jax.vmap(lambda t: hashed(jax.random.wrap_key_data(jnp.stack([t, jnp.uint32(0)]))))(jnp.arange(N, dtype="u4"))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_numbers_are_uniform_and_not_correlated(way):
    found = WAYS[way]()
    assert all(stats.kstest(column, "uniform").pvalue > 1e-4 for column in found.T)
    normal = stats.norm.ppf(np.clip(found, 1e-6, 1 - 1e-6))
    pairs = [(normal[:, 0], normal[:, 1]), *((column[1:], column[:-1]) for column in normal.T)]
    for power in (1, 2):
        assert all(abs(np.corrcoef(a**power, b**power)[0, 1]) < 3.9 / np.sqrt(N) for a, b in pairs)


def test_a_changed_bit_changes_half_of_the_others():
    words = np.random.default_rng(0).integers(0, 2**32, (64, 2), dtype=np.uint32)

    def bits(words):
        keys = jax.vmap(lambda pair: hashed(jax.random.wrap_key_data(pair)))(jnp.asarray(words))
        return np.unpackbits(np.asarray(jax.vmap(lambda key: jax.random.bits(key, (1,)))(keys)).view(np.uint8), axis=-1)

    base = bits(words)
    for word in (0, 1):
        for bit in range(32):
            changed = words.copy()
            changed[:, word] ^= np.uint32(1 << bit)
            share = (bits(changed) != base).mean()
            assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(base.size), (word, bit)


def test_counts_are_drawn_with_the_same_words():
    """JAX draws them with keys of its own kind only."""
    law = dist.Poisson(jnp.full(3, 5.0)).to_event(1)
    np.testing.assert_array_equal(draw(law, key=KEY), law.sample(threefry(KEY)))
    assert is_hashed(KEY) and not is_hashed(threefry(KEY))


def test_double_precision_has_its_own_bits():
    found = np.asarray(jax.random.uniform(KEY, (1000,), jnp.float64))
    assert found.dtype == np.float64 and len(np.unique(found * 2**32 % 1)) > 990
