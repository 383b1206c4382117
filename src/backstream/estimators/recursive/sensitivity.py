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
from jaxtyping import Array, Float, Int, PyTree

from backstream.estimators.base import flatten
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.models.base import StateSpaceModel

from .parameter_columns import ParameterColumns, add_columns, columns, read_arrays


class Cotangents(NamedTuple):
    """Rows of cotangents: of λ directly, and of the states, flat a_{t-1} and a_t (None where nothing reads them)."""

    direct: list[ParameterColumns]
    to_previous: Float[Array, "*n a"] | None = None
    to_now: Float[Array, "*n a"] | None = None

    def centered(self, row: Float[Array, " n"]) -> tuple["Cotangents", "Cotangents"]:
        """Less their mean under the weights `row`, and that mean.

        Two, and not one with a row more: rows that are divided among devices are to stay where they are.
        """
        return self._map(lambda rows: rows - row @ rows), self._map(lambda rows: row @ rows)

    def combine(self, coefficients: Float[Array, "m n"]) -> "Cotangents":
        """Linear combinations of the rows."""
        return self._map(lambda rows: coefficients @ rows)

    def _map(self, function: Callable[[Array], Array]) -> "Cotangents":
        states = (None if rows is None else function(rows) for rows in (self.to_previous, self.to_now))
        return Cotangents([ParameterColumns(start, function(values)) for start, values in self.direct], *states)


class Pulled(NamedTuple):
    """Rows of cotangents of λ: some of them everywhere, some in the columns of single arrays. Both are to be added."""

    everywhere: Float[Array, "*n p"] | None
    parts: list[ParameterColumns]

    def add_to(self, total: Float[Array, "*n p"]) -> Float[Array, "*n p"]:
        total = add_columns(total, self.parts)
        return total if self.everywhere is None else total + self.everywhere


class AbstractPull(eqx.Module):
    @abstractmethod
    def __call__(self, *cotangents: Cotangents) -> tuple[list[Pulled], Any]:
        """All cotangents of one time, pulled back to λ, [P] or [N, P] each, and what the sensitivity hands on."""


class VjpPull(AbstractPull):
    """Cotangents are pulled back row by row, through functions of the arrays of λ that they read."""

    previous: Callable[[Array], list[Array]] | None
    """From cotangents of a_{t-1}, or None where it does not depend on λ."""
    now: Callable[[Array], list[Array]]
    starts: list[int] = eqx.field(static=True)
    carry: Any

    def __call__(self, *cotangents):
        return [Pulled(None, [*self._through_states(given), *given.direct]) for given in cotangents], self.carry

    def _through_states(self, given: Cotangents) -> list[ParameterColumns]:
        parts = []
        for vjp, rows in ((self.previous, given.to_previous), (self.now, given.to_now)):
            if vjp is not None and rows is not None:
                found = columns(self.starts, jax.vmap(vjp)(jnp.atleast_2d(rows)))
                parts += [ParameterColumns(start, values.reshape(*rows.shape[:-1], -1)) for start, values in found]
        return parts


class AbstractSensitivity(eqx.Module):
    remembers: eqx.AbstractClassVar[bool]
    """Whether anything before t depends on λ, i.e. whether G has to be carried."""

    def check_family(self, q: BackwardFamily) -> None:
        """Raises TypeError where the family's parameters are not of the kind that this sensitivity is for."""
        if q.amortized != self.remembers:
            raise TypeError(
                f"{type(self).__name__} does not fit {type(q).__name__}: a family whose parameters at t are its own "
                "(PerStep) goes with Frozen(), the amortized ones, whose parameters are shared by all t, go with "
                "Forward() or Truncated(depth)."
            )

    @abstractmethod
    def init(self, p: StateSpaceModel, q: BackwardFamily, y: Array, u: Any) -> AbstractPull:
        """At the first observation."""

    @abstractmethod
    def advance(
        self, p: StateSpaceModel, q: BackwardFamily, carry: Any, state: PyTree, y: Array, u: Any
    ) -> AbstractPull:
        """At each later one; `state` is a_{t-1}."""


class JacobianPull(AbstractPull):
    """J_{t-1}, None at the first observation, and J_t."""

    J_previous: Float[Array, "a p"] | None
    J: Float[Array, "a p"]

    def __call__(self, *cotangents):
        pulled = []
        for given in cotangents:
            everywhere, direct = None, given.direct
            if given.to_previous is not None and self.J_previous is not None:
                # What belongs to single columns is added to a product at once: there it can be done in place.
                everywhere, direct = add_columns(given.to_previous @ self.J_previous, given.direct), []
            if given.to_now is not None:
                through_now = given.to_now @ self.J
                everywhere = through_now if everywhere is None else everywhere + through_now
            pulled.append(Pulled(everywhere, direct))
        return pulled, self.J


class Forward(AbstractSensitivity):
    """The exact sensitivity, carried forward: J_t = ∂_a U(a_{t-1}, λ) J_{t-1} + ∂_λ U, for a_t = U(a_{t-1}, λ).

    With a `discount` δ below 1, δ J_{t-1} replaces J_{t-1}: what a state owes to the λ of k steps ago
    counts δ^k. It belongs to `Renewal(δ)`, whose window of random length starts from a state that is given: without it,
    the filter at that start is bent towards a frozen copy of itself, and follows its own errors.
    """

    discount: float = eqx.field(static=True, default=1.0)
    remembers: ClassVar[bool] = True

    def __check_init__(self):
        if not 0 <= self.discount <= 1:
            raise ValueError(f"The discount of the sensitivity must lie between 0 and 1, not at {self.discount}.")

    def init(self, p, q, y, u):
        a, vjp, starts = _vjp(lambda q: flatten(first_state(p, q, y, u))[0], q)
        rows = jax.vmap(vjp)(jnp.eye(len(a), dtype=a.dtype))[0]
        J = jnp.zeros((len(a), flatten(q)[0].size), a.dtype)
        return JacobianPull(None, add_columns(J, columns(starts, rows)))

    def advance(self, p, q, carry, state, y, u):
        (lam, rebuild), (a, restore) = flatten(q), flatten(state)
        J_previous = carry if self.discount == 1 else self.discount * carry

        def update(q, a):
            return flatten(q.update(p, restore(a), y, u))[0]

        if lam.size < a.size:  # column by column: the derivatives of U along λ, never the matrix ∂_a U
            _, along = jax.linearize(lambda lam, a: update(rebuild(lam), a), lam, a)
            return JacobianPull(J_previous, jax.vmap(along, (0, 1), 1)(jnp.eye(lam.size, dtype=lam.dtype), J_previous))
        a_next, vjp, starts = _vjp(update, q, a)
        rows, U_a = jax.vmap(vjp)(jnp.eye(len(a_next), dtype=a.dtype))
        return JacobianPull(J_previous, add_columns(U_a @ J_previous, columns(starts, rows)))


def _vjp(function: Callable[..., Array], q: BackwardFamily, *arguments: Array):
    """The value of function(q, *arguments), its pullback to the arrays of λ that it reads and to the arguments, and
    where in λ those arrays start."""
    some, starts, rebuild, _ = read_arrays(function, q, *arguments)
    value, vjp = jax.vjp(lambda some, *arguments: function(rebuild(some), *arguments), some, *arguments)
    return value, vjp, starts


class Replay(NamedTuple):
    """The last Δ observations with the states they led to, oldest first, and how many have been seen in all."""

    states: PyTree
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

    def init(self, p, q, y, u):
        _, vjp, starts = _vjp(lambda q: flatten(first_state(p, q, y, u))[0], q)

        def repeat(leaf):
            return jnp.repeat(jnp.asarray(leaf)[None], self.depth, axis=0)

        # Before the first row stands that row, and the state that there is before it.
        ys, us, states = jax.tree.map(repeat, (y, u, q.init(p, u)))
        states = jax.tree.map(_append, states, first_state(p, q, y, u))
        return VjpPull(None, lambda cotangent: vjp(cotangent)[0], starts, Replay(states, ys, us, jnp.asarray(1)))

    def advance(self, p, q, carry, state, y, u):
        restore, last = flatten(state)[1], self.depth - 1
        ys, us = jax.tree.map(_append, (carry.ys, carry.us), (y, u))

        def update(q, state, k):
            y, u = jax.tree.map(lambda leaf: leaf[k], (ys, us))
            return q.update(p, state, y, u)

        def before(q):
            """a_{t-1}, from a_{t-Δ}."""
            state = jax.tree.map(lambda leaf: leaf[0], carry.states)
            for k in range(last):
                time = carry.seen - (last - k)  # that of the k-th kept observation
                state = _where(time == 0, q.init(p, jax.tree.map(lambda leaf, k=k: leaf[k], us)), state)
                state = _where(time < 0, state, update(q, state, k))
            return flatten(state)[0]

        def now(q, a):
            state = update(q, restore(a), last)
            return flatten(state)[0], state

        some, starts, rebuild, _ = read_arrays(lambda q: now(q, before(q))[0], q)
        a_previous, to_previous = jax.vjp(lambda some: before(rebuild(some)), some)
        _, to_both, state = jax.vjp(lambda some, a: now(rebuild(some), a), some, a_previous, has_aux=True)

        def from_now(cotangent):
            direct, through = to_both(cotangent)
            return jax.tree.map(jnp.add, direct, to_previous(through)[0])

        replay = Replay(jax.tree.map(_append, carry.states, state), ys, us, carry.seen + 1)
        return VjpPull(
            None if self.depth == 1 else lambda cotangent: to_previous(cotangent)[0], from_now, starts, replay
        )


def _append(buffer: Array, leaf: Array) -> Array:
    """The latest of a row of values, without the oldest."""
    return jnp.concatenate([buffer[1:], jnp.asarray(leaf, buffer.dtype)[None]])


def _where(predicate: Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), yes, no)


class Frozen(AbstractSensitivity):
    """The past is constant: for families whose parameters at each time are their own (`PerStep`)."""

    remembers: ClassVar[bool] = False

    def init(self, p, q, y, u):
        _, vjp, starts = _vjp(lambda q: flatten(first_state(p, q, y, u))[0], q)
        return VjpPull(None, lambda cotangent: vjp(cotangent)[0], starts, None)

    def advance(self, p, q, carry, state, y, u):
        _, vjp, starts = _vjp(lambda q: flatten(q.update(p, state, y, u))[0], q)
        return VjpPull(None, lambda cotangent: vjp(cotangent)[0], starts, None)
