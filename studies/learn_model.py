"""The model learned from the stream too: θ and λ together, against recursive maximum likelihood.

    python -m studies.learn_model

A linear-Gaussian stream with two states and two columns. A, B and R are learned, Q is held (a rescaling of the states
cannot be seen). Recursive maximum likelihood is the exact gradient of the log-likelihood by a Kalman filter that
carries its own derivatives. Both use Adam at the same rate and average their iterates alike. They are judged by what
can be seen: the exact log-likelihood per step of fresh data, the eigenvalues of A, and the autocovariances of y.
"""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from backstream.estimators import Exact, MomentCorrected, Quadratic, RecursiveScore, Renewal
from backstream.families import Kalman
from backstream.learning import Averaging, OnlineLearner
from backstream.learning.parameters import ModelParameters
from backstream.models import LinearGaussian
from benchmarks.harness import Results, console

RESULTS = Path(__file__).parent / "results" / "learn_model.json"
SETTINGS = {"observations": 60_000, "fresh": 20_000, "rate": 1e-3, "particles": 30, "gamma": 0.9, "seed": 0}
TRUTH = {
    "mean0": np.zeros(2),
    "Q0": np.full(2, 0.5),
    "A": np.array([[0.95, 0.1], [-0.1, 0.85]]),
    "B": np.array([[1.0, 0.3], [-0.2, 1.0]]),
    "Q": np.full(2, 0.3),
    "R": np.full(2, 0.4),
}
START = {"A": 0.5 * np.eye(2), "B": np.eye(2), "R": np.ones(2)}
AVERAGING = Averaging()


def free(p: LinearGaussian) -> LinearGaussian:
    """An equinox filter: what is learned."""
    nothing = jax.tree.map(lambda _: False, p)
    return eqx.tree_at(lambda m: (m.A, m.B, m.emission_scale), nothing, (True, True, True))


def learned(p: LinearGaussian, ys, key) -> LinearGaussian:
    """θ and λ by the recursion."""
    weights = MomentCorrected(Quadratic(cross=True))
    estimator = RecursiveScore(SETTINGS["particles"], weights, objective=Renewal(SETTINGS["gamma"]), learn_model=True)
    optimizer = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(SETTINGS["rate"]))
    learner = OnlineLearner(p, estimator, optimizer, model_optimizer=optimizer, free=free(p), averaging=AVERAGING)
    state, _ = learner.step(learner.init(Kalman.from_model(p), key=key), ys[0])
    state, _ = learner.scan(state, ys[1:])
    return learner.current_model(state)


def maximum_likelihood(p: LinearGaussian, ys) -> LinearGaussian:
    """Recursive maximum likelihood: the Kalman filter, its derivative in θ, and a step along each increment."""
    parameters = ModelParameters(p, free(p))
    raw, restore = ravel_pytree(parameters.unconstrained())
    first = p.dense()
    state, unravel = ravel_pytree((first.mean0, first.Q0))
    optimizer = optax.chain(optax.clip_by_global_norm(100.0), optax.adam(SETTINGS["rate"]))

    def increment(raw, state, y):
        """log p(y_t | y_{0:t-1}), and the prediction of X_{t+1}."""
        m, (mean, cov) = parameters.model(restore(raw)).dense(), unravel(state)
        innovation, S = y - m.B @ mean, m.B @ cov @ m.B.T + m.R
        gain = jnp.linalg.solve(S, m.B @ cov).T
        mean, cov = m.A @ (mean + gain @ innovation), m.A @ (cov - gain @ m.B @ cov) @ m.A.T + m.Q
        value = -0.5 * (innovation @ jnp.linalg.solve(S, innovation) + jnp.linalg.slogdet(2 * jnp.pi * S)[1])
        return value, ravel_pytree((mean, cov))[0]

    def step(loop, scanned):
        raw, average, optimizer_state, state, J = loop
        t, y = scanned
        (g, g_state), (moved, moved_state) = jax.jacrev(increment, argnums=(0, 1))(raw, state, y)
        updates, optimizer_state = optimizer.update(-(g + g_state @ J), optimizer_state)
        state = increment(raw, state, y)[1]
        raw = raw + updates
        return (raw, AVERAGING.update(average, raw, t), optimizer_state, state, moved + moved_state @ J), None

    start = (raw, raw, optimizer.init(raw), state, jnp.zeros((len(state), len(raw))))
    (_, average, *_), _ = jax.lax.scan(step, start, (jnp.arange(len(ys)), ys))
    return parameters.model(restore(average))


def visible(p: LinearGaussian, fresh) -> dict:
    """What of a model can be seen."""
    m = p.dense()
    covariance = np.zeros((2, 2))
    for _ in range(2000):
        covariance = m.A @ covariance @ m.A.T + m.Q
    lags = [np.linalg.matrix_power(np.asarray(m.A), k) @ covariance for k in range(4)]
    autocovariances = [np.asarray(m.B @ c @ m.B.T + (m.R if k == 0 else 0)) for k, c in enumerate(lags)]
    eigenvalues = np.linalg.eigvals(np.asarray(m.A))
    return {
        "log_likelihood": float(Exact()(p, Kalman.from_model(p), fresh, key=jax.random.key(0)).elbo) / len(fresh),
        "eigenvalues": sorted([[float(e.real), float(abs(e.imag))] for e in eigenvalues]),
        "autocovariances": np.round(autocovariances, 4).tolist(),
        "R": np.round(np.asarray(m.R), 4).tolist(),
    }


def main() -> None:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(7), SETTINGS["seed"]), 3)
    truth = LinearGaussian(**TRUTH)
    start = LinearGaussian(**(TRUTH | START))
    ys = truth.simulate(SETTINGS["observations"], key=keys[0])[1]
    fresh = truth.simulate(SETTINGS["fresh"], key=keys[1])[1]
    results = Results(RESULTS, "python -m studies.learn_model", SETTINGS)
    parts = {
        "truth": lambda: visible(truth, fresh),
        "start": lambda: visible(start, fresh),
        "recursive maximum likelihood": lambda: visible(maximum_likelihood(start, ys), fresh),
        "learned with λ": lambda: visible(learned(start, ys, keys[2]), fresh),
    }
    for name, compute in parts.items():
        part = results.run(name, compute)
        console.print(f"{name}: {part['log_likelihood']:.4f} nats per step, eigenvalues {part['eigenvalues']}")


if __name__ == "__main__":
    main()
