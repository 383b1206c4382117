"""Long streams in float32, with learning on: nothing may drift, grow or slow down.

    python -m tests.soak.long_streams

2 000 000 observations of a linear-Gaussian stream and 200 000 of a chaotic network, in float32 and, from the same
observations, in float64, with the window and with the recursion. After every twentieth of a stream: the ELBO per step
that the learner reported, the error or the closed-form ELBO on fresh data of what was learned, the largest number in
the estimator's carry, the memory of the process, and the time of the processor that an observation takes, in turns with
the same observations read by the learner as it was after the first twentieth: other work on the machine slows both.
"""

import gc
import itertools
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from backstream import metrics, posterior
from backstream.estimators import FixedLag, Forward, MomentCorrected, OnlineEstimator, RecursiveScore, Renewal
from backstream.families import BackwardFamily, Kalman
from backstream.learning import LearnerState, OnlineLearner
from backstream.learning.presets import falling
from backstream.models import ChaoticRNN, LinearGaussian, StateSpaceModel
from benchmarks.harness import Results, console, copied, exact_per_step
from reproduction.version_0_1.innovation import Innovation

RESULTS = Path(__file__).parent / "results" / "long_streams.json"
SETTINGS = {
    "linear": 2_000_000,
    "chaotic": 200_000,
    "parts": 20,
    "fresh": 2000,
    "dim": 2,
    "seed": 0,
}
ESTIMATORS: dict[str, OnlineEstimator] = {
    "window": FixedLag(8, 2),
    "recursion": RecursiveScore(8, MomentCorrected(), Forward(0.8), objective=Renewal(0.8)),
}


def case(name: str, dtype: str) -> tuple[StateSpaceModel, BackwardFamily, jax.Array]:
    """The model, the family to start from and the key of the data, the same in both precisions."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(11), SETTINGS["seed"]), 3)
    with jax.enable_x64(False):
        if name == "linear":
            p = LinearGaussian.random(SETTINGS["dim"], SETTINGS["dim"], low=0.6, high=0.9, key=keys[0])
            q = Kalman.random(p, key=keys[1])
        else:
            p = ChaoticRNN.random(SETTINGS["dim"], key=keys[0])
            q = Innovation.from_model(p, 8, key=keys[1])

    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf

    p, q = jax.tree.map(cast, (p, q))
    return p, q, keys[2]


def observations(name: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stream, and fresh states and observations to judge by: made in float32, so that both precisions read the
    same numbers."""
    with jax.enable_x64(False):
        p, _, key = case(name, "float32")
        key_stream, key_fresh = jax.random.split(key)
        fresh = p.simulate(SETTINGS["fresh"], key=key_fresh)
        return np.asarray(p.simulate(count, key=key_stream)[1]), np.asarray(fresh[0]), np.asarray(fresh[1])


def judged(name: str, q: BackwardFamily, states: np.ndarray, ys: np.ndarray) -> float:
    """Nats per step below the log-likelihood, or the error of the smoothed states; always computed in float64."""
    with jax.enable_x64(True):
        p, _, _ = case(name, "float64")
        q = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64") if eqx.is_inexact_array(leaf) else leaf, q)
        if name == "linear":
            best, own = (exact_per_step(p, each, ys.astype("float64")) for each in (Kalman.from_model(p), q))
            return float(best - own)
        return metrics.delta(posterior.smooth(p, q, ys.astype("float64")).mean, states)


def memory() -> float:
    """Of this process, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def paces(learner: OnlineLearner, young: LearnerState, old: LearnerState, ys: np.ndarray) -> tuple[float, float]:
    """Processor seconds per observation of the old learner, the least of three turns, and its ratio to the young's."""
    least = [float("inf"), float("inf")]
    for _, which in itertools.product(range(3), range(2)):
        state = copied((young, old)[which])
        began = time.process_time()
        learner.scan(state, ys)
        least[which] = min(least[which], (time.process_time() - began) / len(ys))
    return least[1], least[1] / least[0]


def run(name: str, method: str, dtype: str) -> list[dict[str, float]]:
    count, parts = SETTINGS[name], SETTINGS["parts"]
    ys, states, fresh = observations(name, count)
    with jax.enable_x64(dtype == "float64"):
        p, q, key = case(name, dtype)
        optimizer = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(falling(1e-3)))
        learner = OnlineLearner(p, ESTIMATORS[method], optimizer, block=1000)
        state, _ = learner.step(learner.init(q, key=key), ys[0].astype(dtype))
        state, _ = learner.scan(state, ys[1:2].astype(dtype))
        rows, each, young = [], count // parts, None
        for part in range(parts):
            block = ys[max(2, part * each) : (part + 1) * each].astype(dtype)
            elbo, refused = 0.0, 0
            for start in range(0, len(block), 10_000):
                state, infos = learner.scan(state, block[start : start + 10_000])
                elbo, refused = elbo + float(np.sum(infos.elbo, dtype="float64")), refused + int(np.sum(infos.refused))
            young = copied(state) if young is None else young
            seconds, pace = paces(learner, young, state, block[:1000])
            sizes = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(state.carry) if eqx.is_inexact_array(leaf)]
            row = {
                "observations": int(state.t),
                "elbo": elbo / len(block),
                "fresh": judged(name, state.average, states, fresh),
                "carry": max(sizes),
                "megabytes": memory(),
                "microseconds": 1e6 * seconds,
                "pace": pace,
                "refused": refused,
            }
            rows.append({key: float(f"{value:.7g}") for key, value in row.items()})
            console.print("  ".join(f"{k} {v:g}" for k, v in rows[-1].items()), style="dim")
    return rows


def main() -> None:
    results = Results(RESULTS, "python -m tests.soak.long_streams", SETTINGS)
    for method, name, dtype in itertools.product(ESTIMATORS, ("linear", "chaotic"), ("float32", "float64")):
        results.run(f"{name}, {method}, {dtype}", lambda part=(name, method, dtype): run(*part))


if __name__ == "__main__":
    main()
