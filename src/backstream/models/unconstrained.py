"""Models whose states are positive, or between zero and one, with their logarithms or logits as states."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ExpTransform, SigmoidTransform

from backstream.models.base import Inputs, StateSpaceModel, of_vectors
from backstream.models.laws import Law, columns_of, factorizes, name_of


class Bounds(NamedTuple):
    support: Any
    numbers: str
    unbounded: str
    """What they are called on a scale without bounds."""
    transform: Any
    """The way back from there."""


BOUNDS = (
    Bounds(constraints.positive, "positive numbers", "logarithms", ExpTransform()),
    Bounds(constraints.unit_interval, "numbers between 0 and 1", "logits", SigmoidTransform()),
)
FIRST, THEN = np.linspace(-12, 12, 121), np.linspace(-8, 8, 81)
"""Nodes of the quadrature, in standard deviations."""


def bounds_of(law: Law) -> Bounds | None:
    """The bounds of a law's numbers, where there is a scale without them."""
    support = columns_of(law).support if factorizes(law) else None
    return next((bounds for bounds in BOUNDS if support is bounds.support), None)


class Unconstrained(StateSpaceModel):
    """What a class derives from, before a model: the same model, with the logarithms of positive states (the logits of
    states between 0 and 1) as its states. Its parameters and their constraints are the same.

    >>> class Rate(StateSpaceModel):
    ...     def prior(self, u=None):
    ...         return dist.LogNormal(jnp.zeros(1), 1.0).to_event(1)
    ...     def transition(self, x, u=None):
    ...         return dist.LogNormal(0.9 * jnp.log(x), 0.2).to_event(1)
    ...     def emission(self, x, u=None):
    ...         return dist.Poisson(10 * x).to_event(1)
    >>> class LogRate(Unconstrained, Rate):
    ...     pass
    >>> float(LogRate().constrain(jnp.zeros(1))[0])
    1.0
    """

    def prior(self, u=None):
        law = of_vectors(super().prior(u))  # pyright: ignore[reportAbstractUsage]
        return _pulled(law, self._transform(u))

    def transition(self, x, u=None):
        law = of_vectors(super().transition(self.constrain(x, u), u))  # pyright: ignore[reportAbstractUsage]
        if bounds_of(law) is not bounds_of(of_vectors(super().prior(u))):  # pyright: ignore[reportAbstractUsage]
            raise ValueError(f"transition returns {name_of(law)}, a law of other numbers than the prior's.")
        return _pulled(law, self._transform(u))

    def emission(self, x, u=None):
        return super().emission(self.constrain(x, u), u)  # pyright: ignore[reportAbstractUsage]

    def constrain(self, x: Float[Array, "*n d"], u: Inputs = None) -> Float[Array, "*n d"]:
        """From this model's states to those of the model it is made from. Medians and the ends of intervals can be
        taken there; a mean is not the mean there."""
        return self._transform(u)(x)

    def unconstrain(self, x: Float[Array, "*n d"], u: Inputs = None) -> Float[Array, "*n d"]:
        """From the states of the model that this one is made from to its own."""
        return self._transform(u).inv(x)

    def _transform(self, u: Inputs):
        law = of_vectors(super().prior(u))  # pyright: ignore[reportAbstractUsage]
        bounds = bounds_of(law)
        if bounds is None:
            raise ValueError(
                f"prior returns {name_of(law)}: to leave out bounds, it must be a law of positive numbers, or of "
                "numbers between 0 and 1."
            )
        return bounds.transform


def unconstrained(model: StateSpaceModel) -> Any:
    """The same model, with the logarithms of positive states (the logits of states between 0 and 1) as its states.

    Args:
        model: A model whose prior and transition are laws of positive numbers (LogNormal, Gamma, …), or of numbers
            between 0 and 1 (Beta, a sigmoid of something).

    Returns:
        A model with the same parameters, and with `constrain`, which takes states back.

    Raises:
        ValueError: If the states are not bounded that way.
    """
    found = object.__new__(_without_bounds(type(model)))
    for name, value in vars(model).items():
        object.__setattr__(found, name, value)
    found._transform(None)
    return found


@cache
def _without_bounds(cls: type[StateSpaceModel]) -> Any:
    return type(f"Unconstrained{cls.__name__}", (Unconstrained, cls), {"__module__": cls.__module__})


def _pulled(law: Law, transform: Any) -> Law:
    """The law of transform⁻¹(X), exactly where that is known."""
    base = columns_of(law)
    if isinstance(base, dist.TransformedDistribution) and [type(t) for t in base.transforms] == [type(transform)]:
        base = base.base_dist
    else:
        base = Pulled(base, transform)
    return base.expand(law.event_shape).to_event(1)


class Pulled(dist.Distribution):
    """The law of transform⁻¹(X). Its moments are found by quadrature."""

    support = constraints.real  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("law",)
    pytree_aux_fields = ("transform",)

    def __init__(self, law: Law, transform: Any):
        self.law, self.transform = law, transform
        super().__init__(law.batch_shape, ())

    def sample(self, key: Any, sample_shape=()):
        return self.transform.inv(self.law.sample(key, sample_shape))

    def log_prob(self, value: Any):
        x = self.transform(value)
        return self.law.log_prob(x) + self.transform.log_abs_det_jacobian(value, x)

    @property
    def mean(self):
        return self._moments()[0]

    @property
    def variance(self):
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        middle = self.transform.inv(jnp.asarray(self.law.mean))
        slope = jnp.exp(self.transform.log_abs_det_jacobian(middle, self.transform(middle)))
        scale = jnp.sqrt(self.law.variance) / slope
        for nodes in (FIRST, THEN):
            z = middle + scale * jnp.asarray(nodes, scale.dtype).reshape(-1, *[1] * scale.ndim)
            mass = jax.nn.softmax(jax.vmap(self.log_prob)(z), 0)
            middle = (mass * z).sum(0)
            scale = jnp.sqrt((mass * (z - middle) ** 2).sum(0))
        return middle, scale**2
