"""`backstream demo`: learn from a simulated stream, and show a table and a picture."""

import os
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from backstream import metrics, plots, posterior
from backstream.families import Guided
from backstream.learning import Monitor, default_learner
from backstream.models import ChaoticRNN

FRESH = 1000
"""The number of test observations, which are not used for learning."""


def run(out: Path, dim: int, observations: int, seed: int) -> None:
    console = Console()
    key_model, key_data, key_fresh, key_learner, key_limit = jax.random.split(jax.random.key(seed), 5)
    p = ChaoticRNN.random(dim, key=key_model)
    _, ys = p.simulate(observations, key=key_data)
    states, fresh = p.simulate(FRESH, key=key_fresh)
    console.print(
        f"A chaotic recurrent network with {dim} hidden states, observed with Student-t noise "
        f"(2 degrees of freedom): {observations:,} observations, each read once."
    )

    learner, monitor = default_learner(p), Monitor(window=1000)
    q = Guided.from_model(p)
    before = posterior.smooth(p, q, fresh), posterior.filter(p, q, fresh)
    state, _ = learner.step(learner.init(q, key=key_learner), ys[0])
    watch, curve, reports = monitor.begin(state), [(0, metrics.delta(before[0].mean, states))], []
    columns = (
        BarColumn(bar_width=8),
        TextColumn("{task.completed:>6,.0f} read"),
        TextColumn("{task.fields[speed]:>5} obs/s"),
        TextColumn("log score {task.fields[elbo]:>5}"),
        TextColumn("ELBO {task.fields[unbiased]:>5}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=observations, completed=1, speed="…", elbo="…", unbiased="…")
        for start in range(1, observations, monitor.window):
            block = ys[start : start + monitor.window]
            state, infos = learner.scan(state, block)
            if len(block) == monitor.window:
                watch, report = monitor.look(learner, watch, state, infos, block)
                reports.append(report)
                smoothed = posterior.smooth(p, state.result(), fresh)
                curve.append((int(state.t), metrics.delta(smoothed.mean, states)))
                speed = progress.tasks[0].speed
                progress.update(
                    task,
                    speed=f"{speed:.0f}" if speed else "…",
                    elbo=f"{report.elbo:.2f}",
                    unbiased=f"{report.unbiased_elbo:.2f}",
                )
            progress.update(task, advance=len(block))

    with console.status("Computing the best possible result: a particle filter and smoother with the true model …"):
        limit = metrics.particle_limit(p, fresh, key=key_limit)
    smoothed, filtered = posterior.smooth(p, state.result(), fresh), posterior.filter(p, state.result(), fresh)
    table = Table(title=f"Error of the estimated states on {FRESH:,} fresh observations (RMSE)")
    for name in ("", "smoothing", "filtering"):
        table.add_column(name, justify="left" if not name else "right")
    raw = metrics.delta(fresh, states)
    rows = [
        ("the observation itself", raw, raw),
        (
            "reading the model, nothing learned",
            metrics.delta(before[0].mean, states),
            metrics.delta(before[1].mean, states),
        ),
        ("after learning online", metrics.delta(smoothed.mean, states), metrics.delta(filtered.mean, states)),
        ("particle limit", metrics.delta(limit.smoothed, states), metrics.delta(limit.filtered, states)),
    ]
    for name, *values in rows:
        table.add_row(name, *(f"{value:.4f}" for value in values))
    above = np.array(rows[2][1:]) / np.array(rows[3][1:]) - 1
    table.add_row("above the limit", *(f"{100 * value:+.1f} %" for value in above))
    console.print(table)
    covered = metrics.coverage(*smoothed.interval(0.9), states)
    console.print(f"The 90 % bands of the smoothed states contain {100 * covered:.0f} % of the true states.")
    warnings = [warning for report in reports for warning in report.warnings]
    console.print(f"Monitor: {len(warnings)} warnings in {len(reports)} reports.")

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6.5), layout="constrained")
    shown = slice(0, 250)
    filtered, smoothed = (posterior.Marginals(law.mean[shown], law.cov[shown]) for law in (filtered, smoothed))
    plots.states(top, filtered, smoothed, truth=states[shown], observed=fresh[shown])
    top.set_title("Fresh data, after learning")
    t, values = zip(*curve, strict=True)
    plots.learning_curve(bottom, t, values, "learned online", rows[3][1], "smoothing RMSE on fresh data")
    console.print(f"Picture: {plots.save(figure, out)}")
    console.print("Next steps, with these data or your own (see also backstream --help):")
    console.print("  backstream simulate chaotic-rnn -n 5000 --set dim=5 -o obs.csv")
    console.print("  backstream stream chaotic-rnn obs.csv --set dim=5 --out run/")
    console.print("  backstream plot run/")
