"""Filtering one row at a time, for control loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Float

from backstream import posterior
from backstream._jax.compiling import compiler_options
from backstream.families import Guided, ScoringFamily
from backstream.models import StateSpaceModel, check_model
from backstream.models.density import check_inputs, check_observations


class Moments(NamedTuple):
    """Mean and covariance of the state."""

    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]

    @property
    def std(self) -> Float[np.ndarray, " d"]:
        return np.sqrt(np.diagonal(self.cov))

    def interval(self, level: float = 0.9) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
        """Lower and upper bounds of central intervals, from the quantiles of a normal distribution."""
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, not {level}.")
        half = float(ndtri(0.5 + level / 2)) * self.std
        return self.mean - half, self.mean + half


class Tracked(NamedTuple):
    """The result of one row."""

    prediction: Moments
    """The state, given the rows before this one."""
    posterior: Moments
    """The state, given the rows up to this one."""
    log_score: float
    """The log density of the row under the prediction; 0 for a missing row, minus infinity for an impossible one."""


class Tracker:
    """A filter that reads one row at a time. After the first call, which compiles it, a call takes microseconds.

    A tracker does not learn. To use learned parameters, pass `result.model` and `result.family` of `bs.learn`.

    >>> from backstream.models import LinearGaussian
    >>> tracker = Tracker(LinearGaussian.random(2, 3, key=jax.random.key(0)))
    >>> tracker.update([0.1, float("nan"), -0.3]).posterior.std.shape
    (2,)
    >>> tracker.forecast(5).observations.mean.shape
    (5, 3)
    """

    def __init__(self, model: StateSpaceModel, family: ScoringFamily | None = None, *, seed: int = 0):
        """Args:
        model: The model.
        family: The posterior, for example a learned one. By default it is built from the model and the inputs of the
            first row.
        seed: The random seed of `forecast`.
        """
        self.model, self.family = model, family
        self.rows = 0
        """The number of rows read."""
        self._key = jax.random.key(seed)
        self._state: Any = None
        self._step: Callable[..., Any]

    def update(self, y: Any, u: Any = None) -> Tracked:
        """Reads one row.

        Args:
            y: The observation, of shape [dy], or a number if there is one column. NaN is a missing value.
            u: The inputs of the row, of shape [k], or a number if there is one, if the model has inputs.

        Returns:
            The predicted state, the posterior state and the log score of the row.

        Raises:
            ValueError: If the row has the wrong shape, or a value that is impossible in the model.
        """
        if isinstance(u, list | float | int):
            u = np.atleast_1d(np.asarray(u, float))
        if self.rows == 0:
            self._begin(u)
        given = np.atleast_1d(np.asarray(y, self._dtype))
        check_inputs(None if u is None else jax.tree.map(lambda leaf: np.asarray(leaf)[None], u), self.rows)
        check_observations(self._shape, given[None], self.rows)
        self._state, before, after, score = self._step(self._state, given, u)
        self.rows += 1
        return Tracked(Moments(*map(np.asarray, before)), Moments(*map(np.asarray, after)), float(score))

    def forecast(self, horizon: int, inputs: Any = None, num_samples: int = 1000) -> posterior.Forecast:
        """Simulates the next states and observations, given the rows read so far.

        Args:
            horizon: The number of rows to forecast.
            inputs: The inputs of these rows, with a leading axis of length `horizon`, if the model has inputs.
            num_samples: The number of simulated futures.

        Returns:
            Samples of `states` and `observations`, with `mean()`, `std()` and `interval(level)`.

        Raises:
            ValueError: If no row has been read.
        """
        if self.family is None or self._state is None:
            raise ValueError("A forecast needs at least one row: call update first.")
        law = posterior.present_law(self.family, self._state)
        key = jax.random.fold_in(self._key, self.rows)
        return posterior.forecast(self.model, law, horizon, num_samples, inputs, key=key)

    def _begin(self, u: Any) -> None:
        """Reads the model and compiles the step, at the first row. The model is a constant of the compiled program, so
        that a call has little to pass on."""
        p, q = self.model, self.family
        self._shape = check_model(p, u)
        if q is None:
            q = self.family = Guided.from_model(p, u)
        self._state = q.init(p, u)
        mean, _ = q.moments(self._state)
        self._dtype = mean.dtype
        missing = jnp.full(q.obs_dim, jnp.nan, mean.dtype)

        def step(state, y, u):
            before, after = q.update(p, state, missing, u), q.update(p, state, y, u)
            return after, q.moments(before), q.moments(after), q.log_score(after)

        self._step = jax.jit(step, compiler_options=compiler_options())

    def __repr__(self) -> str:
        return f"Tracker({type(self.model).__name__}, {self.rows} rows read)"
