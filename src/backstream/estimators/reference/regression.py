"""The alternative to importance weights: H_t and G_t as functions, fitted by regression (Campbell et al., 2021).

H_t(x) = E[H_{t-1}(X_{t-1}) + f̃_t(X_{t-1}, x) | X_t = x] is what least squares finds from pairs (ξ_{t-1}, ξ_t) drawn
from q_{t-1:t} with targets Ĥ_{t-1}(ξ_{t-1}) + f̃_t(ξ_{t-1}, ξ_t) (paper, appendix "Functional regression"); G_t too.
No weights degenerate, as the pairs come from the kernels themselves. The price is a fit at every observation, a choice
of what to fit, and errors of approximation that are handed on. Of H_t, what is fitted is H_t − log q_t. The fit of time
t is used at t + 1: L_t and its gradient are averages of the targets themselves.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compensated_sums import CompensatedSum
from backstream.estimators.base import Estimate, OnlineEstimate, OnlineEstimator, flatten, like
from backstream.estimators.first_row import NOT_SEEN, FirstRowApart
from backstream.estimators.recursive.sensitivity import AbstractPull, AbstractSensitivity, Cotangents, Forward
from backstream.families.backward import first_state
from backstream.families.base import BackwardFamily
from backstream.laws.gaussian import Frame
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.density import log_emission, log_prior, log_transition

from .regressors import AbstractRegressor, KernelRidge


class RegressionCarry(NamedTuple):
    seen: Int[Array, ""]
    state: PyTree
    """a_t."""
    frame: Frame
    """Of q_t: the coordinates in which the functions are fitted."""
    H: PyTree
    G: PyTree
    """The fits of H_t − log q_t, and of G_t and the gradient in θ, all less their means."""
    H_sum: CompensatedSum
    G_sum: CompensatedSum
    """Those means, accumulated."""
    rest: Float[Array, ""]
    """−E[log q_t], what the ELBO has in addition to the sum."""
    G_rest: Float[Array, " k"]
    """E[∇log q_t (H_t − log q_t)], what its gradient has."""
    sensitivity: PyTree


class Pairs(NamedTuple):
    """Samples ξ_t of q_t and ξ_{t-1} of q_{t-1|t}(ξ_t, ·), and what is known at them."""

    state: PyTree
    frame: Frame
    xi_prev: Float[Array, "n d"] | None
    xi: Float[Array, "n d"]
    r: Float[Array, " n"]
    """H_{t-1}(ξ_{t-1}) + f̃_t(ξ_{t-1}, ξ_t), less the mean of H_{t-1}."""
    log_q: Float[Array, " n"]
    """log q_t(ξ_t)."""


class Regression(FirstRowApart, OnlineEstimator):
    """The ELBO and its gradient online, with H_t and G_t fitted by a regressor at `num_samples` pairs.

    `regressor` is `KernelRidge()` or `Network()`. `sensitivity` says how the states depend on λ; with `Frozen()`, for
    families whose parameters at t are their own (`PerStep`), no G is carried and the gradient is taken along the
    reparameterized pairs, through Ĥ_{t-1}, as Campbell et al. do. `learn_model` adds the gradient with respect to θ.

        estimator = Regression(500, KernelRidge(bandwidth=2.0, ridge=1e-2))
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
    """

    num_samples: int = eqx.field(static=True)
    regressor: AbstractRegressor = KernelRidge()
    sensitivity: AbstractSensitivity = Forward()
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.num_samples < 2:
            raise ValueError(f"num_samples must be at least 2, not {self.num_samples}.")

    def check_family(self, q):
        self.sensitivity.check_family(q)

    def first(self, p, q, y, u, key):
        key_draw, key_H, key_G = jax.random.split(key, 3)
        (lam, _), (theta, _) = flatten(q), flatten(p)
        columns = lam.size * self.sensitivity.remembers + theta.size * self.learn_model

        def draw(q: BackwardFamily) -> Pairs:
            state = first_state(p, q, y, u)
            frame = q.marginal(state).frame()
            z = jax.random.normal(key_draw, (self.num_samples, q.state_dim), lam.dtype)
            xi = frame.restore(z)
            r = jax.vmap(lambda x: _log_joint(p, None, x, y, u))(xi)
            return Pairs(state, frame, None, xi, r, frame.log_prob(z))

        pull = self.sensitivity.init(p, q, y, u)
        pairs, pathwise = self._draw(draw, q)

        def blank(outputs, key):
            return self.regressor.init(self.num_samples, q.state_dim, outputs, lam.dtype, key=key)

        zero, zeros = jnp.zeros((), lam.dtype), jnp.zeros(columns, lam.dtype)
        sums = CompensatedSum.zeros((), lam.dtype), CompensatedSum.zeros((columns,), lam.dtype)
        G = blank(columns, key_G) if columns else None
        carry = RegressionCarry(
            jnp.asarray(NOT_SEEN), pairs.state, pairs.frame, blank(1, key_H), G, *sums, zero, zeros, None
        )
        past = jnp.zeros((self.num_samples, columns), lam.dtype)
        return self._conclude(p, q, carry, pairs, past, pathwise, pull, (y, u))

    def later(self, p, q, carry, y, u, key):
        lam, _ = flatten(q)
        noise = jax.random.normal(key, (2, self.num_samples, q.state_dim), lam.dtype)

        def draw(q: BackwardFamily) -> Pairs:
            state = q.update(p, carry.state, y, u)
            frame, before, link = q.marginal(state).frame(), q.marginal(carry.state), q.kernel(p, state)
            xi = frame.restore(noise[0])

            def backward(x, z):
                kernel = (before * link.potential(x)).frame()
                x_prev = kernel.restore(z)
                return x_prev, _log_joint(p, x_prev, x, y, u) - kernel.log_prob(z)

            xi_prev, f = jax.vmap(backward)(xi, noise[1])
            return Pairs(state, frame, xi_prev, xi, self.H(carry, xi_prev) + f, frame.log_prob(noise[0]))

        pull = self.sensitivity.advance(p, q, carry.sensitivity, carry.state, y, u)
        pairs, pathwise = self._draw(draw, q)
        past = jnp.zeros((self.num_samples, 0), lam.dtype)
        if carry.G is not None:
            past = self.regressor.predict(carry.G, carry.frame.standardize(pairs.xi_prev))
        return self._conclude(p, q, carry, pairs, past, pathwise, pull, (y, u))

    def H(self, carry: RegressionCarry, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """What the fit of H_t says at some points, less its mean."""
        z = carry.frame.standardize(x)
        return self.regressor.predict(carry.H, z)[:, 0] + _trend(z)

    def _draw(self, draw, q: BackwardFamily) -> tuple[Pairs, PyTree]:
        """The pairs, and, where nothing of the past depends on λ, the gradient of E[r − log q_t] along them."""
        if self.sensitivity.remembers:
            return draw(q), None

        def objective(q):
            pairs = draw(q)
            return (pairs.r - pairs.log_q).mean(), pairs

        gradient, pairs = eqx.filter_grad(objective, has_aux=True)(q)
        return pairs, gradient

    def _conclude(self, p, q, carry: RegressionCarry, pairs: Pairs, past, pathwise, pull: AbstractPull, row):
        (lam, _), n = flatten(q), self.num_samples
        z = pairs.frame.standardize(pairs.xi)
        trend, rest = _trend(z), -pairs.log_q.mean()
        r_mean = (pairs.r - trend).mean()  # the trend's own mean is zero
        H, expected = self.regressor.fit(carry.H, z, (pairs.r - trend - r_mean)[:, None])

        news, G_rest, sensitivity = [], jnp.zeros_like(carry.G_rest), carry.sensitivity
        if self.sensitivity.remembers:
            # Leave-one-out: r_k − mean of the others = n/(n − 1) (r_k − r̄).
            h = pairs.r - pairs.log_q
            outer, to_now = _marginal_score(q, pairs, (h - h.mean()) / (n - 1))
            score, to_states = jnp.zeros((n, lam.size), lam.dtype), (None, None)
            if pairs.xi_prev is not None:
                c = pairs.r - r_mean - trend - expected[:, 0]
                score, *to_states = _backward_scores(p, q, carry.state, pairs, c)
            (pulled, pulled_outer), sensitivity = pull(Cotangents([], *to_states), Cotangents([], None, to_now))
            news.append(pulled.add_to(score))
            G_rest = G_rest.at[: lam.size].set(pulled_outer.add_to(outer))
        if self.learn_model:
            news.append(_model_scores(p, pairs, *row))
        G, G_mean = carry.G, jnp.zeros_like(carry.G_rest)
        if carry.G is not None:
            targets = past + jnp.concatenate(news, axis=1)
            G_mean = targets.mean(0)
            G, _ = self.regressor.fit(carry.G, z, targets - G_mean)
        H_sum, G_sum = carry.H_sum.add(r_mean), carry.G_sum.add(G_mean)

        def estimate(elbo, columns):
            gradient = pathwise
            if pathwise is None:
                gradient, columns = like(q, columns[: lam.size]), columns[lam.size :]
            return Estimate(elbo, gradient, like(p, columns) if self.learn_model else None)

        total = estimate(H_sum.total() + rest, G_sum.total() + G_rest)
        increment = estimate(r_mean + rest - carry.rest, G_mean + G_rest - carry.G_rest)
        nan = jnp.full((), jnp.nan, lam.dtype)
        carry = RegressionCarry(carry.seen, pairs.state, pairs.frame, H, G, H_sum, G_sum, rest, G_rest, sensitivity)
        return carry, OnlineEstimate(total, increment, ess=nan, acceptance=nan)


def _trend(z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log q_t in its own frame, less its mean: what H_t is, up to a constant, where q is exact.

    The regressor fits the rest. Far from the samples a fit says little, and what it would say of H_t itself, that it is
    flat, sends q_{t|t+1} there: with log q_t taken out, H_t falls off as it should.
    """
    return 0.5 * (z.shape[1] - (z**2).sum(1))


def _log_joint(p: StateSpaceModel, x_prev: Array | None, x: Array, y: Array, u: Inputs) -> Float[Array, ""]:
    """log ℓ_t(x_prev, x, y), where x_prev is None at the first observation."""
    arrival = log_prior(p, x, u) if x_prev is None else log_transition(p, x_prev, x, u)
    return arrival + log_emission(p, x, y, u)


def _backward_scores(
    p: StateSpaceModel, q: BackwardFamily, previous: PyTree, pairs: Pairs, c: Float[Array, " n"]
) -> tuple[Array, Array, Array]:
    """c_k ∇ log q_{t-1|t}(ξ_t^k, ξ_{t-1}^k): to λ directly, [N, P], to a_{t-1} and to a_t."""
    (lam, rebuild), (a_prev, restore_prev), (a, restore) = (flatten(tree) for tree in (q, previous, pairs.state))

    def weighted(v, a_prev, a, c, x_prev, x):
        q = rebuild(v)
        return c * (q.marginal(restore_prev(a_prev)) * q.kernel(p, restore(a)).potential(x)).log_prob(x_prev)

    one = jax.grad(weighted, argnums=(0, 1, 2))
    return jax.vmap(one, (None, None, None, 0, 0, 0))(lam, a_prev, a, c, pairs.xi_prev, pairs.xi)


def _marginal_score(q: BackwardFamily, pairs: Pairs, c: Float[Array, " n"]) -> tuple[Array, Array]:
    """Σ_k c_k ∇ log q_t(ξ_t^k): to λ directly, and to a_t."""
    (lam, rebuild), (a, restore) = flatten(q), flatten(pairs.state)

    def weighted(v, a):
        return c @ jax.vmap(rebuild(v).marginal(restore(a)).log_prob)(pairs.xi)

    return jax.grad(weighted, argnums=(0, 1))(lam, a)


def _model_scores(p: StateSpaceModel, pairs: Pairs, y: Array, u: Inputs) -> Float[Array, "n t"]:
    """∇_θ log ℓ_t(ξ_{t-1}^k, ξ_t^k)."""
    theta, rebuild = flatten(p)

    def one(x_prev: Any, x):
        return jax.grad(lambda v: _log_joint(rebuild(v), x_prev, x, y, u))(theta)

    return jax.vmap(one)(pairs.xi_prev, pairs.xi)
