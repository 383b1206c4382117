"""The default family of version 0.1: a network reads what is new in y_t, and answers with a Gaussian site."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from backstream._jax.choosing import choose
from backstream.families.base import BackwardFamily
from backstream.families.linear import LinearDynamics, LinearKernel, LinearState, Prediction
from backstream.families.networks import apart, perceptron, positive
from backstream.models.base import Inputs, StateSpaceModel
from backstream.models.matrices import floating, require_positive

from .held import Held
from .linearize import Tangent, linearize

UNIT_SOFTPLUS = float(np.log(np.expm1(1.0)))
"""softplus⁻¹(1)."""
REACH = 10.0
"""How far, in predictive standard deviations, a single coordinate of y can pull."""
LEAK = 1e-6
"""The power of the prior that every prediction is multiplied with."""
FLOOR = 1e-6
"""Added to variance ratios before their logarithm is taken."""


class Seen(NamedTuple):
    """What `Innovation` knows of the emission. See there."""

    log_obs_scale: Float[Array, " dy"]
    observation_matrix: Float[Array, "dy d"] | None
    scale_matrix: Float[Array, "dy d"] | None
    offset: Float[Array, " dy"] | None


class Innovation(BackwardFamily):
    """A Kalman predict step, and a site from a network that reads the innovation. ψ_t is N(x; A x_prev + drift, Q).

    With m, C the predicted mean and covariance, B = `observation_matrix`, c = `offset` and r =
    exp(`log_obs_scale`), the network reads arcsinh((y − ŷ)/r), where ŷ = B m + c, and the log variances of the
    prediction in units of r². For each coordinate of y it returns a precision ρ and a pull κ. The site is that of
    a pseudo-observation ŷ + κ (y − ŷ) of B x + c with precision ρ. A missing coordinate has ρ = 0: it is left out
    exactly. The pull is bounded at 10 predictive standard deviations, so that no observation, however wrong, can
    carry the state away.

    Where the location of y says nothing about x but its scale does (volatility), `scale_matrix` J is given instead: the
    log scale of y is J x + `log_obs_scale`, its location `offset`. What is new in y is then ½ (z² − 1), z = (y − c) /
    scale at m: the log scale's distance from J m, of variance ½, up to second order. The rest is as above, with J in
    the place of B.

    With neither matrix the network reads arcsinh(y/r), which coordinates are there, and the predicted means and
    variances in units of the prior; its site is in state space, with a precision relative to the predicted one.

    With `clock=k` the k-th input u[k] is the time since the last observation, and A and Q, both diagonal, are those
    of one unit of time: over any other the state moves as the Ornstein–Uhlenbeck process that they belong to.

    With `shared` there is one small network for all coordinates of y, which reads what is new in one of them and its
    predicted variance: the site of a coordinate is read from that coordinate alone. Each row then teaches it as many
    times as it has columns, which is what makes a hundred of them learnable.

    With a `Tangent` in the place of linear dynamics nothing of them is learned: ψ_t has the mean and the standard
    deviations of the model's own transition, linearized anew at the mean of q_{t-1}, as in an extended Kalman filter.
    It reads all inputs that the model reads, which must be finite.

    Every prediction is multiplied with a millionth power of the prior, which bounds the covariance over endless runs
    of missing rows, even where A expands.

    >>> from backstream.models import ChaoticRNN
    >>> p = ChaoticRNN.random(3, key=jax.random.key(0))
    >>> q = Innovation.from_model(p, key=jax.random.key(1))
    >>> mean, cov = q.marginal(q.update(p, q.init(p), jnp.array([0.1, jnp.nan, 0.3]))).moments()
    """

    affine: ClassVar[bool] = True
    amortized: ClassVar[bool] = True

    dynamics: LinearDynamics | Tangent
    net: eqx.nn.MLP
    seen: Held
    """`Seen`. Learned from a stream it would follow its latest stretch, and A and the network can say as much."""
    clock: int | None = eqx.field(static=True, default=None)
    shared: bool = eqx.field(static=True, default=False)

    @classmethod
    def create(
        cls,
        dynamics: LinearDynamics | Tangent,
        obs_scale: ArrayLike,
        observation_matrix: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        width: int = 64,
        scale_matrix: ArrayLike | None = None,
        clock: int | None = None,
        shared: bool = False,
        *,
        key: Array,
    ) -> "Innovation":
        """A start near the Kalman filter of the linear model that the arguments describe.

        `obs_scale` holds the standard deviations of y given x; with a `scale_matrix`, those of y given x = 0. `offset`
        starts at zero unless given.
        """
        obs_scale = floating(obs_scale)
        if obs_scale.ndim != 1:
            raise ValueError(f"obs_scale must be a vector, one number for each column, not {obs_scale.shape}.")
        require_positive("obs_scale", obs_scale)
        d, dy = dynamics.dim, len(obs_scale)
        if observation_matrix is not None and scale_matrix is not None:
            raise ValueError("Give an observation_matrix or a scale_matrix: only one of them is read.")
        matrix = scale_matrix if observation_matrix is None else observation_matrix
        if matrix is None:
            if offset is not None:
                raise ValueError("offset is a part of what is seen: it needs an observation_matrix or a scale_matrix.")
            if shared:
                raise ValueError("A shared network reads what is new in y, by an observation_matrix or a scale_matrix.")
            sizes = 2 * dy + 2 * d, 2 * d
        else:
            offset = jnp.zeros_like(obs_scale) if offset is None else floating(offset)
            name = "scale_matrix" if observation_matrix is None else "observation_matrix"
            if jnp.shape(matrix) != (dy, d):
                shape = jnp.shape(matrix)
                raise ValueError(f"{name} must have shape ({dy}, {d}), columns of y by states, not {shape}.")
            if offset.shape != (dy,):
                raise ValueError(f"offset must have shape ({dy},), not {offset.shape}.")
            sizes = (2, 2) if shared else (2 * dy, 2 * dy)
        net = perceptron(*sizes, width, last_gain=0.1, key=key, dtype=dynamics.mean0.dtype)
        if clock is not None:
            if isinstance(dynamics, Tangent):
                raise ValueError("A Tangent has no clock: the model reads the time itself, from its inputs.")
            dynamics.over(jnp.ones(()))  # refuses what has no continuous time
        B, J = (None if part is None else floating(part) for part in (observation_matrix, scale_matrix))
        return cls(dynamics, net, Held.of(Seen(jnp.log(obs_scale), B, J, offset)), clock, shared)

    @classmethod
    def from_model(
        cls,
        p: StateSpaceModel,
        width: int = 64,
        u: Inputs = None,
        full_transition: bool = True,
        clock: int | None = None,
        shared: bool = False,
        tangent: bool = False,
        *,
        key: Array,
    ) -> "Innovation":
        """Reads the start off a model: prior, transition and emission are linearized at the prior mean.

        With `tangent`, the dynamics are the model's, linearized at every step where the filter is: for a model that is
        known, and the better the more states there are. What a stream teaches about a large A is mostly where it has
        just been. `full_transition` has then no effect, and q needs no `clock`.

        `u` is an example of the model's inputs, if it has any. With `full_transition=False` only the diagonal of A
        is kept and learned; so it is with a `clock`, the place of the elapsed time in u. The key draws the network, and
        samples where a scale has to be measured (infinite variances).
        """
        key_net, key_scales = jax.random.split(key)
        if clock is not None:
            u = jnp.asarray(u).at[clock].set(1.0)
        start = linearize(p, u, key=key_scales)
        options: dict[str, Any] = {"width": width, "shared": shared, "key": key_net}
        if tangent:
            dynamics = Tangent.of(start)
        else:
            A = start.A if full_transition and clock is None else jnp.diag(start.A)
            dynamics = LinearDynamics.create(start.mean0, start.prior_scale, A, start.transition_scale, start.drift(A))
            options["clock"] = clock
        if np.any(np.asarray(start.B)):
            return cls.create(dynamics, start.emission_scale, start.B, start.offset, **options)
        if np.any(np.asarray(start.scale_slope)):
            at_zero = start.emission_scale * jnp.exp(-start.scale_slope @ start.mean0)
            return cls.create(dynamics, at_zero, None, start.offset, scale_matrix=start.scale_slope, **options)
        return cls.create(dynamics, start.emission_scale, **options)

    @property
    def state_dim(self) -> int:
        return self.dynamics.dim

    @property
    def obs_dim(self) -> int:
        return self.seen.bits.log_obs_scale.shape[-1]

    @property
    def log_obs_scale(self) -> Float[Array, " dy"]:
        return self.seen.value.log_obs_scale

    @property
    def observation_matrix(self) -> Float[Array, "dy d"] | None:
        return self.seen.value.observation_matrix

    @property
    def scale_matrix(self) -> Float[Array, "dy d"] | None:
        return self.seen.value.scale_matrix

    @property
    def offset(self) -> Float[Array, " dy"] | None:
        return self.seen.value.offset

    def init(self, p, u=None):
        own = self.dynamics
        start = (own if isinstance(own, Tangent) else _unmoved(own)).start()
        return start._replace(link=self._link(start, u))

    def update(self, p, state, y, u=None):
        link = self._link(state, u)
        if not isinstance(self.dynamics, Tangent):
            return self._condition(self._dynamics(p, link).predict(state, LEAK), y, link)
        prediction = choose(  # with its inputs the model may have no transition to the first row
            state.moves,
            lambda p, state, link: self._dynamics(p, link).move(state, LEAK),
            lambda p, state, link: state.unmoved(),
            *(p, state, link),
        )
        return self._condition(prediction, y, link)

    def marginal(self, state):
        return state.gaussian()

    def moments(self, state):
        return self.marginal(state).moments()

    def kernel(self, p, state):
        return LinearKernel(self._dynamics(p, state.link))

    def _link(self, state: LinearState, u: Inputs) -> Any:
        """What the dynamics from t − 1 to t depend on: mean of q_{t-1} and inputs, or the time between, or nothing."""
        dtype = state.mean.dtype
        if isinstance(self.dynamics, Tangent):
            return state.mean, jax.tree.map(lambda leaf: _in_precision(jnp.asarray(leaf), dtype), u)
        if self.clock is None:
            return None
        return jnp.where(state.moves, jnp.asarray(u[self.clock], dtype), 1.0)

    def _dynamics(self, p: StateSpaceModel, link: Any) -> LinearDynamics:
        if isinstance(self.dynamics, Tangent):
            mean, u = link
            return self.dynamics.at(p, mean, jax.lax.stop_gradient(u))  # which may have no derivative, and needs none
        own = _unmoved(self.dynamics)
        return own if link is None else own.over(link)

    def _condition(self, prediction: Prediction, y: Float[Array, " dy"], link: Any) -> LinearState:
        return prediction.add_site(*self._site(prediction, y))._replace(link=link)

    def _site(self, prediction: Prediction, y: Float[Array, " dy"]) -> tuple[Array, Array]:
        """The rows of the site, and their residuals, both in units of its standard deviations."""
        log_r, B, J, offset = self.seen.value
        seen = ~jnp.isnan(y)
        y = jnp.where(seen, y, 0.0) - (0.0 if offset is None else offset)
        if B is not None:
            residual = jnp.where(seen, y - B @ prediction.mean, 0.0)
            return self._read_residual(prediction, residual, seen, B, jnp.exp(log_r))
        if J is not None:
            z = y * jnp.exp(-log_r - J @ prediction.mean)
            residual = jnp.where(seen, 0.5 * (z**2 - 1.0), 0.0)
            return self._read_residual(prediction, residual, seen, J, jnp.full_like(log_r, 0.5**0.5))
        return self._read_state(prediction, y, seen, jnp.exp(log_r))

    def _read_residual(self, prediction, residual, seen, B, r):
        """`residual` is what is new about B x, seen in noise of standard deviation r."""
        variance = prediction.variance(B)
        inputs = jnp.arcsinh(residual / r), jnp.log(variance / r**2 + FLOOR)
        if self.shared:
            raw_precision, raw_pull = jax.vmap(self.net)(jnp.stack(inputs, axis=1)).T
        else:
            raw_precision, raw_pull = jnp.split(apart(self.net(jnp.concatenate(inputs))), 2)
        weight = jnp.where(seen, jnp.sqrt(positive(raw_precision + UNIT_SOFTPLUS)) / r, 0.0)
        reach = REACH * jnp.sqrt(variance + r**2)
        pull = jax.nn.sigmoid(raw_pull + 3.0) * reach * jnp.tanh(residual / reach)
        return weight[:, None] * B, weight * pull

    def _read_state(self, prediction, y, seen, r):
        variance = prediction.variance()
        prior, mean0 = self.dynamics.prior.variance(), jax.lax.stop_gradient(self.dynamics.mean0)
        inputs = [
            jnp.arcsinh(y / r),
            1.0 - seen.astype(y.dtype),
            jnp.arcsinh((prediction.mean - mean0) / jnp.sqrt(prior)),
            jnp.log(variance / prior + FLOOR),
        ]
        raw_precision, raw_mean = jnp.split(apart(self.net(jnp.concatenate(inputs))), 2)
        weight = jnp.where(seen.any(), jnp.sqrt(positive(raw_precision - 2.0)), 0.0)
        # Mean m + √C_kk shift and precision weight² / C_kk, for each state.
        shift = 3.0 * jnp.tanh(raw_mean / 3.0)
        return jnp.diag(weight / jnp.sqrt(variance)), weight * shift


def _unmoved(own: LinearDynamics) -> LinearDynamics:
    """With mean and drift held: a stream says nothing of the first after its first rows, and would pull the second
    after its latest stretch. They alone of all that is learned would have a unit, in which a step of the optimizer may
    be a million standard deviations."""
    mean0, drift = jax.lax.stop_gradient((own.mean0, own.drift))
    return LinearDynamics(mean0, own.prior, own.A, own.noise, drift)


def _in_precision(array: Array, dtype) -> Array:
    """That of λ, where it is no whole number: a state has one precision."""
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array
