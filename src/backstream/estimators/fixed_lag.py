"""Reparameterized backward trajectories over a sliding window.

The window's ELBO is that of its rows (see `trajectories.py`), with the filter's law before it as the prior of its first
state once it has left the first row behind.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.batched_cond import branch
from backstream._jax.choosing import choose
from backstream._jax.compensated_sums import CompensatedSum
from backstream.families.backward import Chain, backward_chain, first_state, sample_backward, sample_chain
from backstream.families.base import BackwardFamily, State
from backstream.laws.gaussian import Gaussian
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition

from .backward_trajectories import BackwardTrajectories, check_num_trajectories, emissions, transitions
from .base import Estimate, OnlineEstimate, OnlineEstimator, differentiate, require_amortized
from .first_row import NOT_SEEN, FirstRowApart


class Window(NamedTuple):
    """The observations of times t − L + 1, …, t; the states of times t − L, …, t; and what precedes them."""

    chain: Chain
    ys: Float[Array, "l dy"]
    us: PyTree
    anchor: Gaussian | None
    """q_{t-L}, frozen, the prior of the first state; None while the window still reaches back to time 0."""
    times: Int[Array, " l"]
    """Those of the observations, negative where there is none yet."""

    def drop_last(self) -> "Window":
        ys, us, times = jax.tree.map(lambda leaf: leaf[:-1], (self.ys, self.us, self.times))
        return Window(self.chain.drop_last(), ys, us, self.anchor, times)

    def elbos(self, p: StateSpaceModel, q: BackwardFamily, noise: Float[Array, "n s d"]) -> Float[Array, " n"]:
        """One unbiased value of the window's ELBO for each trajectory."""

        def one(z):
            xs, log_q = sample_chain(p, q, self.chain, z)
            if self.anchor is None:
                return self._from_start(p, xs, log_q[:-1]) - log_q[-1]
            return _after_anchor(p, self.anchor, xs, log_q, self.ys, self.us)

        return jax.vmap(one)(noise[:, : len(self.ys) + 1])

    def _from_start(self, p: StateSpaceModel, xs: Float[Array, "s d"], log_q: Float[Array, " l"]) -> Float[Array, ""]:
        """log χ(x_0) and all that follows it but log q_t(x_t). What there is not yet is nothing."""

        def nothing(p, x_prev, x, y, u, log_q):
            return jnp.zeros((), x.dtype)

        def first(p, x_prev, x, y, u, log_q):
            return log_prior(p, x, u)

        def moved(p, x_prev, x, y, u, log_q):
            return log_transition(p, x_prev, x, u) - log_q

        def seen(p, x_prev, x, y, u, log_q):
            return log_emission(p, x, y, u)

        def row(time, *known):
            parts = (time == 0, first), (time >= 1, moved), (time >= 0, seen)
            return jnp.stack([choose(there, part, nothing, p, *known) for there, part in parts])

        return jax.vmap(row)(self.times, xs[:-1], xs[1:], self.ys, self.us, log_q).sum()


def window_elbo(
    p: StateSpaceModel,
    q: BackwardFamily,
    anchor: State,
    ys: Float[Array, "l dy"],
    inputs: Inputs = None,
    num_trajectories: int = 1,
    *,
    key: Array,
) -> Float[Array, " n"]:
    """Unbiased values, one for each trajectory, of the ELBO of the observations `ys` that follow the state `anchor`.

    The law q has at `anchor` is the prior of the state before the first of them.
    """
    states, prior = _replay(p, q, anchor, ys, inputs), q.marginal(anchor)
    if not q.gaussian:

        def one(key):
            return _after_anchor(p, prior, *sample_backward(p, q, states, key=key), ys, inputs)

        return jax.vmap(one)(jax.random.split(key, num_trajectories))
    chain = backward_chain(p, q, states)
    noise = jax.random.normal(key, (num_trajectories, len(ys) + 1, q.state_dim), chain.marginals.eta1.dtype)
    times = jnp.arange(1, len(ys) + 1)
    return Window(chain, ys, inputs, prior, times).elbos(p, q, noise)


def _after_anchor(p: StateSpaceModel, prior: Any, xs: Float[Array, "s d"], log_q: Array, ys: Array, us: Inputs):
    """The ELBO of one trajectory whose first state has the law `prior`."""
    seen, moves = emissions(p, xs[1:], ys, us), transitions(p, xs, us) - log_q[:-1]
    return prior.log_prob(xs[0]) + seen.sum() + moves.sum() - log_q[-1]


class AbstractWindowObjective(eqx.Module):
    """What is ascended, given the ELBO of a window."""

    @abstractmethod
    def value(self, elbo: Callable[[Window], Array], window: Window) -> Float[Array, ""]:
        """The objective, a differentiable function of the window."""

    @abstractmethod
    def begin(self, estimate: Estimate) -> PyTree:
        """What is carried, after the first observation, to form totals."""

    @abstractmethod
    def conclude(self, carry: PyTree, estimate: Estimate, size: Array) -> tuple[PyTree, Estimate, Estimate]:
        """The carry, the total and the increment, given the value, with its gradients, for `size` observations."""


class WindowAverage(AbstractWindowObjective):
    """The window's ELBO divided by its number of observations: what is done where there is no recursion.

    The total is that of the window, not of the stream.
    """

    def value(self, elbo, window):
        return elbo(window)

    def begin(self, estimate):
        return None

    def conclude(self, carry, estimate, size):
        return None, estimate, jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), estimate)


class WindowIncrement(AbstractWindowObjective):
    """What the newest observation adds to the window's ELBO, with the same noise for both windows.

    The increments add up to the ELBO: exactly so, in expectation, while the window reaches back to the first
    observation, and afterwards as far as log q_{t-L} can stand, up to a constant, for H_{t-L}. The total is their sum.
    """

    def value(self, elbo, window):
        return elbo(window) - elbo(window.drop_last())

    def begin(self, estimate):
        vector, _ = ravel_pytree(estimate)
        return CompensatedSum.zeros(vector.shape, vector.dtype).add(vector)

    def conclude(self, carry, estimate, size):
        vector, unravel = ravel_pytree(estimate)
        carry = carry.add(vector)
        return carry, unravel(carry.total()), estimate


class FixedLagCarry(NamedTuple):
    seen: Int[Array, ""]
    anchor: State
    """a_{t-L+1}, from which the next window starts; of no meaning before t = L − 1."""
    ys: Float[Array, "l dy"]
    us: PyTree
    sums: PyTree


class FixedLag(FirstRowApart, OnlineEstimator):
    """The ELBO of a sliding window of the last `lag` observations, from reparameterized trajectories.

    At every observation the states are replayed under the current λ from a_{t-L}, which is taken as constant, and
    trajectories are drawn backwards from t to t − L. The first state has the filter q_{t-L}, frozen, as its prior: at
    the optimum H_{t-L} = log q_{t-L} up to a constant, so that this is what should stand for all that came before.
    Until `lag` observations have been read, the window is the whole stream and its prior that of the model.

    `objective` is `WindowAverage()` or `WindowIncrement()`; `learn_model` adds the gradient with respect to θ. Whatever
    takes more than `lag` steps to show is not learned.

        estimator = FixedLag(lag=8, num_trajectories=4)
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
        estimate.increment.gradient
    """

    lag: int = eqx.field(static=True)
    num_trajectories: int = eqx.field(static=True)
    objective: AbstractWindowObjective = WindowAverage()
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.lag < 1:
            raise ValueError(f"lag must be at least 1, not {self.lag}.")
        check_num_trajectories(self.num_trajectories)

    def check_family(self, q):
        require_amortized(q)

    def first(self, p, q, y, u, key):
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (y, u))
        estimate = BackwardTrajectories(self.num_trajectories, self.learn_model)(p, q, *one, key=key)
        # Where there is no row yet stands the first.
        ys, us = jax.tree.map(lambda leaf: jnp.repeat(leaf, self.lag, axis=0), one)
        sums = self.objective.begin(estimate)
        carry = FixedLagCarry(jnp.asarray(NOT_SEEN), first_state(p, q, y, u), ys, us, sums)
        return carry, _report(estimate, estimate)

    def later(self, p, q, carry, y, u, key):
        def append(kept, leaf):
            return jnp.concatenate([kept[1:], jnp.asarray(leaf, kept.dtype)[None]])

        ys, us = append(carry.ys, y), jax.tree.map(append, carry.us, u)
        times = carry.seen - jnp.arange(self.lag)[::-1]

        found, anchor = branch(
            carry.seen >= self.lag, FixedLag._steady, FixedLag._starting, self, p, q, carry.anchor, ys, us, times, key
        )
        size = jnp.minimum(carry.seen + 1, self.lag)
        sums, total, increment = self.objective.conclude(carry.sums, found, size)
        return FixedLagCarry(carry.seen, anchor, ys, us, sums), _report(total, increment)

    def _steady(self, p, q, anchor, ys, us, times, key) -> tuple[Estimate, State]:
        """The window has left time 0 behind: the filter's law before it is the prior of its first state."""
        prior = jax.lax.stop_gradient(q.marginal(anchor))
        return self._estimate(p, q, ys, us, prior, times, key, lambda p, q: (_replay(p, q, anchor, ys, us), None))

    def _starting(self, p, q, anchor, ys, us, times, key) -> tuple[Estimate, State]:
        """The window reaches back to time 0, whose row is its first; no kernel leads there."""

        def replay(p, q):
            return _replay_from_start(p, q, ys, us, times), times >= 1

        return self._estimate(p, q, ys, us, None, times, key, replay)

    def _estimate(self, p, q, ys, us, prior: Gaussian | None, times, key, replay: Callable) -> tuple[Estimate, State]:
        """The objective with its gradients, and the state after the window's first observation. `replay` gives the
        states and the links between them."""

        def objective(p, q):
            states, links = replay(p, q)
            chain = backward_chain(p, q, states, links)
            noise = jax.random.normal(
                key, (self.num_trajectories, self.lag + 1, q.state_dim), chain.marginals.eta1.dtype
            )
            window = Window(chain, ys, us, prior, times)
            value = self.objective.value(lambda window: window.elbos(p, q, noise).mean(), window)
            return value, jax.tree.map(lambda leaf: leaf[1], states)

        return differentiate(objective, p, q, self.learn_model, has_aux=True)


def _report(total: Estimate, increment: Estimate) -> OnlineEstimate:
    nan = jnp.full_like(total.elbo, jnp.nan)
    return OnlineEstimate(total, increment, ess=nan, acceptance=nan)


def _replay(p: StateSpaceModel, q: BackwardFamily, anchor: State, ys: Array, us: Inputs) -> State:
    """a_{t-L}, …, a_t under q."""

    def update(state, scanned):
        state = q.update(p, state, *scanned)
        return state, state

    return _with_first(anchor, jax.lax.scan(update, anchor, (ys, us))[1])


def _replay_from_start(p: StateSpaceModel, q: BackwardFamily, ys: Array, us: Inputs, times: Int[Array, " l"]) -> State:
    """a_0, …, a_t under q, after as many times a_{-1} as it takes to make L + 1 states."""

    def update(state, scanned):
        time, y, u = scanned
        after = q.update(p, state, y, u)
        state = jax.tree.map(lambda a, b: jnp.where(time < 0, a, b), state, after)
        return state, state

    start = q.init(p, jax.tree.map(lambda leaf: leaf[jnp.argmax(times == 0)], us))
    return _with_first(start, jax.lax.scan(update, start, (times, ys, us))[1])


def _with_first(first: State, rest: State) -> State:
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a, b.dtype)[None], b]), first, rest)
