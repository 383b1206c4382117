"""The grid over two states, against Kalman's recursions for each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from backstream import LinearGaussian, smooth
from backstream.families import Kalman
from backstream.families.backward import filter_states
from benchmarks.mirrored import Mirrored
from benchmarks.zoo.case import Data
from benchmarks.zoo.references.plane import Plane


class Seen(Mirrored):
    def emission(self, x, u=None):
        return dist.Normal(jnp.stack([x[0], x[0] - x[1]]), self.noise).to_event(1)


def test_the_grid_is_exact_where_kalman_is():
    p = Seen(jnp.array(0.8))
    states, ys = p.simulate(6, key=jax.random.key(0))
    found, half, _ = Plane(reach=12.0, nodes=120).run(p, Data(np.asarray(states), np.asarray(ys), None), 0)
    two = np.ones(2)
    same = LinearGaussian(np.zeros(2), 2.0 * two, 0.97 * two, np.array([[1.0, 0], [1, -1]]), 0.5 * two, 0.8 * two)
    q = Kalman.from_model(same)
    expected = smooth(same, q, ys)
    np.testing.assert_allclose(found.smoothed_mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(found.smoothed_cov, expected.cov, atol=1e-6)
    np.testing.assert_allclose(found.filtered_mean, jax.vmap(q.moments)(filter_states(same, q, ys))[0], atol=1e-6)
    np.testing.assert_allclose(found.log_score, half.log_score, atol=1e-6)
