"""What each choice inside the score estimator is worth: its error to the exact gradient, and what is learned with it.

    backstream reproduce ablations

A linear-Gaussian model, d = 3, T = 50, where the exact gradient is known. *Bias* is the error of the mean over draws,
*error* the root mean square error of one draw, both relative to the exact gradient, at the start of learning and at
its end (at the λ that the exact gradient ends with, relative to the gradient at the start). *Gap* is how many nats per
step the q that was learned with this gradient ends below the exact log-likelihood, by its closed-form ELBO.
"""

import json
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from backstream.estimators import (
    AutodiffThroughWeights,
    BackwardSampling,
    Exact,
    MomentCorrected,
    NoBaseline,
    OfflineEstimator,
    RecursiveScore,
    ReverseScore,
    SameSample,
    Scan,
    Truncated,
)
from backstream.families import BackwardFamily, Kalman
from backstream.families.backward import filter_states
from backstream.learning import fit
from backstream.models import LinearGaussian
from backstream.plots import BLUE, ORANGE
from benchmarks.harness import MISSING, over_seeds, table

TITLE = "Ablations: what each choice of the score estimator is worth"
REPLICATES = 1
SETTINGS = {"dim": 3, "length": 50, "particles": 20, "epochs": 300, "rate": 1e-2, "draws": 200}
QUICK = {"dim": 2, "length": 20, "epochs": 60, "rate": 3e-2, "draws": 20}


REFERENCE = "all weights, leave-one-out, no truncation"
WITHOUT = "without the entropy term"


class WithoutEntropy(OfflineEstimator):
    """The printed algorithm, whose outer term is ∇log q_T · H_T and not ∇log q_T · (H_T − log q_T).

    The difference, E[∇log q_T log q_T], is minus the gradient of the entropy of q_T, and is taken in closed form.
    """

    estimator: OfflineEstimator

    def estimate(self, p, q, ys, inputs, key):
        def entropy(q):
            last = jax.tree.map(lambda leaf: leaf[-1], filter_states(p, q, ys, inputs))
            return -q.marginal(last).frame().log_det

        found = self.estimator.estimate(p, q, ys, inputs, key)
        lost = eqx.filter_grad(entropy)(q)
        return found._replace(gradient=jax.tree.map(jnp.subtract, found.gradient, lost))


def estimators(N: int) -> dict[str, OfflineEstimator]:
    """By name. Each differs in one thing from the reference, or from the one with M = 2 where it says so."""
    return {
        REFERENCE: ReverseScore(RecursiveScore(N)),
        **{f"N = {n}": ReverseScore(RecursiveScore(n)) for n in (2, 5, 10, 50, 100)},
        "M = 2 backward draws": ReverseScore(RecursiveScore(N, BackwardSampling(2))),
        "M = 5 backward draws": ReverseScore(RecursiveScore(N, BackwardSampling(5))),
        "moment-corrected weights": ReverseScore(RecursiveScore(N, MomentCorrected())),
        "M = 2, same-sample baseline": ReverseScore(RecursiveScore(N, BackwardSampling(2), baseline=SameSample())),
        "M = 2, no baseline": ReverseScore(RecursiveScore(N, BackwardSampling(2), baseline=NoBaseline())),
        WITHOUT: WithoutEntropy(ReverseScore(RecursiveScore(N))),
        "autodiff through the weights": AutodiffThroughWeights(N),
        **{f"Δ = {k}": Scan(RecursiveScore(N, sensitivity=Truncated(k))) for k in (1, 2, 4, 8)},
    }


def case(settings: dict[str, Any], seed: int):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(11), seed), 4)
    p = LinearGaussian.random(settings["dim"], settings["dim"], key=keys[0])
    return p, p.simulate(settings["length"], key=keys[1])[1], Kalman.random(p, key=keys[2]), keys[3]


def learned(estimator: OfflineEstimator, settings: dict[str, Any], seed: int):
    p, ys, q, key = case(settings, seed)
    optimizer, epochs = optax.adam(settings["rate"]), settings["epochs"]
    return fit(p, q, ys, estimator=estimator, optimizer=optimizer, num_epochs=epochs, key=key)


@eqx.filter_jit
def exact(p, q, ys):
    """The ELBO per step, and its gradient as one vector."""
    found = Exact()(p, q, ys, key=jax.random.key(0))  # draws nothing
    return found.elbo / len(ys), flat(found)


def flat(estimate) -> jax.Array:
    return ravel_pytree(estimate.gradient)[0]


@cache
def optimum(settings: str, seed: int) -> BackwardFamily:
    """What the exact gradient ends with; the same for every choice, so learned once."""
    return learned(Exact(), json.loads(settings), seed).q


def measured(estimator: OfflineEstimator, settings: dict[str, Any], seed: int, learn: bool = True) -> dict[str, Any]:
    p, ys, start, key = case(settings, seed)
    keys = jax.random.split(jax.random.fold_in(key, 1), settings["draws"])
    draws = eqx.filter_jit(lambda q: jax.lax.map(lambda key: flat(estimator(p, q, ys, key=key)), keys, batch_size=20))
    scale = jnp.linalg.norm(exact(p, start, ys)[1])
    found: dict[str, Any] = {}
    places = {"start": start} | ({"end": optimum(json.dumps(settings), seed)} if learn else {})
    for place, q in places.items():
        errors = draws(q) - exact(p, q, ys)[1]
        found[place] = {
            "bias": float(jnp.linalg.norm(errors.mean(0)) / scale),
            "bias_error": float(jnp.sqrt((errors.var(0) / len(errors)).sum()) / scale),
            "error": float(jnp.sqrt((errors**2).sum(1).mean()) / scale),
        }
    if learn:
        fitted = learned(estimator, settings, seed)
        best, own = (float(exact(p, q, ys)[0]) for q in (Kalman.from_model(p), fitted.q))
        found |= {"gap": best - own, "says": float(fitted.elbo[-20:].mean()) - own}
    return found


def parts(settings: dict[str, Any], replicates: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    every = estimators(settings["particles"])
    for seed in range(replicates):
        for name, estimator in every.items():
            found[f"{name}, seed {seed}"] = lambda made=estimator, seed=seed: measured(made, settings, seed)
        for name in (REFERENCE, WITHOUT):
            one = settings | {"length": 1}
            found[f"{name}, T = 1, seed {seed}"] = lambda made=every[name], seed=seed, one=one: measured(
                made, one, seed, learn=False
            )
    return found


def names(content: dict[str, Any]) -> list[str]:
    every = list(estimators(content["settings"]["particles"]))
    return [*every, f"{REFERENCE}, T = 1", f"{WITHOUT}, T = 1"]


def markdown(content: dict[str, Any]) -> str:
    parts, rows = content["parts"], []
    for name in names(content):
        found = [parts[part] for part in parts if part.startswith(f"{name}, seed ")]
        if not found:
            rows.append([name, MISSING, "", "", "", "", ""])
            continue
        row = [name]
        for place in ("start", "end"):
            if place not in found[0]:
                row += ["", ""]
                continue
            bias, error, noise = (np.mean([f[place][k] for f in found]) for k in ("bias", "error", "bias_error"))
            row += [f"{100 * bias:.1f} ± {100 * noise:.1f} %", f"{100 * error:.0f} %"]
        gaps, says = over_seeds(parts, name, "gap"), over_seeds(parts, name, "says")
        row += [f"{np.mean(gaps):.4f}", f"{np.mean(says):+.3f}"] if gaps else ["", ""]
        rows.append(row)
    settings = content["settings"]
    note = (
        f"Linear-Gaussian, d = {settings['dim']}, T = {settings['length']}, N = {settings['particles']} where nothing "
        f"else is said, {settings['draws']} draws, {settings['epochs']} epochs. Errors are relative to the exact "
        "gradient at the start; *gap* is in nats per step below the log-likelihood; *says* is by how much the "
        "estimator's own ELBO, at the end, is above the exact one of the same q.\n\n"
    )
    header = ["choice", "bias at the start", "error", "bias at the end", "error", "gap", "says"]
    return note + table(header, rows)


def figure(content: dict[str, Any]):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 5.5), layout="constrained", sharey=True)
    parts = content["parts"]
    shown = [name for name in names(content) if over_seeds(parts, name, "gap")]
    y = np.arange(len(shown))[::-1]
    for place, color, marker in (("start", BLUE, "o"), ("end", ORANGE, "s")):
        bias = [np.mean(over_seeds(parts, name, place, "bias")) for name in shown]
        left.plot(bias, y, marker, color=color, markersize=4, label=f"at the {place}")
    left.set(xscale="log", xlabel="bias of the gradient, relative", yticks=y, yticklabels=shown)
    right.plot([max(1e-6, np.mean(over_seeds(parts, name, "gap"))) for name in shown], y, "d", color=BLUE, markersize=4)
    right.set(xscale="log", xlabel="nats per step below the log-likelihood, after learning")
    left.tick_params(axis="y", labelsize="small")
    if shown:
        left.legend(fontsize="small", frameon=False)
    for axes in (left, right):
        axes.grid(axis="y", linewidth=0.3)
    return drawn
