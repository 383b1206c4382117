"""Recursion against window: the error on fresh data, against observations read and against seconds.

    python -m studies.recursion_or_window

Chaotic RNN with d = 5, 10, 20, a linear-Gaussian stream, and a slowly mixing one (A = 0.999), where a short window
cannot see what it should learn. One seed each; five seeds of the chosen default are in `table3`. A run ends
after 20 000 observations or 45 processor seconds of learning, whichever comes first.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from backstream.estimators import (
    FixedLag,
    Forward,
    MomentCorrected,
    Quadratic,
    RecursiveScore,
    Renewal,
    SelfNormalized,
    WindowAverage,
    WindowIncrement,
)
from backstream.families import Kalman
from backstream.learning import OnlineLearner
from backstream.learning.presets import falling
from backstream.models import ChaoticRNN, LinearGaussian
from benchmarks.harness import Judge, LinearJudge, Results, console, first_within, learn
from reproduction.version_0_1.innovation import Innovation

RESULTS = Path(__file__).parent / "results" / "recursion_or_window.json"
SETTINGS = {
    "observations": 20_000,
    "fresh": 1000,
    "every": 2000,
    "width": 100,
    "trajectories": 4,
    "slow": 0.999,
    "most_seconds": 45,
}


def adam(rate):
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(rate))


def every(k, rate):
    return optax.MultiSteps(adam(rate), k).gradient_transformation()


def recursion(N, gamma=0.8, weights=None):
    return RecursiveScore(N, MomentCorrected() if weights is None else weights, objective=Renewal(gamma))


def discounted(N, gamma=0.9):
    return RecursiveScore(N, MomentCorrected(), Forward(gamma), objective=Renewal(gamma))


def window(L, objective=None):
    return FixedLag(L, SETTINGS["trajectories"], WindowAverage() if objective is None else objective)


CHOICES = {
    "window 8, rate 3e-3": (window(8), adam(3e-3)),
    "recursion N=100, rate 1e-3": (recursion(100), adam(1e-3)),
    "recursion N=100, discounted, gamma=0.9, rate 1e-3": (discounted(100), adam(1e-3)),
    "window 4, rate 3e-3": (window(4), adam(3e-3)),
    "window 16, rate 3e-3": (window(16), adam(3e-3)),
    "window 8, falling from 3e-3": (window(8), adam(falling(3e-3, 10_000.0))),
    "window 16, falling from 3e-3": (window(16), adam(falling(3e-3))),
    "window 32, rate 3e-3": (window(32), adam(3e-3)),
    "window 8, one update for 4 observations, rate 6e-3": (window(8), every(4, 6e-3)),
    "window increment 4, rate 1e-3": (window(4, WindowIncrement()), adam(1e-3)),
    "window increment 8, rate 1e-3": (window(8, WindowIncrement()), adam(1e-3)),
    "window increment 16, rate 1e-3": (window(16, WindowIncrement()), adam(1e-3)),
    "recursion N=20, rate 1e-3": (recursion(20), adam(1e-3)),
    "recursion N=100, falling from 2e-3": (recursion(100), adam(falling(2e-3, 10_000.0))),
    "recursion N=100, one update for 4 observations, rate 3e-3": (recursion(100), every(4, 3e-3)),
    "recursion N=100, paper's increments, rate 1e-3": (recursion(100, 1.0, SelfNormalized()), adam(1e-3)),
    "recursion N=500, rate 1e-3": (recursion(500), adam(1e-3)),
}
FEW_CHOICES = [choice for choice in CHOICES if "increment" not in choice and "one update" not in choice]
SLOW_CHOICES = {
    **{f"window {L}, rate 1e-3": (window(L), adam(1e-3)) for L in (4, 8, 16, 32)},
    **{f"window increment {L}, rate 1e-3": (window(L, WindowIncrement()), adam(1e-3)) for L in (4, 8, 16, 32)},
    "recursion N=20, gamma=0.8": (recursion(20), adam(1e-3)),
    "recursion N=20, gamma=0.99": (recursion(20, 0.99, MomentCorrected(Quadratic(cross=True))), adam(1e-3)),
    "recursion N=20, gamma=1": (recursion(20, 1.0, MomentCorrected(Quadratic(cross=True))), adam(1e-3)),
}


def chaotic(dim: int, choice: str) -> dict | list[dict]:
    """The curve of a choice, or the limit."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(4), dim), 5)
    p = ChaoticRNN.random(dim, key=keys[0])
    judge = Judge(p, SETTINGS["fresh"], key=keys[2])
    if choice == "limit":
        return judge.limit()
    ys = p.simulate(SETTINGS["observations"] + 2, key=keys[1])[1]
    q = Innovation.from_model(p, width=SETTINGS["width"], key=keys[3])
    return run(OnlineLearner(p, *CHOICES[choice]), q, ys, judge.errors, keys[4])


def run(learner, q, ys, judge, key) -> list[dict]:
    return learn(learner, q, ys, judge, SETTINGS["every"], key=key, most_seconds=SETTINGS["most_seconds"])


def linear(slow: bool, choice: str) -> dict | list[dict]:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(5), slow), 5)
    if slow:
        scale = jnp.full(1, (1 - SETTINGS["slow"] ** 2) ** 0.5)
        p = LinearGaussian(
            jnp.zeros(1), jnp.ones(1), jnp.full(1, SETTINGS["slow"]), jnp.ones((1, 1)), scale, jnp.ones(1)
        )
        start = LinearGaussian(jnp.zeros(1), jnp.ones(1), jnp.full(1, 0.9), jnp.ones((1, 1)), 4 * scale, jnp.ones(1))
        q, choices = Kalman.from_model(start), SLOW_CHOICES
    else:
        p = LinearGaussian.random(10, 10, low=0.6, high=0.9, key=keys[0])
        q, choices = Kalman.random(p, key=keys[3]), CHOICES
    judge = LinearJudge(p, SETTINGS["fresh"], key=keys[2])
    if choice == "limit":
        return judge.limit()
    ys = p.simulate(SETTINGS["observations"] + 2, key=keys[1])[1]
    return run(OnlineLearner(p, *choices[choice]), q, ys, judge.errors, keys[4])


def report(name: str, limit: dict, curve: list[dict]) -> None:
    last, reached = curve[-1], first_within(curve, limit)
    above = ", ".join(f"{100 * (last[k] / limit[k] - 1):+.1f} % {k}" for k in ("smoothing", "filtering"))
    when = f"within 5 % after {reached['observations']} in {reached['seconds']:.0f} s" if reached else "not within 5 %"
    elbo = f", ELBO {last['fresh_elbo'] - limit['fresh_elbo']:+.4f}" if "fresh_elbo" in last else ""
    console.print(f"{name}: {above}{elbo} after {last['observations']}; {when}")


def main() -> None:
    results = Results(RESULTS, "python -m studies.recursion_or_window", SETTINGS)
    cases = {
        "d=10": (CHOICES, lambda choice: chaotic(10, choice)),
        "d=5": (FEW_CHOICES, lambda choice: chaotic(5, choice)),
        "slow": (SLOW_CHOICES, lambda choice: linear(True, choice)),
        "linear": (FEW_CHOICES, lambda choice: linear(False, choice)),
        "d=20": (FEW_CHOICES, lambda choice: chaotic(20, choice)),
    }
    for case, (choices, compute) in cases.items():
        limit = results.run(f"{case}, limit", lambda compute=compute: compute("limit"))
        for choice in choices:
            name = f"{case}, {choice}"
            report(name, limit, results.run(name, lambda compute=compute, choice=choice: compute(choice)))


if __name__ == "__main__":
    main()
