"""State-space models: a prior χ, a transition kernel m and an emission g."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.constraints import Constraint

from backstream.models.laws import Law, draw, of_vectors

Inputs = Any


class StateSpaceModel(eqx.Module):
    """A hidden Markov chain X_t seen through observations Y_t. Subclasses write three methods.

    Each returns a numpyro distribution with an event shape of one axis: `(d,)` for states, `(dy,)` for
    observations; or one of single numbers, which is read as a vector with one entry. States are always passed as
    vectors. `u` holds the known inputs at time t (anything JAX can carry), or None. The array leaves of the module are
    θ. Whoever reads a model's laws does so through `prior_law`, `transition_law` and `emission_law`.

    >>> class Walk(StateSpaceModel):
    ...     def prior(self, u=None):
    ...         return dist.Normal(jnp.zeros(1), 1.0).to_event(1)
    ...     def transition(self, x, u=None):
    ...         return dist.Normal(x, 0.1).to_event(1)
    ...     def emission(self, x, u=None):
    ...         return dist.Normal(x, 0.5).to_event(1)
    >>> states, observations = Walk().simulate(100, key=jax.random.key(0))
    >>> observations.shape
    (100, 1)
    """

    constraints: ClassVar[Mapping[str, Constraint]] = {}
    """The numpyro constraints of fields that must keep to one while they are learned: {"sigma": constraints.positive}.
    A matrix that must be positive is a lower-triangular factor: its diagonal is."""

    @abstractmethod
    def prior(self, u: Inputs = None) -> dist.Distribution:
        """χ: the law of X_0."""

    @abstractmethod
    def transition(self, x: Float[Array, " d"], u: Inputs = None) -> dist.Distribution:
        """m_t(x, ·): the law of X_t given X_{t-1} = x, with the inputs at t."""

    @abstractmethod
    def emission(self, x: Float[Array, " d"], u: Inputs = None) -> dist.Distribution:
        """g_t(x, ·): the law of Y_t given X_t = x, with the inputs at t."""

    def simulate(
        self, num_steps: int, inputs: Inputs = None, *, key: Array
    ) -> tuple[Float[Array, "t d"], Float[Array, "t dy"]]:
        """States X_0, …, X_{T-1} and their observations. `inputs`, if any, has a leading axis of length T."""
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, not {num_steps}.")

        def first(u, key):
            return draw(prior_law(self, u), key=key)

        def advance(x, scanned):
            t, u = scanned
            x = jax.lax.cond(
                t == 0,
                lambda: first(u, jax.random.fold_in(key, 0)),
                lambda: draw(transition_law(self, x, u), key=jax.random.fold_in(key, 2 * t)),
            )
            return x, (x, draw(emission_law(self, x, u), key=jax.random.fold_in(key, 2 * t + 1)))

        u0 = jax.tree.map(lambda leaf: leaf[0], inputs)
        start = jnp.zeros_like(first(u0, key))
        return jax.lax.scan(advance, start, (jnp.arange(num_steps), inputs))[1]


def prior_law(p: StateSpaceModel, u: Inputs = None) -> Law:
    """χ, as a law of vectors."""
    return of_vectors(p.prior(u))


def transition_law(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Law:
    """m_t(x, ·), as a law of vectors."""
    return of_vectors(p.transition(x, u))


def emission_law(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Law:
    """g_t(x, ·), as a law of vectors."""
    return of_vectors(p.emission(x, u))
