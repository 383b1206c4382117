"""`backstream demo`: learn from a simulated stream, and show a table and a picture."""

import os
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import matplotlib.pyplot as plt
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from backstream import metrics, plots, posterior
from backstream.families import BackwardFamily, Guided
from backstream.learning import Monitor, Report, default_learner
from backstream.models import ChaoticRNN

FRESH = 1000
"""The number of test observations, which are not used for learning."""


def run(out: Path, dim: int, observations: int, seed: int) -> None:
    console = Console()
    key_model, key_data, key_fresh, key_learner, key_limit = jax.random.split(jax.random.key(seed), 5)
    p = ChaoticRNN.random(dim, key=key_model)
    _, ys = p.simulate(observations, key=key_data)
    test = Test(p, *p.simulate(FRESH, key=key_fresh))
    console.print(
        f"A chaotic recurrent network with {dim} hidden states, observed with Student-t noise "
        f"(2 degrees of freedom): {observations:,} observations, each read once."
    )
    q = Guided.from_model(p)
    learned, curve, reports = _learn(test, q, ys, console, key_learner)
    with console.status("Computing the best possible result: a particle filter and smoother with the true model …"):
        limit = metrics.particle_limit(p, test.ys, key=key_limit)
    best = metrics.delta(limit.smoothed, test.states), metrics.delta(limit.filtered, test.states)
    console.print(_table(test.errors(q), test.errors(learned), best, metrics.delta(test.ys, test.states)))
    covered = metrics.coverage(*posterior.smooth(p, learned, test.ys).interval(0.9), test.states)
    console.print(f"The 90 % bands of the smoothed states contain {100 * covered:.0f} % of the true states.")
    warnings = [warning for report in reports for warning in report.warnings]
    console.print(f"Monitor: {len(warnings)} warnings in {len(reports)} reports.")
    console.print(f"Picture: {plots.save(_figure(test, learned, curve, best[0]), out)}")
    console.print("Next steps, with these data or your own (see also backstream --help):")
    console.print("  backstream simulate chaotic-rnn -n 5000 --set dim=5 -o obs.csv")
    console.print("  backstream stream chaotic-rnn obs.csv --set dim=5 --out run/")
    console.print("  backstream plot run/")


class Test(NamedTuple):
    """Data that nothing is learned from."""

    p: ChaoticRNN
    states: jax.Array
    ys: jax.Array

    def errors(self, q: BackwardFamily) -> tuple[float, float]:
        """Of the smoothed and the filtered states."""
        smoothed, filtered = posterior.smooth(self.p, q, self.ys), posterior.filter(self.p, q, self.ys)
        return metrics.delta(smoothed.mean, self.states), metrics.delta(filtered.mean, self.states)


def _learn(
    test: Test, q: BackwardFamily, ys: jax.Array, console: Console, key: jax.Array
) -> tuple[BackwardFamily, list[tuple[int, float]], list[Report]]:
    """The learned posterior, its smoothing error on the test data as rows were read, and the monitor's reports."""
    learner, monitor = default_learner(test.p), Monitor(window=1000)
    state, _ = learner.step(learner.init(q, key=key), ys[0])
    watch, curve, reports = monitor.begin(state), [(0, test.errors(q)[0])], []
    columns = (
        BarColumn(bar_width=8),
        TextColumn("{task.completed:>6,.0f} read"),
        TextColumn("{task.fields[speed]:>5} obs/s"),
        TextColumn("log score {task.fields[elbo]:>5}"),
        TextColumn("ELBO {task.fields[unbiased]:>5}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(ys), completed=1, speed="…", elbo="…", unbiased="…")
        for start in range(1, len(ys), monitor.window):
            block = ys[start : start + monitor.window]
            state, infos = learner.scan(state, block)
            if len(block) == monitor.window:
                watch, report = monitor.look(learner, watch, state, infos, block)
                reports.append(report)
                smoothed = posterior.smooth(test.p, state.result(), test.ys)
                curve.append((int(state.t), metrics.delta(smoothed.mean, test.states)))
                speed = progress.tasks[0].speed
                progress.update(
                    task,
                    speed=f"{speed:.0f}" if speed else "…",
                    elbo=f"{report.elbo:.2f}",
                    unbiased=f"{report.unbiased_elbo:.2f}",
                )
            progress.update(task, advance=len(block))
    return state.result(), curve, reports


def _table(before: tuple[float, float], after: tuple[float, float], best: tuple[float, float], raw: float) -> Table:
    table = Table(title=f"Error of the estimated states on {FRESH:,} fresh observations (RMSE)")
    for name in ("", "smoothing", "filtering"):
        table.add_column(name, justify="left" if not name else "right")
    for name, values in (
        ("the observation itself", (raw, raw)),
        ("reading the model, nothing learned", before),
        ("after learning online", after),
        ("particle limit", best),
    ):
        table.add_row(name, *(f"{value:.4f}" for value in values))
    above = [value / least - 1 for value, least in zip(after, best, strict=True)]
    table.add_row("above the limit", *(f"{100 * value:+.1f} %" for value in above))
    return table


def _figure(test: Test, q: BackwardFamily, curve: list[tuple[int, float]], best: float) -> Any:
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6.5), layout="constrained")
    shown = slice(0, 250)
    laws = posterior.filter(test.p, q, test.ys), posterior.smooth(test.p, q, test.ys)
    filtered, smoothed = (posterior.Marginals(law.mean[shown], law.cov[shown]) for law in laws)
    plots.states(top, filtered, smoothed, truth=test.states[shown], observed=test.ys[shown])
    top.set_title("Fresh data, after learning")
    t, values = zip(*curve, strict=True)
    plots.learning_curve(bottom, t, values, "learned online", best, "smoothing RMSE on fresh data")
    return figure
