"""A chaotic RNN stream, d = 10, 100 000 observations, five seeds: how close to the particle limit, and does it last?

    python -m experiments.chaotic_stream

The setting of the paper's Table 3 (smoothing 0.278, filtering 0.305). Each seed draws its own model, stream, fresh
sequence, family and samples. Both the learner's default and the recursion are run.
"""

import jax
import optax

from backstream.estimators import Forward, MomentCorrected, RecursiveScore, Renewal
from backstream.families import Innovation
from backstream.learning import OnlineLearner, default_learner
from backstream.learning.defaults import falling
from backstream.models import ChaoticRNN

from .harness import Judge, Results, console, learn

SETTINGS = {"dim": 10, "observations": 100_000, "fresh": 1000, "seeds": [0, 1, 2, 3, 4], "every": 5000, "width": 100}


def recursion(p):
    estimator = RecursiveScore(100, MomentCorrected(), Forward(0.9), objective=Renewal(0.9))
    return OnlineLearner(p, estimator, optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(1e-3))))


LEARNERS = {"default": default_learner, "recursion": recursion}


def case(seed: int):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), 5)
    p = ChaoticRNN.random(SETTINGS["dim"], key=keys[0])
    return p, Judge(p, SETTINGS["fresh"], key=keys[2]), keys


def run(name: str, seed: int) -> list[dict]:
    p, judge, keys = case(seed)
    ys = p.simulate(SETTINGS["observations"] + 2, key=keys[1])[1]
    q = Innovation.from_model(p, width=SETTINGS["width"], key=keys[3])
    return learn(LEARNERS[name](p), q, ys, judge.errors, SETTINGS["every"], key=keys[4])


def main() -> None:
    results = Results("chaotic_stream", SETTINGS)
    for name in LEARNERS:
        for seed in SETTINGS["seeds"]:
            limit = results.run(f"limit, seed {seed}", lambda seed=seed: case(seed)[1].limit())
            last = results.run(f"{name}, seed {seed}", lambda name=name, seed=seed: run(name, seed))[-1]
            above = [100 * (last[k] / limit[k] - 1) for k in ("smoothing", "filtering")]
            console.print(f"{name}, seed {seed}: {above[0]:+.1f} % smoothing, {above[1]:+.1f} % filtering")


if __name__ == "__main__":
    main()
