"""Filtering, smoothing, sampled trajectories and forecasts with a given posterior q.

Observations and inputs may be NumPy arrays. NaN is a missing value; an infinity is an error, with its row and column.

>>> from backstream.families import Kalman
>>> from backstream.models import LinearGaussian
>>> p = LinearGaussian.random(2, 3, key=jax.random.key(0))
>>> states, ys = p.simulate(50, key=jax.random.key(1))
>>> q = Kalman.from_model(p)
>>> lower, upper = smooth(p, q, ys).interval(0.9)
>>> lower.shape
(50, 2)
>>> ahead = forecast(p, filter(p, q, ys), horizon=5, key=jax.random.key(2))
>>> ahead.observations.mean.shape
(5, 3)
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream.estimators.base import check_sizes
from backstream.families.backward import (
    AffineKernel,
    Chain,
    backward_chain,
    filter_states,
    sample_backward,
    sample_chain,
)
from backstream.families.base import BackwardFamily, Inputs
from backstream.laws.gaussian import Gaussian, scaled_cholesky
from backstream.laws.marginals import Draws, Marginals, MixtureMarginals
from backstream.laws.mixture import Mixture, fit_mixture
from backstream.models.base import StateSpaceModel, emission_law, transition_law
from backstream.models.density import check_inputs, check_model, check_observations
from backstream.models.matrices import known

FITTING_TURNS = 20
LEAST_VARIANCE = 1e-6
"""Of a component that is fitted to trajectories, as a share of their variance."""


class Forecast(NamedTuple):
    """Samples of the next states and observations.

    If the observations have heavy tails, use intervals: the sample mean and standard deviation are unreliable.
    """

    states: Draws
    observations: Draws


def filter(p: StateSpaceModel, q: BackwardFamily, ys: Any, inputs: Inputs = None) -> Marginals | MixtureMarginals:
    """The distribution of the state at each row, given the rows up to it.

    Args:
        p: The model.
        q: The posterior, for example `bs.Guided.from_model(p)`.
        ys: The observations, of shape [T, dy]. NaN is a missing value.
        inputs: The inputs of the rows, with a leading axis of length T, if the model has inputs.

    Returns:
        Means [T, d] and covariances [T, d, d]. For a family with several components, also the components.

    Raises:
        ValueError: If shapes do not match, or an observation is infinite or impossible in the model.
        TypeError: If the arguments are in the wrong order.
    """
    ys, inputs = _checked_data(p, q, ys, inputs)
    return _filter(p, q, ys, inputs)


def smooth(
    p: StateSpaceModel,
    q: BackwardFamily,
    ys: Any,
    inputs: Inputs = None,
    num_trajectories: int = 1000,
    *,
    key: Array | None = None,
    length: int | None = None,
) -> Marginals | MixtureMarginals:
    """The distribution of the state at each row, given all rows.

    If the backward kernels of the family are affine (as for `Guided`), this is computed in closed form. Otherwise the
    means and covariances are those of sampled trajectories. For a family with several components, a mixture is fitted
    to the trajectories.

    Args:
        p: The model.
        q: The posterior.
        ys: The observations, of shape [T, dy]. NaN is a missing value.
        inputs: The inputs of the rows, with a leading axis of length T, if the model has inputs.
        num_trajectories: The number of sampled trajectories.
        key: The random key. Needed if the kernels are not affine.
        length: Use only the first `length` rows, and treat the others as padding. This way, sequences of different
            lengths share one compiled program.

    Returns:
        Means [T, d] and covariances [T, d, d]. For a family with several components, also the components.

    Raises:
        ValueError: If shapes do not match, an observation is invalid, or the key is missing.
    """
    ys, inputs = _checked_data(p, q, ys, inputs)
    if q.affine:
        return _smooth(p, q, ys, inputs, None if length is None else jnp.asarray(length))
    if length is not None:
        ys, inputs = jax.tree.map(lambda leaf: leaf[:length], (ys, inputs))
    key = _checked_key(q, "smooth", key)
    num_trajectories = _checked_number("num_trajectories", num_trajectories)
    if not q.gaussian:
        return _smooth_sampled(p, q, ys, inputs, num_trajectories, key)
    return _moments(_sample(p, q, ys, inputs, num_trajectories, key))


def one_step_smooth(
    p: StateSpaceModel,
    q: BackwardFamily,
    ys: Any,
    inputs: Inputs = None,
    num_samples: int = 1000,
    *,
    key: Array | None = None,
) -> Marginals:
    """The law of X_{t-1} given y_{0:t}, under q_{t-1:t}: row t − 1 of T − 1, for t = 1, …, T − 1.

    In closed form where the family's kernels are affine. Otherwise over `num_samples` draws of X_t, and a key is
    required.
    """
    ys, inputs = _checked_data(p, q, ys, inputs)
    if len(ys) < 2:
        raise ValueError(f"One-step smoothing needs at least 2 observations, not {len(ys)}.")
    if q.affine:
        return _one_step(p, q, ys, inputs)
    key = _checked_key(q, "one_step_smooth", key)
    return _one_step_sampled(p, q, ys, inputs, _checked_number("num_samples", num_samples), key)


def sample_trajectories(
    p: StateSpaceModel, q: BackwardFamily, ys: Any, inputs: Inputs = None, num_trajectories: int = 1, *, key: Array
) -> Float[Array, "n t d"]:
    """Samples whole sequences of states given all rows, of shape [num_trajectories, T, d]."""
    ys, inputs = _checked_data(p, q, ys, inputs)
    return _sample(p, q, ys, inputs, _checked_number("num_trajectories", num_trajectories), key)


def forecast(
    p: StateSpaceModel,
    law: Gaussian | Mixture | Marginals | MixtureMarginals,
    horizon: int,
    num_samples: int = 1000,
    inputs: Inputs = None,
    *,
    key: Array,
) -> Forecast:
    """Simulates the next states and observations.

    Args:
        p: The model.
        law: The distribution of the current state: the output of `filter`, of which the last row is used, or
            `q.marginal(state)`.
        horizon: The number of rows to forecast.
        num_samples: The number of simulated futures.
        inputs: The inputs of these rows, with a leading axis of length `horizon`, if the model has inputs.
        key: The random key.

    Returns:
        Samples of `states` and `observations`, with `mean()`, `std()` and `interval(level)`.
    """
    _checked_number("horizon", horizon)
    _checked_number("num_samples", num_samples)
    _check_inputs(p, inputs, horizon)
    present: Marginals | Mixture
    if isinstance(law, MixtureMarginals):
        present = jax.tree.map(lambda leaf: leaf[-1], law.laws)
    elif isinstance(law, Marginals):
        present = Marginals(law.mean[-1:], law.cov[-1:])
    elif isinstance(law, Mixture):
        present = law
    else:
        mean, cov = law.moments()
        present = Marginals(mean[None], cov[None])
    return _forecast(p, present, horizon, num_samples, inputs, key)


def present_law(q: BackwardFamily, state: Any) -> Marginals | Mixture:
    """The law of X_t in a state of the filter, as `forecast` takes it. It exists where a density does not."""
    if not q.gaussian and isinstance(law := q.marginal(state), Mixture):
        return law
    mean, cov = q.moments(state)
    return Marginals(mean[None], cov[None])


# ---- compiled --------------------------------------------------------------------------------------------------------
@eqx.filter_jit
def _filter(p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs) -> Marginals | MixtureMarginals:
    states = filter_states(p, q, ys, inputs)
    if isinstance(laws := jax.vmap(q.marginal)(states), Mixture):
        return MixtureMarginals(laws)
    return Marginals(*jax.vmap(q.moments)(states))


def _chain(p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs) -> Chain:
    return backward_chain(p, q, filter_states(p, q, ys, inputs))


def _push_back(kernel: AffineKernel, mean: Float[Array, " d"], cov: Float[Array, "d d"]):
    """The moments of X_{t-1}, from those of X_t."""
    return kernel.mean_at(mean), kernel.cov + kernel.gain @ cov @ kernel.gain.T


@eqx.filter_jit
def _smooth(p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs, length: Array | None) -> Marginals:
    chain = _chain(p, q, ys, inputs)
    filtered = jax.vmap(q.moments)(chain.states)
    last = jax.tree.map(lambda leaf: leaf[-1], filtered)

    def back(after, scanned):
        counts, kernel, here = scanned
        moments = _push_back(kernel, *after)
        if length is not None:  # the backward chain starts at the last row that counts
            moments = jax.tree.map(lambda a, b: jnp.where(counts, a, b), moments, here)
        return moments, moments

    counts = jnp.arange(len(ys) - 1) < (len(ys) if length is None else length) - 1
    before = jax.tree.map(lambda leaf: leaf[:-1], filtered)
    _, earlier = jax.lax.scan(back, last, (counts, chain.kernels, before), reverse=True)
    return Marginals(*jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), earlier, last))


@eqx.filter_jit
def _one_step(p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs) -> Marginals:
    chain = _chain(p, q, ys, inputs)
    after = jax.vmap(q.moments)(jax.tree.map(lambda leaf: leaf[1:], chain.states))
    assert chain.kernels is not None
    return Marginals(*jax.vmap(_push_back)(chain.kernels, *after))


@eqx.filter_jit
def _one_step_sampled(
    p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs, num_samples: int, key: Array
) -> Marginals:
    states = filter_states(p, q, ys, inputs)
    marginals = jax.vmap(q.marginal)(states)

    def one(before, state, law, key):
        xs, kernel = law.sample((num_samples,), key=key), q.kernel(p, state)
        means, covs = jax.vmap(lambda x: kernel.at(before, x).moments())(xs)
        mean = means.mean(0)
        return mean, covs.mean(0) + (means - mean).T @ (means - mean) / num_samples

    before = jax.tree.map(lambda leaf: leaf[:-1], marginals)
    states, laws = jax.tree.map(lambda leaf: leaf[1:], (states, marginals))
    return Marginals(*jax.vmap(one)(before, states, laws, jax.random.split(key, len(ys) - 1)))


@eqx.filter_jit
def _sample(
    p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs, num_trajectories: int, key: Array
) -> Array:
    if not q.gaussian:
        return _draw_backward(p, q, filter_states(p, q, ys, inputs), num_trajectories, key)
    chain = _chain(p, q, ys, inputs)
    z = jax.random.normal(key, (num_trajectories, len(ys), q.state_dim), chain.marginals.eta1.dtype)
    return jax.vmap(lambda z: sample_chain(p, q, chain, z)[0])(z)


def _draw_backward(p: StateSpaceModel, q: BackwardFamily, states: Any, number: int, key: Array) -> Array:
    return jax.vmap(lambda key: sample_backward(p, q, states, key=key)[0])(jax.random.split(key, number))


@eqx.filter_jit
def _smooth_sampled(
    p: StateSpaceModel, q: BackwardFamily, ys: Array, inputs: Inputs, num_trajectories: int, key: Array
) -> Marginals | MixtureMarginals:
    """The moments of trajectories at each time. Where the filter is a mixture, another one with these moments, fitted
    to them from its components."""
    states = filter_states(p, q, ys, inputs)
    xs, laws = _draw_backward(p, q, states, num_trajectories, key), jax.vmap(q.marginal)(states)
    if not isinstance(laws, Mixture):
        return _moments(xs)

    def one(start: Mixture, draws: Array) -> Mixture:
        weight = jnp.ones(len(draws), draws.dtype)
        apart = draws - draws.mean(0)
        return fit_mixture(start, draws, weight, jnp.diag(LEAST_VARIANCE * (apart**2).mean(0)), FITTING_TURNS)

    return MixtureMarginals(jax.vmap(one, (0, 1))(laws, xs))


def _moments(xs: Float[Array, "n t d"]) -> Marginals:
    mean = xs.mean(0)
    return Marginals(mean, jnp.einsum("nti,ntj->tij", xs - mean, xs - mean) / len(xs))


@eqx.filter_jit
def _forecast(
    p: StateSpaceModel, law: Marginals | Mixture, horizon: int, num_samples: int, inputs: Inputs, key: Array
) -> Forecast:
    def one(x, key):
        def advance(x, scanned):
            key, u = scanned
            key_x, key_y = jax.random.split(key)
            x = jnp.asarray(transition_law(p, x, u).sample(key_x), x.dtype)
            return x, (x, jnp.asarray(emission_law(p, x, u).sample(key_y), x.dtype))

        return jax.lax.scan(advance, x, (jax.random.split(key, horizon), inputs))[1]

    key_now, key_next = jax.random.split(key)
    if isinstance(law, Mixture):
        now = law.sample((num_samples,), key=key_now)
    else:
        mean, cov = law.mean[0], law.cov[0]
        now = mean + jax.random.normal(key_now, (num_samples, len(mean)), mean.dtype) @ scaled_cholesky(cov).T
    states, observations = jax.vmap(one)(now, jax.random.split(key_next, num_samples))
    return Forecast(Draws(states), Draws(observations))


# ---- checks ----------------------------------------------------------------------------------------------------------
def _checked_number(name: str, number: int) -> int:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}.")
    return number


def _checked_key(q: BackwardFamily, name: str, key: Array | None) -> Array:
    if key is None:
        raise ValueError(
            f"The backward kernels of {type(q).__name__} are not affine, so {name} draws samples and needs a key."
        )
    return key


def _check_inputs(p: StateSpaceModel, inputs: Inputs, length: int) -> None:
    """Of as many rows, finite, and such that the model can be called with them."""
    for leaf in jax.tree.leaves(inputs):
        if np.shape(leaf)[:1] != (length,):
            raise ValueError(f"inputs must have a leading axis of length {length}, but one has shape {np.shape(leaf)}.")
    check_model(p, jax.tree.map(lambda leaf: leaf[0], inputs))
    if all(map(known, jax.tree.leaves(inputs))):
        check_inputs(inputs)


def _checked_data(p: StateSpaceModel, q: BackwardFamily, ys: Any, inputs: Inputs) -> tuple[Array, Inputs]:
    """The observations in the precision of λ, once nothing is wrong with them."""
    if not isinstance(p, StateSpaceModel) or not isinstance(q, BackwardFamily):
        raise TypeError(
            "The model comes first, then the family, then the observations: "
            f"here are {type(p).__name__}, {type(q).__name__} and {type(ys).__name__}."
        )
    if not q.amortized:
        raise TypeError(f"{type(q).__name__} holds the parameters of one time only, and cannot read a sequence.")
    if np.ndim(ys) != 2 or np.shape(ys)[1] != q.obs_dim or len(ys) == 0:
        raise ValueError(
            f"ys must have shape [T, {q.obs_dim}] with T at least 1, as {type(q).__name__} expects, not {np.shape(ys)}."
        )
    _check_inputs(p, inputs, len(ys))
    if known(ys):
        check_observations(p, np.asarray(ys), u=jax.tree.map(lambda leaf: leaf[0], inputs))
    check_sizes(p, q, jax.tree.map(lambda leaf: leaf[0], inputs))
    leaves = jax.tree.leaves(eqx.filter(q, eqx.is_inexact_array))
    return jnp.asarray(ys, jnp.result_type(*leaves)), jax.tree.map(jnp.asarray, inputs)
