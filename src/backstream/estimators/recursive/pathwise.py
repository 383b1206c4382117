"""The recursion without weights: H_t and G_t as quadratic functions, everything else along reparameterized draws.

The recursions are the paper's, H_t(x) = E[H_{t-1}(X) + f̃_t(X, x)] and G_t(x) = ∇_λ H_t(x), X ~ q_{t-1|t}(x, ·). Instead
of values at samples, which have to be weighted, H_{t-1} and G_{t-1} are polynomials Φ · c of degree two in the
coordinates z in which q_{t-1} is standard normal. Their expectations under a Gaussian kernel are known, and so is its
entropy. One draw x_{t-1}(λ, ξ) from each kernel, moved by λ and by ξ = ξ_t^i, is needed for log m_t alone.

* H_t is fitted to its gradients ∇_z H_t(ξ^i), by least squares of d numbers for each sample on (1, z): exact where H is
  quadratic, from d + 1 samples on. G_t, which has P columns, is fitted to its values at the samples.
* The fit happens before the pullback: of λ's P columns only as many rows are ever formed as there are features.
* ∇L_t is that of E_{q_t}[H_t] + entropy, in closed form for the fitted H_t.

No effective sample size can collapse. What is lost is the part of H and G that is not quadratic, at every step. In the
linear-Gaussian case nothing is.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from backstream._jax.compensated_sums import CompensatedSum
from backstream.estimators.base import (
    Estimate,
    OnlineEstimate,
    OnlineEstimator,
    flatten,
    like,
    require_amortized,
)
from backstream.estimators.first_row import NOT_SEEN, FirstRowApart
from backstream.families.backward import first_state
from backstream.laws.gaussian import LOG_2PI, Frame, Gaussian, cholesky, inverse, invert
from backstream.models.density import log_emission, log_prior, log_transition

from .moment_corrected import Quadratic
from .objectives import AbstractObjective, Increment
from .parameter_columns import ParameterColumns, columns, read_arrays
from .sensitivity import AbstractPull, AbstractSensitivity, Cotangents, Forward


class Form(NamedTuple):
    """b · z + zᵀ B z − tr B, which has mean zero under the standard normal law."""

    b: Float[Array, " d"]
    B: Float[Array, "d d"]

    def mean(self, law: "Law") -> Float[Array, ""]:
        return self.b @ law.mean + (self.B * law.second).sum() - jnp.trace(self.B)

    def at(self, z: Float[Array, "n d"]) -> Float[Array, " n"]:
        return z @ self.b + ((z @ self.B) * z).sum(1) - jnp.trace(self.B)


class Law(NamedTuple):
    """A Gaussian in the coordinates of a frame: mean, E[Z Zᵀ], a root of its covariance, and its entropy in x."""

    mean: Float[Array, " d"]
    second: Float[Array, "d d"]
    root: Float[Array, "d d"]
    entropy: Float[Array, ""]

    @classmethod
    def of(cls, gaussian: Gaussian, frame: Frame) -> "Law":
        own = gaussian.into(frame).frame()
        root = inverse(own.factor)
        entropy = 0.5 * gaussian.dim * (1 + LOG_2PI) - own.log_det - frame.log_det
        return cls(own.mean, root.T @ root + own.mean[:, None] * own.mean[None, :], root, entropy)


class PathwiseCarry(NamedTuple):
    """What is handed on: nothing in it has a row for each sample."""

    seen: Int[Array, ""]
    state: PyTree
    frame: Frame
    H: Form
    G: Float[Array, "f k"]
    """Coefficients on Φ of G_t, and of the gradient in θ, less the constants."""
    sensitivity: Any
    H_sum: CompensatedSum
    G_sum: CompensatedSum
    """The constants that were taken out, accumulated."""
    rest: Float[Array, ""]
    """The entropy of q_t, what the ELBO has in addition to the sum."""
    G_rest: Float[Array, " k"]
    """∇ (E_{q_t}[H_t] + entropy) through q_t, what its gradient has."""


class AtSamples(NamedTuple):
    """What one step finds at the samples ξ of q_t, which are z in its frame."""

    state: PyTree
    frame: Frame
    z: Float[Array, "n d"]
    values: Float[Array, " n"]
    """H_t(ξ)."""
    to_x: Float[Array, "n d"]
    """∇H_t(ξ)."""
    past: Float[Array, "f k"]
    """G before the scores are added, as coefficients on Φ, the constant first."""
    scores: Cotangents
    """As coefficients on Φ, too."""


class RecursivePathwise(FirstRowApart, OnlineEstimator):
    """The ELBO and its gradient from one observation to the next, with H_t and G_t as quadratic functions.

    `num_samples` draws, in antithetic pairs, are made of q_t and of the backward kernels. `features` are those on which
    G is fitted (H is always fitted to all quadratic ones), with a `ridge`. `sensitivity`, `objective` and `learn_model`
    are those of `RecursiveScore`.

        estimator = RecursivePathwise(50)
        carry = estimator.init(p, q)
        carry, estimate = estimator.step(p, q, carry, ys[0], key=key)
        estimate.increment.gradient
    """

    num_samples: int = eqx.field(static=True)
    sensitivity: AbstractSensitivity = Forward()
    objective: AbstractObjective = Increment()
    features: Quadratic = Quadratic()
    ridge: float = eqx.field(static=True, default=1e-3)
    learn_model: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.num_samples < 2 or self.num_samples % 2:
            raise ValueError(f"num_samples must be an even number, at least 2, not {self.num_samples}.")
        if not self.ridge > 0:
            raise ValueError(f"ridge must be positive, not {self.ridge}.")
        if not self.sensitivity.remembers:
            raise ValueError(
                "RecursivePathwise is for amortized families: its sensitivity is Forward() or Truncated()."
            )

    def check_family(self, q):
        require_amortized(q)

    def first(self, p, q, y, u, key):
        (lam, _), (theta, rebuild_model) = flatten(q), flatten(p)
        state = first_state(p, q, y, u)
        frame = q.marginal(state).frame()
        z = self._draw(key, q.state_dim, lam.dtype)

        def value(x, theta):
            p = rebuild_model(theta)
            return log_prior(p, x, u) + log_emission(p, x, y, u)

        values, (to_x, to_theta) = jax.vmap(jax.value_and_grad(value, argnums=(0, 1)), (0, None))(
            frame.restore(z), theta
        )
        width, zero = lam.size + theta.size * self.learn_model, jnp.zeros((), lam.dtype)
        carry = PathwiseCarry(
            jnp.asarray(NOT_SEEN),
            state,
            frame,
            Form(jnp.zeros_like(frame.mean), jnp.zeros_like(frame.factor)),
            jnp.zeros((self.features.count(q.state_dim) - 1, width), lam.dtype),
            None,
            CompensatedSum.zeros((), lam.dtype),
            CompensatedSum.zeros((width,), lam.dtype),
            zero,
            jnp.zeros(width, lam.dtype),
        )
        fit, nothing = self._least_squares(z), Cotangents([])
        past = jnp.zeros((len(fit), lam.size), lam.dtype)
        if self.learn_model:
            past = jnp.concatenate([past, fit @ to_theta], axis=1)
        pull = self.sensitivity.init(p, q, y, u)
        return self._conclude(p, q, carry, AtSamples(state, frame, z, values, to_x, past, nothing), pull)

    def later(self, p, q, carry, y, u, key):
        (lam, _), (theta, rebuild_model), gamma = flatten(q), flatten(p), self.objective.discount
        state = q.update(p, carry.state, y, u)
        frame, previous = q.marginal(state).frame(), carry.frame
        key_now, key_before = jax.random.split(key)
        z, noise = (self._draw(k, q.state_dim, lam.dtype) for k in (key_now, key_before))
        (a_previous, restore_previous), (a, restore) = flatten(carry.state), flatten(state)

        # In the place of H_{t-1}, less its constant: γ H_{t-1} + (1 − γ) log q_{t-1}, where log q_{t-1} = −½ z² + …
        # whose mean under q_{t-1} is minus the entropy that the carry remembers.
        eye = jnp.eye(len(frame.mean), dtype=lam.dtype)
        H_previous = Form(gamma * carry.H.b, gamma * carry.H.B - 0.5 * (1 - gamma) * eye)
        constant = -(1 - gamma) * carry.rest

        def value(q, a_previous, a, x, theta, e):
            """H_t(x), and E[Φ] under the kernel of x."""
            before, potential = q.marginal(restore_previous(a_previous)), q.kernel(p, restore(a)).potential(x)
            kernel = Law.of(before * potential, previous)
            x_previous = previous.restore(kernel.mean + e @ kernel.root)
            model = rebuild_model(theta)
            joint = log_transition(model, x_previous, x, u) + log_emission(model, x, y, u)
            expected = self.features.of_moments(kernel.mean[None], kernel.second[None])[0]
            return H_previous.mean(kernel) + constant + joint + kernel.entropy, expected

        xi = frame.restore(z)
        some, starts, rebuild, (_, reads_a, *_) = read_arrays(
            lambda *arguments: value(*arguments)[0], q, a_previous, a, xi[0], theta, noise[0]
        )

        def of_what_is_read(some, a_previous, a, x, theta, e):
            a = a if reads_a else jax.lax.stop_gradient(a)
            theta = theta if self.learn_model else jax.lax.stop_gradient(theta)
            return value(rebuild(some), a_previous, a, x, theta, e)

        (values, expected), (to_some, to_previous, to_now, to_x, to_theta) = jax.vmap(
            jax.value_and_grad(of_what_is_read, argnums=(0, 1, 2, 3, 4), has_aux=True), (None, None, None, 0, None, 0)
        )(some, a_previous, a, xi, theta, noise)
        cotangents = Cotangents(columns(starts, to_some), to_previous, to_now if reads_a else None)

        fit = self._least_squares(z)
        past = gamma * (fit @ expected[:, 1:]) @ carry.G
        if self.learn_model:
            past = past.at[:, lam.size :].add(fit @ to_theta)
        pull = self.sensitivity.advance(p, q, carry.sensitivity, carry.state, y, u)
        scores = cotangents.combine(fit)
        return self._conclude(p, q, carry, AtSamples(state, frame, z, values, to_x, past, scores), pull)

    def _draw(self, key: Array, dim: int, dtype) -> Float[Array, "n d"]:
        half = jax.random.normal(key, (self.num_samples // 2, dim), dtype)
        return jnp.concatenate([half, -half])

    def _least_squares(self, z: Float[Array, "n d"]) -> Float[Array, "f n"]:
        """What turns values at the samples into coefficients on Φ."""
        return _fit(self.features.at(z), self.ridge)

    def _conclude(self, p, q, carry: PathwiseCarry, found: AtSamples, pull: AbstractPull):
        state, frame, z, values, to_x, past, scores = found
        lam, gamma, direction = flatten(q)[0], self.objective.discount, self.objective.direction
        a, restore = flatten(state)
        slopes = _fit(jnp.concatenate([jnp.ones_like(z[:, :1]), z], axis=1), self.ridge) @ (
            to_x @ inverse(frame.factor).T
        )
        H = Form(slopes[0], 0.25 * (slopes[1:] + slopes[1:].T))
        H_mean = (values - H.at(z)).mean()

        def outer(q, a):
            law = Law.of(q.marginal(restore(a)), frame)
            return H.mean(law) + law.entropy, law.entropy

        # q_t depends on λ through a_t, and directly where its parameters are a function of a_t with a λ of its own.
        some, starts, rebuild, _ = read_arrays(lambda q, a: outer(q, a)[0], q, a)
        (to_some, to_a), rest = jax.grad(lambda some, a: outer(rebuild(some), a), (0, 1), has_aux=True)(some, a)
        direct = [
            ParameterColumns(start, values[0]) for start, values in columns(starts, [leaf[None] for leaf in to_some])
        ]
        (pulled, pulled_outer), sensitivity = pull(scores, Cotangents(direct, None, to_a))
        G = pulled.add_to(past[:, : lam.size])
        G = jnp.concatenate([G, past[:, lam.size :]], axis=1) if self.learn_model else G
        G_mean = G[0]
        G_rest = jnp.zeros_like(G_mean).at[: lam.size].set(pulled_outer.add_to(jnp.zeros_like(lam)))

        def estimate(elbo, gradients):
            model_gradient = like(p, gradients[lam.size :]) if self.learn_model else None
            return Estimate(elbo, like(q, gradients[: lam.size]), model_gradient)

        L = carry.H_sum.add(H_mean + rest, gamma).total()
        gradient = carry.G_sum.add(G_mean + G_rest, gamma).total()
        increment = estimate(
            direction(L, H_mean + rest - carry.rest), direction(gradient, G_mean + G_rest - carry.G_rest)
        )
        sums = carry.H_sum.add(H_mean, gamma), carry.G_sum.add(G_mean, gamma)
        carry = PathwiseCarry(carry.seen, state, frame, H, G[1:], sensitivity, *sums, rest, G_rest)
        nan = jnp.full((), jnp.nan, lam.dtype)
        return carry, OnlineEstimate(estimate(L, gradient), increment, ess=nan, acceptance=nan)


def _fit(design: Float[Array, "n f"], ridge: float) -> Float[Array, "f n"]:
    """(ΦᵀΦ + ridge)⁻¹ Φᵀ, with the constant, the first column of Φ, left free."""
    n, f = design.shape
    penalty = ridge * jnp.eye(f, dtype=design.dtype).at[0, 0].set(0.0)
    return invert(cholesky(design.T @ design / n + penalty)) @ design.T / n
