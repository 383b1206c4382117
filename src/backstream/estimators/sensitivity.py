"""How the states a_{t-1} and a_t depend on λ.

The scores of q_t and q_{t-1|t} need the derivative of η_t and η_{t-1} with respect to λ, through every update since the
first observation. `Forward` carries the Jacobian J_t = ∂a_t/∂λ, exactly or discounted; `Truncated` replays the last Δ
updates and takes what came before as constant (the paper's truncated backpropagation); `Frozen` is for families whose
parameters at t are their own, so that nothing before t depends on them.

Each gives, at time t, a `Pull`: the map that turns cotangents of (a_{t-1}, a_t) into cotangents of λ.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from backstream.families.base import BackwardFamily

from .base import flatten

Pull = Callable[[Array | None, Array | None], Array]
"""(cotangents of a_{t-1} or None, of a_t or None), [A] or [N, A] each, to those of λ, [P] or [N, P]."""


def flatten_state(state: PyTree) -> Float[Array, " a"]:
    return ravel_pytree(state)[0]


def reads(function: Callable[..., Any], *arguments: Any) -> Any:
    """Which leaves of its arguments the result of a traceable function can depend on: a tree of booleans.

    XLA does not simplify products with zeros: what cannot depend on a_t should not be multiplied by ∂a_t/∂λ.
    """
    leaves, tree = jax.tree.flatten(arguments)
    jaxpr = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)))(*leaves).jaxpr
    sources: dict[Any, frozenset[int]] = {variable: frozenset([k]) for k, variable in enumerate(jaxpr.invars)}

    def reached(variables) -> frozenset[int]:
        return frozenset().union(*(sources.get(v, frozenset()) for v in variables if not hasattr(v, "val")))

    for equation in jaxpr.eqns:
        through = reached(equation.invars)
        sources.update((variable, through) for variable in equation.outvars)
    used = reached(jaxpr.outvars)
    return tree.unflatten([k in used for k in range(len(leaves))])


def pull_each(vjp: Callable[[Any], Any], cotangents: Any, batched: bool) -> Any:
    return jax.vmap(vjp)(cotangents) if batched else vjp(cotangents)


class AbstractSensitivity(eqx.Module):
    remembers: eqx.AbstractClassVar[bool]
    """Whether anything before t depends on λ, i.e. whether G has to be carried."""

    def check_family(self, q: BackwardFamily) -> None:
        """Raises TypeError where the family's parameters are not of the kind that this sensitivity is for."""
        if q.amortised != self.remembers:
            raise TypeError(
                f"{type(self).__name__} does not fit {type(q).__name__}: a family whose parameters at t are its own "
                "(PerStep) goes with Frozen(), the amortised ones, whose parameters are shared by all t, go with "
                "Forward() or Truncated(depth)."
            )

    @abstractmethod
    def init(self, q: BackwardFamily, y: Array, u: Any) -> tuple[Any, Pull]:
        """At the first observation."""

    @abstractmethod
    def advance(self, q: BackwardFamily, carry: Any, state: PyTree, y: Array, u: Any) -> tuple[Any, Pull]:
        """At each later one; `state` is a_{t-1}."""


class Forward(AbstractSensitivity):
    """The exact sensitivity, carried forward: J_t = ∂_a U(a_{t-1}, λ) J_{t-1} + ∂_λ U, for a_t = U(a_{t-1}, λ).

    With a `discount` δ below 1, δ J_{t-1} stands in the place of J_{t-1}: what a state owes to the λ of k steps ago
    counts δ^k. It belongs to `Renewal(δ)`, whose window of random length starts from a state that is given: without it,
    the filter at that start is bent towards a frozen copy of itself, and follows its own errors.
    """

    discount: float = eqx.field(static=True, default=1.0)
    remembers: ClassVar[bool] = True

    def __check_init__(self):
        if not 0 <= self.discount <= 1:
            raise ValueError(f"The discount of the sensitivity must lie between 0 and 1, not at {self.discount}.")

    def init(self, q, y, u):
        lam, rebuild = flatten(q)
        J = jax.jacrev(lambda v: flatten_state(rebuild(v).init(y, u)))(lam)
        return J, lambda previous, now: now @ J

    def advance(self, q, carry, state, y, u):
        lam, rebuild = flatten(q)
        a, restore = ravel_pytree(state)

        def update(a, v):
            return flatten_state(rebuild(v).update(restore(a), y, u))

        U_a, U_lam = jax.jacrev(update, argnums=(0, 1))(a, lam)
        J_previous = carry if self.discount == 1 else self.discount * carry
        J = U_a @ J_previous + U_lam

        def pull(previous, now):
            if now is None:
                return previous @ J_previous
            return now @ J if previous is None else previous @ J_previous + now @ J

        return J, pull


class Replay(NamedTuple):
    """The last Δ observations with the states they led to (flat), oldest first, and how many have been seen in all."""

    states: Float[Array, "depth a"]
    ys: Float[Array, "depth dy"]
    us: PyTree
    seen: Int[Array, ""]


class Truncated(AbstractSensitivity):
    """Truncated backpropagation: at time t the states (a_s), s ≤ t − depth, are taken as independent of λ."""

    depth: int = eqx.field(static=True, default=2)
    remembers: ClassVar[bool] = True

    def __check_init__(self):
        if self.depth < 1:
            raise ValueError(f"The depth of the truncated sensitivity must be at least 1, not {self.depth}.")

    def init(self, q, y, u):
        lam, rebuild = flatten(q)

        def first(v):
            return flatten_state(rebuild(v).init(y, u))

        a, vjp = jax.vjp(first, lam)

        def last_of_many(leaf):
            return jnp.zeros((self.depth, *jnp.shape(leaf)), jnp.result_type(leaf)).at[-1].set(leaf)

        carry = Replay(last_of_many(a), last_of_many(y), jax.tree.map(last_of_many, u), jnp.asarray(1))
        return carry, lambda previous, now: pull_each(vjp, now, now.ndim > 1)[0]

    def advance(self, q, carry, state, y, u):
        lam, rebuild = flatten(q)
        restore = ravel_pytree(state)[1]

        def append(buffer, leaf):
            return jnp.concatenate([buffer[1:], jnp.asarray(leaf, buffer.dtype)[None]])

        ys = append(carry.ys, y)
        us = jax.tree.map(append, carry.us, u)
        age = jnp.arange(self.depth)[::-1]
        times = carry.seen - age  # the time of each kept observation; negative where there is none yet

        def replay(v):
            family = rebuild(v)

            def one(a, scanned):
                s, y, u = scanned
                a_next = jax.lax.switch(
                    jnp.clip(s + 1, 0, 2),
                    [
                        lambda: a,
                        lambda: flatten_state(family.init(y, u)),
                        lambda: flatten_state(family.update(restore(a), y, u)),
                    ],
                )
                return a_next, a

            now, before = jax.lax.scan(one, carry.states[0], (times, ys, us))
            return before[-1], now

        (_, now), vjp = jax.vjp(replay, lam)

        def pull(previous, now_):
            some = previous if now_ is None else now_
            given = [c is not None for c in (previous, now_)]
            # Many rows of cotangents go through the Jacobian, few are pulled back one by one.
            if some.ndim > 1 and len(some) > sum(given) * some.shape[1]:
                eye, zero = jnp.eye(some.shape[1], dtype=some.dtype), jnp.zeros((some.shape[1],) * 2, some.dtype)
                total = jnp.zeros((), some.dtype)
                if previous is not None:
                    total = total + previous @ jax.vmap(vjp)((eye, zero))[0]
                return total if now_ is None else total + now_ @ jax.vmap(vjp)((zero, eye))[0]
            cotangents = tuple(jnp.zeros_like(some) if c is None else c for c in (previous, now_))
            return pull_each(vjp, cotangents, some.ndim > 1)[0]

        return Replay(append(carry.states, now), ys, us, carry.seen + 1), pull


class Frozen(AbstractSensitivity):
    """The past is constant: for families whose parameters at each time are their own (`PerStep`)."""

    remembers: ClassVar[bool] = False

    def init(self, q, y, u):
        lam, rebuild = flatten(q)
        _, vjp = jax.vjp(lambda v: flatten_state(rebuild(v).init(y, u)), lam)
        return None, lambda previous, now: pull_each(vjp, now, now.ndim > 1)[0]

    def advance(self, q, carry, state, y, u):
        lam, rebuild = flatten(q)
        _, vjp = jax.vjp(lambda v: flatten_state(rebuild(v).update(state, y, u)), lam)

        def pull(previous, now):
            if now is None:
                return jnp.zeros((*previous.shape[:-1], lam.size), lam.dtype)
            return pull_each(vjp, now, now.ndim > 1)[0]

        return None, pull
