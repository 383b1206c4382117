"""A linear-Gaussian stream, d = 10, 500 000 observations in float32: the setting of the paper's Fig. 2.

    python -m experiments.linear_stream

Judged on fresh data: the closed-form ELBO per step against the exact log-likelihood per step, and the error of the
smoothed means against that of the Kalman smoother.
"""

import jax

from backstream.families import Kalman
from backstream.learning import default_learner
from backstream.models import LinearGaussian

from .harness import LinearJudge, Results, console, learn

SETTINGS = {"dim": 10, "observations": 500_000, "fresh": 2000, "every": 25_000, "seed": 0}


def run() -> dict:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), SETTINGS["seed"]), 5)
    p = LinearGaussian.random(SETTINGS["dim"], SETTINGS["dim"], low=0.6, high=0.9, key=keys[0])
    ys = p.simulate(SETTINGS["observations"] + 2, key=keys[1])[1]
    judge = LinearJudge(p, SETTINGS["fresh"], key=keys[2])
    q = Kalman.random(p, key=keys[3])
    return {
        "limit": judge.limit(),
        "curve": learn(default_learner(p), q, ys, judge.errors, SETTINGS["every"], key=keys[4]),
    }


def main() -> None:
    part = Results("linear_stream", SETTINGS).run("default", run)
    last, limit = part["curve"][-1], part["limit"]
    console.print(
        f"ELBO {last['fresh_elbo']:.4f}, log-likelihood {limit['fresh_elbo']:.4f} nats per step; "
        f"smoothing RMSE {last['smoothing']:.4f}, Kalman smoother {limit['smoothing']:.4f}"
    )


if __name__ == "__main__":
    main()
