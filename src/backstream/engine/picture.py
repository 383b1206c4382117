"""A result as a picture: observations with their dates, states with their bands, and a forecast."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from backstream import posterior
from backstream.data.rows import Batch
from backstream.families.base import Inputs
from backstream.models import StateSpaceModel
from backstream.models.base import emission_law

from .filtered_rows import FilteredRows

PANELS = 4
"""The most that are drawn."""
DRAWS = 200


@eqx.filter_jit
def replicate(
    p: StateSpaceModel, law: posterior.Marginals | posterior.MixtureMarginals, inputs: Inputs, key: Array
) -> Float[Array, "n t dy"]:
    """Draws of the observation at each row, from the law of its state and the model's emission."""
    key_x, key_y = jax.random.split(key)
    xs = law.sample(DRAWS, key=key_x)

    def see(x, u, key):
        return jnp.asarray(emission_law(p, x, u).sample(key), xs.dtype)

    keys = jax.random.split(key_y, xs.shape[:2])
    return jax.vmap(jax.vmap(see), (0, None, 0))(xs, inputs, keys)


def times_of(texts: list[str | None] | None, count: int, horizon: int) -> np.ndarray:
    """Dates or numbers for the rows and for the horizon after them; numbers of rows where there are no times."""
    values: Any = None
    if texts is not None and None not in texts:
        try:
            values = np.array([float(text) for text in texts if text is not None])
        except ValueError:
            try:
                moments = [datetime.fromisoformat(text.strip()) for text in texts if text is not None]
                values = np.array([moment.replace(tzinfo=None) for moment in moments], "datetime64[us]")
            except ValueError:
                values = None
    if values is None or len(values) < 2:
        return np.arange(count + horizon)
    step = np.median(np.diff(values).astype(float)) or 1.0
    ahead = step * np.arange(1, horizon + 1)
    return np.concatenate(
        [values, values[-1] + (ahead.astype("timedelta64[us]") if values.dtype.kind == "M" else ahead)]
    )


class Shown(NamedTuple):
    """What is drawn."""

    batch: Batch
    filtered: Any
    smoothed: Any
    ahead: posterior.Forecast | None
    scores: FilteredRows | None
    """Of the rows when they were learned from."""


def draw(model: StateSpaceModel, columns: tuple[str, ...], shown: Shown, *, last: int | None, key: Array) -> Any:
    """The figure. One panel for each observed column, then for each state, as far as there is room; below them the PIT
    values and the log scores of the rows that were learned from."""
    import matplotlib.pyplot as plt

    from backstream import plots

    batch, filtered, smoothed, ahead, scores = shown
    horizon = 0 if ahead is None else ahead.states.values.shape[1]
    count = len(batch.ys)
    drawn = slice(0 if last is None else max(0, count - last), count)
    times = times_of(batch.times, count, horizon)
    past, future = times[drawn], times[count:]
    states = getattr(model, "state_names", None) or [f"state {i}" for i in range(smoothed.mean.shape[1])]
    seen = min(len(columns), PANELS - 1)
    inner = min(len(states), PANELS - seen)
    below = [] if scores is None else _of_scores(scores, plots)
    figure = plt.figure(figsize=(10, 1.2 + 1.8 * (seen + inner) + (2.4 if below else 0)), layout="constrained")
    heights = [1.8 * (seen + inner), *([2.4] if below else [])]
    upper_part, *lower_part = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    axes: list[Any] = list(upper_part.subplots(seen + inner, 1, sharex=True, squeeze=False)[:, 0])
    for part in lower_part:
        for panel, draw_scores in zip(part.subplots(1, len(below), squeeze=False)[0], below, strict=True):
            draw_scores(panel)
    law = jax.tree.map(lambda leaf: jnp.asarray(leaf)[drawn], smoothed)
    inputs = None if batch.inputs is None else jnp.asarray(batch.inputs[drawn])
    replicated = posterior.Draws(replicate(model, law, inputs, key))
    lower, upper = (np.asarray(end) for end in replicated.interval(0.9))
    middle = np.median(np.asarray(replicated.values), axis=0)
    for i, panel in enumerate(axes[:seen]):
        plots.band(panel, lower[:, i], upper[:, i], middle[:, i], "smoothed, 90 % band", plots.BLUE, times=past)
        panel.plot(past, batch.ys[drawn][:, i], ".", color=plots.BLACK, markersize=3, label="observed")
        _ahead(panel, None if ahead is None else ahead.observations, i, future, plots)
        panel.set_ylabel(columns[i])
    regions, mean = np.asarray(law.regions(0.9)), np.asarray(law.mean)
    for i, panel in enumerate(axes[seen:]):
        plots.regions(panel, regions[:, i], mean[:, i], "smoothed, 90 % band", plots.BLUE, past)
        panel.plot(past, np.asarray(filtered.mean)[drawn, i], "--", color=plots.ORANGE, linewidth=0.9, label="filtered")
        _ahead(panel, None if ahead is None else ahead.states, i, future, plots)
        panel.set(ylabel=states[i], ylim=_room(regions[:, i], ahead, i))
    for panel in axes:
        panel.margins(x=0.01)
        panel.legend(loc="best", fontsize="small", frameon=False, ncols=3)
    axes[-1].set_xlabel("" if times.dtype.kind == "M" else "row" if batch.times is None else "time")
    return figure


def _of_scores(rows: FilteredRows, plots: Any) -> list[Callable[[Any], None]]:
    """What there is to draw of how well rows were predicted: each is a function of the axes."""
    found: list[Callable[[Any], None]] = []
    pits, scores = rows.pit, rows.log_score
    if np.isfinite(pits).any():  # labels have none
        found.append(lambda panel: plots.pit_histogram(panel, pits))
    if np.isfinite(scores).any():
        found.append(lambda panel: plots.log_scores(panel, rows.table["row"].to_numpy(), scores))
    return found


def _room(pieces: np.ndarray, ahead: posterior.Forecast | None, i: int) -> tuple[float, float]:
    """Enough for the bands: the first filtered states may be far away."""
    ends = [np.nanmin(pieces), np.nanmax(pieces)]
    if ahead is not None:
        ends += [np.asarray(end)[:, i] for end in ahead.states.interval(0.9)]
    low, high = float(min(map(np.min, ends))), float(max(map(np.max, ends)))
    return low - 0.1 * (high - low), high + 0.3 * (high - low)


def _ahead(panel: Any, draws: posterior.Draws | None, i: int, future: np.ndarray, plots: Any) -> None:
    if draws is None:
        return
    lower, upper = (np.asarray(end)[:, i] for end in draws.interval(0.9))
    middle = np.median(np.asarray(draws.values)[:, :, i], axis=0)
    plots.band(panel, lower, upper, middle, "forecast", plots.GREEN, "-.", future)
