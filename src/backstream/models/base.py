"""State-space models: a prior χ, a transition kernel m and an emission g."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
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
    """A model of a hidden Markov chain X_t with observations Y_t. Subclasses implement three methods.

    Each method returns a numpyro distribution of vectors, with event shape `(d,)` for states and `(dy,)` for
    observations. A distribution of single numbers counts as a vector with one entry. States are always passed as
    vectors. `u` holds the known inputs at time t (any JAX pytree), or None; a method that does not need it can leave it
    out. The array fields of the class are the parameters θ. Internally, use `prior_law`, `transition_law` and
    `emission_law` to read a model.

    >>> class Walk(StateSpaceModel):
    ...     def prior(self):
    ...         return dist.Normal(jnp.zeros(1), 1.0).to_event(1)
    ...     def transition(self, x):
    ...         return dist.Normal(x, 0.1).to_event(1)
    ...     def emission(self, x):
    ...         return dist.Normal(x, 0.5).to_event(1)
    >>> states, observations = Walk().simulate(100, key=jax.random.key(0))
    >>> observations.shape
    (100, 1)
    """

    constraints: ClassVar[Mapping[str, Constraint]] = {}
    """Constraints of fields that are learned, for example {"sigma": constraints.positive}. For a covariance matrix, use
    a lower-triangular factor with a positive diagonal."""

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name, arguments in (("prior", 1), ("transition", 2), ("emission", 2)):
            method = getattr(cls, name)
            if name in vars(cls) and not _takes(method, arguments + 1) and _takes(method, arguments):
                setattr(cls, name, _with_inputs(method))

    @abstractmethod
    def prior(self, u: Inputs = None) -> dist.Distribution:
        """The distribution of X_0 (χ in the paper)."""

    @abstractmethod
    def transition(self, x: Float[Array, " d"], u: Inputs = None) -> dist.Distribution:
        """The distribution of X_t given X_{t-1} = x and the inputs at t (m_t in the paper)."""

    @abstractmethod
    def emission(self, x: Float[Array, " d"], u: Inputs = None) -> dist.Distribution:
        """The distribution of Y_t given X_t = x and the inputs at t (g_t in the paper)."""

    def simulate(
        self, num_steps: int, inputs: Inputs = None, *, key: Array
    ) -> tuple[Float[Array, "t d"], Float[Array, "t dy"]]:
        """Simulates states and observations.

        Args:
            num_steps: The number of rows T.
            inputs: The inputs of the rows, with a leading axis of length T, if the model has inputs.
            key: The random key.

        Returns:
            The states [T, d] and the observations [T, dy].

        Raises:
            ValueError: If `num_steps` is below 1.
        """
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


def _takes(method: Callable, count: int) -> bool:
    """Whether it can be called with so many arguments in a row."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    return True


def _with_inputs(method: Callable) -> Callable:
    """A method that leaves the inputs out, as one that takes them."""

    count = len(inspect.signature(method).parameters) - 1

    @wraps(method)
    def accepting(self, *given: Any, u: Inputs = None) -> Any:
        return method(self, *given[:count])

    return accepting


def prior_law(p: StateSpaceModel, u: Inputs = None) -> Law:
    """χ, as a law of vectors."""
    return of_vectors(p.prior(u))


def transition_law(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Law:
    """m_t(x, ·), as a law of vectors."""
    return of_vectors(p.transition(x, u))


def emission_law(p: StateSpaceModel, x: Float[Array, " d"], u: Inputs = None) -> Law:
    """g_t(x, ·), as a law of vectors."""
    return of_vectors(p.emission(x, u))
