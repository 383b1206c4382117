"""A learner and its monitor as one: what a long-running stream advances, saves and restores."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.families.guided import GuidedMixture
from backstream.families.guided.family import PlannedFamily

from .column_check import same_columns
from .component_check import CHECKED_ROWS
from .judging import Checks, judge
from .monitor import Monitor, Report, Watch
from .online import OnlineLearner, blank_state
from .particle_reference import ROWS
from .plan_check import UNCHANGED, Contradiction, PlanNews, find_contradiction
from .records import Info, LearnerState, blank_infos, dtype_of
from .remedies import Circumstances
from .starting_theta import theta_gains
from .steps import Settling
from .verdict import Verdict


class WatchedState(NamedTuple):
    """Everything: restored from a checkpoint, it continues bit for bit, in the middle of a window too."""

    learner: LearnerState
    watch: Watch
    window: Any
    """Observations, inputs and infos since the monitor last looked, in arrays of the window's length; what is not
    yet filled is zero."""
    first: Any = None
    """Observations and inputs of the first rows, as long as they are to decide how many components there will be."""
    before: Any = None
    """The filter at the start of the window before this one, and the first observations and inputs of that window: what
    is looked at when a stream ends that has few rows in this one."""


def later(before: Report | None, after: Report) -> Report:
    """A report with the particle filters' word of the one before it, where it has none of its own."""
    return after if before is None or after.reference is not None else after._replace(reference=before.reference)


class WatchedLearner(eqx.Module):
    """Reads observations, and has the monitor look after every window of them, counted from the second observation.

        watched = WatchedLearner(learner, Monitor())
        state, infos = watched.begin(q, ys[:1], key=key)
        state, infos, reports = watched.read(state, ys[1:])

    Where the looks fall depends on the number of observations only, not on how they are cut into calls.
    """

    learner: OnlineLearner
    monitor: Monitor

    def begin(
        self, q: BackwardFamily, ys: Array | np.ndarray, inputs: Any = None, *, key: Array
    ) -> tuple[WatchedState, Info]:
        """The first observation, as a sequence of one."""
        y, u = jax.tree.map(lambda leaf: leaf[0], (ys, inputs))
        state, info = self.learner.step(self.learner.init(q, u, key=key), y, u)
        watch = self.monitor.begin(state)
        window = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._window(ys, inputs, info))
        begun = WatchedState(state, watch, window, before=_first_rows(watch.anchor, window))
        return begun, jax.tree.map(lambda leaf: np.asarray(leaf)[None], info)

    def blank(self, q: BackwardFamily, ys: Array | np.ndarray, inputs: Any = None, *, key: Array) -> WatchedState:
        """The structure and the shapes of what `begin` returns, with nothing computed: what a checkpoint is read
        into."""

        def begun():
            state = blank_state(self.learner, q, jax.tree.map(lambda leaf: leaf[0], inputs), key)
            return (
                state,
                Watch.begin(state.filtered),
                jax.tree.map(lambda leaf: leaf[0], blank_infos(1, q, dtype_of(q))),
            )

        state, watch, info = eqx.filter_eval_shape(begun)
        window = self._window(ys, inputs, info)
        return WatchedState(state, watch, window, before=eqx.filter_eval_shape(_first_rows, watch.anchor, window))

    def _window(self, ys, inputs, info) -> Any:
        row = *jax.tree.map(lambda leaf: leaf[0], (ys, inputs)), info

        def shape(leaf):
            return jax.ShapeDtypeStruct((self.monitor.window, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

        return jax.tree.map(shape, row)

    def read(
        self, state: WatchedState, ys: Array | np.ndarray, inputs: Any = None
    ) -> tuple[WatchedState, Info, list[Report]]:
        """Any number of further observations. The state given is used up."""
        length, collected, reports = self.monitor.window, [], []
        while len(ys):
            filled = (int(state.learner.t) - 1) % length
            count = min(len(ys), length - filled)
            now, later = (
                [jax.tree.map(lambda leaf, part=part: leaf[part], tree) for tree in (ys, inputs)]
                for part in (slice(0, count), slice(count, None))
            )
            learner, infos = self.learner.scan(state.learner, *now)
            collected.append(infos)
            window = jax.tree.map(np.array, state.window)
            for buffer, rows in zip(jax.tree.leaves(window), jax.tree.leaves((*now, infos)), strict=True):
                buffer[filled : filled + count] = rows
            watch, before = state.watch, state.before
            if filled + count == length:
                seen, seen_inputs, seen_infos = window
                before = _first_rows(watch.anchor, window)
                watch, report = self.monitor.look(self.learner, watch, learner, seen_infos, seen, seen_inputs)
                reports.append(report)
                window = jax.tree.map(np.zeros_like, window)
            state, (ys, inputs) = WatchedState(learner, watch, window, state.first, before), later
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *collected), reports

    def contradiction(self, state: WatchedState) -> Contradiction | None:
        """Where the model is not what the posterior takes it to be, at the rows since the monitor last looked."""
        p, (ys, inputs, infos) = self.learner.current_model(state.learner), self._rows_since_look(state)
        return find_contradiction(p, state.learner.result(), infos, ys, inputs)

    def taken_over(self, q: PlannedFamily, state: WatchedState, u: Any = None) -> WatchedState:
        """The state from which this goes on with `q`, which reads the same model by another plan."""
        anchor, *rows = state.before
        return state._replace(
            learner=self.learner.taken_over(q, state.learner, u),
            watch=state.watch._replace(anchor=q.taken_over(state.watch.anchor)),
            before=(q.taken_over(anchor), *rows),
        )

    def _rows_since_look(self, state: WatchedState) -> Any:
        filled = max(int(state.learner.t) - 1, 0) % self.monitor.window
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:filled], state.window)

    def verdict(
        self,
        state: WatchedState,
        latest: Report | None,
        names: tuple[str, ...] = (),
        *,
        ended: bool = False,
        plan: PlanNews = UNCHANGED,
    ) -> Verdict:
        """Whether the result can be used.

        Args:
            state: The state after the last row.
            latest: The monitor's latest report. Where there is none yet, particle filters are shown the rows so far.
            names: Of the columns.
            ended: Whether no more rows are to come for now: particle filters are then shown the latest rows.
            plan: What has become of the posterior's plan.
        """
        learner, about = state.learner, circumstances(self.learner, state.learner, names)
        ys, inputs, infos = self._rows_since_look(state)
        anchor, shown, gained = state.watch.anchor, (ys, inputs), state.watch.gained
        if latest is not None and len(ys) < ROWS:
            anchor, *shown = state.before
        same = tuple(same_columns(np.asarray(shown[0])))
        if latest is not None and not ended:
            return judge(learner.tally, about, Checks(latest.reference, latest.theta_gain, same, latest.warnings, plan))
        reference = self.monitor.compare(self.learner, anchor, learner, *shown)
        gained = gained.next(theta_gains(self.learner, state.watch.anchor, learner, infos, ys, inputs))
        warnings = () if latest is None else latest.warnings
        contradiction = self.contradiction(state)
        if contradiction is not None:
            plan = plan._replace(contradicted=contradiction.sentence())
        return judge(learner.tally, about, Checks(reference, gained.gain(), same, warnings, plan))


def _first_rows(anchor: Any, window: Any) -> Any:
    """Of a window that begins at `anchor`: as many as the checks at the end of a stream read."""
    ys, inputs, _ = window
    return anchor, *jax.tree.map(lambda leaf: leaf[:CHECKED_ROWS], (ys, inputs))


def circumstances(learner: OnlineLearner, state: LearnerState, names: tuple[str, ...] = ()) -> Circumstances:
    """What of a run its verdict needs to know."""
    q, learns_model = state.average, learner.model_optimizer is not None
    settled = isinstance(learner.model_optimizer, Settling) and bool(state.model_optimizer.settled)
    scores = isinstance(q, ScoringFamily)
    return Circumstances(
        scores=scores,
        components=q.components if isinstance(q, GuidedMixture) else 1,
        learns_model=learns_model,
        improves=not scores or (learns_model and not settled),
        fallback=learner.fallback,
        names=names,
    )
