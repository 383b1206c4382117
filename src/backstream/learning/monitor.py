"""A monitor that tells the truth about a stream.

The ELBO that the recursion reports is biased by its self-normalized weights, and an optimizer can learn to exploit the
bias: the report rises while q gets worse. For each window of observations the monitor computes an unbiased ELBO from
backward trajectories under the same λ, and says so when the two part.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from backstream._jax.compiling import compiled
from backstream.estimators.fixed_lag import window_elbo
from backstream.families.base import BackwardFamily, ScoringFamily

from .component_check import CHECKED_ROWS, EVERY, can_be_checked, log_score_gap
from .online import OnlineLearner
from .particle_reference import Reference, particle_reference
from .records import Info, LearnerState
from .starting_theta import EVERY as EVERY_GAIN
from .starting_theta import Gained, ThetaGain, theta_gains
from .theta import Parameter, current_parameters, parameter_warnings

RECENT, FADING = 5, 20
"""Windows over which the monitor forgets what is usual, and what was best."""
COMPARED = 20
"""Windows from one comparison with particle filters to the next, in a long run."""
BOUNDED, BOUNDED_ROWS = 10, 64
"""Windows from one in which the ELBO of a result that scores its rows is compared with the log score to the next, and
rows of it that are read for that."""


class Report(NamedTuple):
    """The state of a stream after one window. ELBOs are in nats per observation."""

    t: int
    """How many observations have been read."""
    elbo: float
    """The learner's own, averaged over the window."""
    unbiased_elbo: float
    unbiased_error: float
    """The standard error of the latter over trajectories."""
    average_elbo: float
    """The unbiased ELBO under the averaged λ: that of the result."""
    ess: float
    """The mean effective sample size over the window."""
    gradient_norm: float
    """The median over the window."""
    refused: float
    """The share of observations in the window whose update was refused."""
    warnings: tuple[str, ...]
    stream: str | None = None
    """Where there are many: the name of the one that was looked at, after so many rows of the source in all."""
    row: int | None = None
    parameters: dict[str, Parameter] | None = None
    """θ by the names of the model's fields, where it is learned."""
    theta_gain: ThetaGain | None = None
    """By how much the learned θ predicts better than the θ that the run began with, over the windows so far."""
    reference: Reference | None = None
    """What particle filters say of the first rows of the window; None where q is exact, and has nothing to lose, and in
    most windows of a long run."""


def _is_due(window: int, every: int) -> bool:
    """Whether something is done after so many windows that is done after the first, and then after every so many."""
    return window == 1 or window % every == 0


def _is_compared(q: BackwardFamily, window: int) -> bool:
    """Whether the result is compared with particle filters after so many windows: always where q learns all that it
    knows, so that it changes; otherwise after the first window and every COMPARED-th."""
    return not isinstance(q, ScoringFamily) or _is_due(window, COMPARED)


class Monitor(eqx.Module):
    """Looks at a stream after every `window` observations.

    It warns when the two ELBOs part by more than `tolerance` nats per observation beyond three standard errors, when
    the effective sample size is below `least_ess`, when more than `most_refused` of the updates were refused, and
    when the unbiased ELBO has fallen: at once, by more than `least_fall` and by `surprise` standard deviations of the
    windows before, or in the end, by more than `tolerance` below the best that it has lately been. What has fallen and
    stays there is the new usual after some windows.
    """

    window: int = eqx.field(static=True, default=500)
    num_trajectories: int = eqx.field(static=True, default=32)
    tolerance: float = eqx.field(static=True, default=1.0)
    least_ess: float = eqx.field(static=True, default=1.5)
    most_refused: float = eqx.field(static=True, default=0.01)
    least_fall: float = eqx.field(static=True, default=0.1)
    surprise: float = eqx.field(static=True, default=5.0)
    check_components: bool = eqx.field(static=True, default=False)
    """Whether it tries several components on some of the windows, and says where they are needed."""

    def __check_init__(self):
        if self.window < 2:
            raise ValueError(f"The monitor's window must be at least 2 observations, not {self.window}.")
        if self.num_trajectories < 2:
            raise ValueError(f"num_trajectories must be at least 2, not {self.num_trajectories}.")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, not {self.tolerance}.")

    def begin(self, state: LearnerState) -> "Watch":
        """Starts to watch a stream from a state of its learner."""
        return Watch.begin(_anchor(state))

    def look(
        self,
        learner: OnlineLearner,
        watch: "Watch",
        state: LearnerState,
        infos: Info,
        ys: Any,
        inputs: Any = None,
    ) -> tuple["Watch", Report]:
        """What the latest window was like: its observations, what the learner said of each, and its state
        afterwards."""
        p = learner.current_model(state)
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.t), 1)
        now, average, bound = self._elbos(learner, watch, state, ys, inputs, infos, key)
        with np.errstate(invalid="ignore"):  # an observation may be beyond all numbers, and the ELBO −∞
            unbiased, error, elbo = now.mean(), now.std(ddof=1) / np.sqrt(len(now)), float(np.mean(infos.elbo))
            agree = elbo == unbiased or abs(elbo - unbiased) <= self.tolerance + 3 * error
            agree = agree or not learner.estimator.estimates_elbo
        ess = float(np.nanmean(infos.ess)) if np.any(infos.ess > 0) else np.nan
        refused = float(np.mean(infos.refused))
        warnings = []
        if not agree:
            warnings.append(
                f"The learner says {elbo:.2f} nats per observation, unbiased trajectories say {unbiased:.2f}: "
                "its gradient cannot be trusted here. Try the method window, or more --particles."
            )
        if ess < self.least_ess:
            warnings.append(
                f"The effective sample size is {ess:.1f}: too few samples have weight. Try more --particles, or "
                "the method window."
            )
        if refused > self.most_refused:
            warnings.append(f"{100 * refused:.1f} % of the updates were not finite and were skipped.")
        reached = float(average.mean())
        if watch.fell(reached, self.least_fall, self.surprise):
            warnings.append(
                f"The unbiased ELBO of the result fell from {watch.usual:.2f} to {reached:.2f} nats per observation at "
                "once: the world has changed, or a sensor has."
            )
        elif reached < watch.best - self.tolerance:
            warnings.append(
                f"The unbiased ELBO of the result is {reached:.2f} nats per observation; it has been {watch.best:.2f}."
            )
        warnings += parameter_warnings(learner, state, self.window) + self._advice(p, watch, state, ys, inputs)
        is_compared = _is_compared(state.q, watch.windows + 1)
        reference = self.compare(learner, watch.anchor, state, ys, inputs) if is_compared else None
        gained = self._gained(learner, watch, state, infos, ys, inputs)
        report = Report(
            int(state.t),
            elbo,
            float(unbiased),
            float(error),
            reached,
            ess,
            float(np.median(infos.gradient_norm)),
            refused,
            tuple(warnings),
            parameters=current_parameters(learner, state),
            reference=reference,
            theta_gain=gained.gain(),
        )
        return watch.next(_anchor(state), reached)._replace(gained=gained, bound=bound), report

    def _gained(self, learner: OnlineLearner, watch: "Watch", state: LearnerState, infos, ys, inputs) -> Gained:
        """What learning θ has gained, with some rows of this window if it is its turn."""
        if not _is_due(watch.windows + 1, EVERY_GAIN):
            return watch.gained
        return watch.gained.next(theta_gains(learner, watch.anchor, state, infos, ys, inputs))

    def _advice(self, p, watch: "Watch", state: LearnerState, ys: Any, inputs: Any) -> list[str]:
        """What several components would add, now and then."""
        q, due = state.result(), (watch.windows + 1) % EVERY == 0 and self.window >= CHECKED_ROWS
        if not (self.check_components and due and can_be_checked(q)):
            return []
        gap = log_score_gap(p, q, watch.anchor, ys, inputs)
        return [gap.advice()] if gap.is_clear() else []

    def compare(
        self, learner: OnlineLearner, anchor: Any, state: LearnerState, ys: Any, inputs: Any
    ) -> Reference | None:
        """The result beside particle filters on the first of the rows that follow the filter's state `anchor`, or
        beside several components where the filters are starved; None where it is exact, or where there are no rows."""
        q = state.result()
        if not len(ys) or (isinstance(q, ScoringFamily) and q.exact):
            return None
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.t), 2)
        p = learner.current_model(state)
        reference = particle_reference(p, q, anchor, ys, inputs, key=key)
        if reference.is_trusted or not can_be_checked(q):
            return reference
        gap = log_score_gap(p, q, anchor, ys, inputs)
        return reference._replace(several=gap.mean, several_error=gap.error)

    def _elbos(
        self, learner: OnlineLearner, watch: "Watch", state: LearnerState, ys: Any, inputs: Any, infos: Info, key: Any
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Unbiased values of the window's ELBO per observation, one for each trajectory: under the latest λ, and of the
        result; and by how much the latter is below the log score.

        Where q is exact the log score is the ELBO, and no trajectory is drawn. Where the model's noise is singular
        there is no density of a trajectory: the log score is then the only measure there is. Where the log score is
        what is learned from, it is known of every row, and trajectories are drawn through some rows of some windows,
        to find out how far the ELBO is below it.
        """
        p, result = learner.current_model(state), state.result()
        scores = np.asarray(infos.log_score, float)
        seen = np.isfinite(scores)
        log_score = np.full(2, scores[seen].mean() if seen.any() else np.nan)
        scoring = isinstance(result, ScoringFamily)
        if scoring and result.exact:
            return log_score, log_score, 0.0
        if scoring and not learner.estimator.estimates_elbo:
            if _is_due(watch.windows + 1, BOUNDED):
                first = jax.tree.map(lambda leaf: np.asarray(leaf)[:BOUNDED_ROWS], (ys, inputs))
                known = scores[:BOUNDED_ROWS][seen[:BOUNDED_ROWS]]
                values = np.asarray(_unbiased(p, result, watch.anchor, *first, self.num_trajectories, key), float)
                below = known.sum() / len(first[0]) - values / len(first[0])
                if np.isfinite(below).all():
                    return log_score[0] - below, log_score[0] - below, float(below.mean())
            return log_score - watch.bound, log_score - watch.bound, watch.bound

        def drawn(q: BackwardFamily) -> np.ndarray:
            values = np.asarray(_unbiased(p, q, watch.anchor, ys, inputs, self.num_trajectories, key)) / len(ys)
            return log_score if scoring and not np.isfinite(values).any() else values

        return drawn(state.q), drawn(result), 0.0


class Watch(NamedTuple):
    """What the monitor remembers between windows."""

    anchor: Any
    """The filter at the start of the window."""
    best: float
    """The best unbiased ELBO per observation of the averaged λ, lately: it is forgotten over some FADING windows."""
    usual: float
    variance: float
    """Mean and variance of that ELBO over the latest windows, RECENT or so."""
    windows: int
    gained: Gained = Gained()
    """What learning θ has gained in them."""
    bound: float = 0.0
    """By how much the ELBO of a result that scores its rows was below the log score, in nats per observation, when that
    was last found out."""

    @classmethod
    def begin(cls, anchor: Any) -> "Watch":
        return cls(anchor, -np.inf, 0.0, 0.0, 0)

    def fell(self, reached: float, least: float, surprise: float) -> bool:
        enough = self.windows >= RECENT
        return enough and not self.usual - reached <= max(least, surprise * self.variance**0.5)

    def next(self, anchor: Any, reached: float) -> "Watch":
        if not math.isfinite(reached):
            return self._replace(anchor=anchor)
        best = max(reached, self.best + (reached - self.best) / FADING) if self.windows else reached
        weight = max(1 / RECENT, 1 / (self.windows + 1))
        off = reached - self.usual
        usual, variance = self.usual + weight * off, (1 - weight) * (self.variance + weight * off**2)
        return self._replace(anchor=anchor, best=best, usual=usual, variance=variance, windows=self.windows + 1)


@compiled(quickly=True)
def _unbiased(p, q, anchor, ys, inputs, num_trajectories, key):
    return window_elbo(p, q, anchor, ys, inputs, num_trajectories, key=key)


@compiled(quickly=True)
def _anchor(state: LearnerState) -> Any:
    """a_t of the result, copied: the learner's next block overwrites the buffers of its state."""
    return jax.tree.map(jnp.copy, state.filtered)
