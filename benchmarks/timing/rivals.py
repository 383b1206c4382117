"""Other estimators of the same, beside ours: PaRIS, and the filters of cuthbert."""

from functools import partial
from typing import Any

import cuthbert
import jax
import jax.numpy as jnp
import numpy as np
from cuthbert.gaussian import kalman
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import systematic

from backstream import metrics, posterior
from backstream.estimators import AdditiveSmoother, MomentCorrected, Quadratic, SelfNormalized, moments
from backstream.families import Kalman
from backstream.models import LinearGaussian
from backstream.models.density import log_emission, log_transitions

from .programs import KEY, Program, compared


def paris(p: LinearGaussian, ys, N: int, M: int = 2) -> Program:
    """PaRIS (Olsson and Westerborn, 2017) for Σ x_s, on a bootstrap filter with multinomial resampling.

    Ours: the one of particles 0.3 does not run with NumPy 2. Backward indices come from all N² weights, by inversion.
    """

    def inverted(log_w, uniforms):
        cumulative = jnp.cumsum(jax.nn.softmax(log_w, axis=-1), axis=-1)
        index = jax.vmap(partial(jnp.searchsorted, side="right"))(cumulative, uniforms * cumulative[:, -1:])
        return jnp.minimum(index, N - 1)

    def run(ys, key):
        weigh = jax.vmap(lambda x, y: log_emission(p, x, y), (0, None))

        def step(carry, scanned):
            x, log_w, tau = carry
            t, y = scanned
            keys = jax.random.split(jax.random.fold_in(key, t), 3)
            ancestors = inverted(log_w[None], jax.random.uniform(keys[0], (1, N)))[0]
            move = jax.vmap(lambda x, key: p.transition(x).sample(key))
            moved = move(x[ancestors], jax.random.split(keys[1], N))
            backward = inverted(log_w + log_transitions(p, x, moved), jax.random.uniform(keys[2], (N, M)))
            tau = sum(tau[backward[:, k]] for k in range(M)) / M + moved
            return (moved, weigh(moved, y), tau), None

        x = p.prior().sample(jax.random.fold_in(key, 0), (N,))
        start = (x, weigh(x, ys[0]), x)
        (_, log_w, tau), _ = jax.lax.scan(step, start, (jnp.arange(1, len(ys)), ys[1:]))
        return jax.nn.softmax(log_w) @ tau

    return Program(run, ys, KEY)


def additive(p, q, ys, N: int, weights) -> Program:
    smoother = AdditiveSmoother(moments(), N, weights)

    def run(ys, key):
        def step(carry, scanned):
            t, y = scanned
            carry, total = smoother.step(p, q, carry, y, key=jax.random.fold_in(key, t))
            return carry, total["x"]

        return jax.lax.scan(step, smoother.init(p, q), (jnp.arange(len(ys)), ys))[1][-1]

    return Program(run, ys, KEY)


def smoothing(settings: dict[str, Any]) -> dict[str, Any]:
    """E[Σ x_s | y], online, at its exact q: the error per observation, root mean square, and the time."""
    chosen, d = settings["smoothing"], settings["dim"]
    p = LinearGaussian.random(d, d, low=0.6, high=0.9, key=KEY)
    ys = p.simulate(chosen["length"], key=KEY)[1]
    q = Kalman.from_model(p)
    exact = np.asarray(posterior.smooth(p, q, ys).mean).sum(0)
    N = chosen["ours"]
    runs = {
        f"ours, plain weights, N = {N}": additive(p, q, ys, N, SelfNormalized()),
        f"ours, corrected weights, N = {N}": additive(p, q, ys, N, MomentCorrected(Quadratic(cross=True))),
    }
    runs |= {f"PaRIS, N = {n}": paris(p, ys, n) for n in chosen["paris"]}
    times = compared(runs, 3, len(ys))
    for name, program in runs.items():
        keys = jax.random.split(KEY, chosen["replicates"])
        errors = np.array([program.compiled(ys, key) for key in keys]) - exact
        times[name]["error"] = float(np.sqrt((errors**2).mean())) / len(ys)
    return {"times": times}


def filtering(settings: dict[str, Any]) -> dict[str, Any]:
    """Filtering alone, against cuthbert's Kalman and bootstrap particle filters, N = 1000."""
    d, N = settings["dim"], 1000
    p = LinearGaussian.random(d, d, low=0.6, high=0.9, key=KEY)
    ys = p.simulate(settings["length"], key=KEY)[1]
    q = Kalman.from_model(p)
    mean0, Q0, A, B, Q, R = p.dense()
    zero, roots = jnp.zeros(d), [jnp.linalg.cholesky(M) for M in (Q0, Q, R)]

    def kalman_filter(ys):
        def dynamics(inputs):
            first = inputs[0] == 0
            return jnp.where(first, jnp.eye(d), A), zero, jnp.where(first, 0.0, roots[1])

        engine = kalman.build_filter(mean0, roots[0], dynamics, lambda inputs: (B, zero, roots[2], inputs[1]))
        return cuthbert.filter(engine, (jnp.arange(len(ys)), ys), engine.init_prepare()).mean

    def bootstrap(ys):
        engine = particle_filter.build_filter(
            init_sample=lambda key: p.prior().sample(key),
            propagate_sample=lambda key, x, inputs: p.transition(x).sample(key),
            log_potential=lambda before, x, inputs: log_emission(p, x, inputs),
            n_filter_particles=N,
            resampling_fn=systematic.resampling,
        )
        return cuthbert.filter(engine, ys, engine.init_prepare(key=KEY), key=KEY).particles

    runs = {
        "cuthbert, Kalman": Program(kalman_filter, ys),
        "ours, Kalman family": Program(lambda ys: posterior.filter(p, q, ys).mean, ys),
        "cuthbert, particles": Program(bootstrap, ys),
        "ours, particles": lambda: metrics.particle_limit(p, ys, None, N, 1, key=KEY).filtered,
    }
    return {"times": compared(runs, settings["offline_rounds"], len(ys))}
