"""A small linear-Gaussian case with a q that is moderately off the optimum, and its exact gradient."""

from functools import cache, partial

import jax
import numpy as np

from backstream.estimators import Exact, Scan
from backstream.estimators.base import flatten
from backstream.families import Kalman
from backstream.models import LinearGaussian

D, DY, T = 2, 2, 20


@cache
def model():
    return LinearGaussian.random(D, DY, key=jax.random.key(0))


@cache
def observations(num_steps=T):
    return model().simulate(num_steps, key=jax.random.key(1))[1]


@cache
def family(offset=0.2):
    """λ = θ with normal noise of standard deviation `offset` added: 7 nats below the optimum over T = 20 steps."""
    lam, rebuild = flatten(Kalman.from_model(model()))
    return rebuild(lam + offset * jax.random.normal(jax.random.key(2), lam.shape))


def vector(gradient):
    return flatten(gradient)[0]


@cache
def exact(num_steps=T, offset=0.2):
    estimate = Exact()(model(), family(offset), observations(num_steps), key=jax.random.key(0))
    return float(estimate.elbo), np.asarray(vector(estimate.gradient))


def replicate(estimator, replicates, num_steps=T, offset=0.2, seed=0, batch=25):
    """ELBOs and gradients [replicates, P] of an online estimator run over the sequence with independent keys."""

    # Here the time goes into running: unlike elsewhere in the tests, LLVM should optimize.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
    def run(keys):
        def one(key):
            estimate = Scan(estimator)(model(), family(offset), observations(num_steps), key=key)
            return estimate.elbo, vector(estimate.gradient)

        return jax.lax.map(one, keys, batch_size=batch)

    elbos, gradients = run(jax.random.split(jax.random.key(seed), replicates))
    return np.asarray(elbos), np.asarray(gradients)
