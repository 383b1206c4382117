"""A slowly mixing linear-Gaussian stream, A = 0.999: the recursion against windows of at most 32 observations.

    python -m studies.slow_stream

d = 1, float64, 100 000 observations, five seeds, and the rate falls. What is compared is how many nats per step the
averaged λ ends below the log-likelihood on 2 000 fresh observations, both in closed form. With all quadratic features
the recursion has no Monte Carlo error here; with γ = 1 its carry, made under the λ of long ago, is what is left.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from backstream.estimators import Forward, MomentCorrected, Quadratic, RecursiveScore, Renewal
from backstream.families import Kalman
from backstream.learning import OnlineLearner
from backstream.learning.presets import falling
from backstream.models import LinearGaussian
from benchmarks.harness import LinearJudge, Results, console, learn, over_seeds, spread

from .recursion_or_window import adam, window

RESULTS = Path(__file__).parent / "results" / "slow_stream.json"
SETTINGS = {"slow": 0.999, "observations": 100_000, "fresh": 2000, "every": 20_000, "seeds": 5, "rate": 1e-3}
WEIGHTS = MomentCorrected(Quadratic(cross=True))
CHOICES = {
    "recursion N=20, gamma=0.8": RecursiveScore(20, WEIGHTS, Forward(0.8), objective=Renewal(0.8)),
    "recursion N=20, gamma=1": RecursiveScore(20, WEIGHTS),
    **{f"window {lag}": window(lag) for lag in (4, 8, 16, 32)},
}


def gap(choice: str, seed: int) -> dict[str, float]:
    """Nats per step below the log-likelihood, on fresh data."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(15), seed), 3)
    A, one = SETTINGS["slow"], jnp.ones(1)
    scale = jnp.full(1, (1 - A**2) ** 0.5)
    p = LinearGaussian(jnp.zeros(1), one, jnp.full(1, A), jnp.ones((1, 1)), scale, one)
    q = Kalman.from_model(LinearGaussian(jnp.zeros(1), one, jnp.full(1, 0.9), jnp.ones((1, 1)), 4 * scale, one))
    judge = LinearJudge(p, SETTINGS["fresh"], key=keys[0])
    ys = np.asarray(p.simulate(SETTINGS["observations"] + 2, key=keys[1])[1])
    learner = OnlineLearner(p, CHOICES[choice], adam(falling(SETTINGS["rate"])))

    def below(q):
        return {"gap": judge.limit()["fresh_elbo"] - judge.errors(q)["fresh_elbo"]}

    curve = learn(learner, q, ys, below, SETTINGS["every"], key=keys[2])
    return {"gap": curve[-1]["gap"], "seconds": curve[-1]["seconds"], "refused": curve[-1]["refused"]}


def main() -> None:
    with jax.enable_x64(True):
        results = Results(RESULTS, "python -m studies.slow_stream", SETTINGS)
        for seed in range(SETTINGS["seeds"]):
            for choice in CHOICES:
                results.run(f"{choice}, seed {seed}", lambda choice=choice, seed=seed: gap(choice, seed))
    for choice in CHOICES:
        gaps = over_seeds(results.content["parts"], choice, "gap")
        console.print(f"{choice}: {spread(gaps, 3, 1e6)} millionths of a nat per step")


if __name__ == "__main__":
    main()
