"""The choice that a first row depends on: nothing of what is not chosen reaches a result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream._jax.choosing import choose


def root(scale, x):
    """Without a derivative at zero, and without a value below."""
    return jnp.sqrt(scale * x)


def line(scale, x):
    return 3.0 * scale + x


@pytest.mark.parametrize("x", [0.0, -1.0])
@pytest.mark.parametrize("derivative", [jax.jacrev, jax.jacfwd], ids=["reverse", "forward"])
def test_what_is_not_chosen_is_not_differentiated(x, derivative):
    """One at a time and many together, whichever of the two is the bad one. A plain `jnp.where` gives NaN."""
    scale, x, points = jnp.array(2.0), jnp.array(x), jnp.array([x, x])
    for function in (
        lambda scale, x: choose(x > 0, root, line, scale, x),
        lambda scale, x: choose(x <= 0, line, root, scale, x),
    ):
        np.testing.assert_allclose(function(scale, x), 6.0 + x)
        alone = derivative(function, argnums=(0, 1))(scale, x)
        np.testing.assert_allclose(alone, (3.0, 1.0))
        together = jax.jit(derivative(jax.vmap(function, (None, 0))))(scale, points)
        np.testing.assert_allclose(together, 3.0)
    assert np.isnan(jax.grad(lambda x: jnp.where(x > 0, root(scale, x), line(scale, x)))(x))


def test_what_is_chosen_keeps_its_derivatives():
    """Those of the operands, of trees with other leaves among them."""

    def either(tree):
        return choose(tree["x"] > 0, lambda t: {"y": t["x"] ** 2, "n": t["n"]}, lambda t: {"y": -t["x"], "n": 7}, tree)

    for x, value, slope, count in ((jnp.array(3.0), 9.0, 6.0, 5), (jnp.array(-3.0), 3.0, -1.0, 7)):
        found, gradient = jax.value_and_grad(lambda x: either({"x": x, "n": jnp.array(5), "name": "x"})["y"])(x)
        np.testing.assert_allclose((found, gradient), (value, slope))
        assert either({"x": x, "n": jnp.array(5), "name": "x"})["n"] == count
