"""One suite that every combination of model, family, estimator, weights, baseline and sensitivity passes."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.estimators import (
    AcceptReject,
    AutodiffThroughWeights,
    BackwardSampling,
    BackwardTrajectories,
    Exact,
    FixedLag,
    Forward,
    Frozen,
    KernelRidge,
    LeaveOneOut,
    MomentCorrected,
    Network,
    NoBaseline,
    RecursivePathwise,
    RecursiveScore,
    Regression,
    Renewal,
    SameSample,
    Scan,
    SelfNormalized,
    Truncated,
    WindowAverage,
    WindowIncrement,
    moments,
)
from backstream.families import Conjugate, Guided, Kalman, PerStep, Recurrent
from backstream.models import ChaoticRNN, LinearGaussian, StochasticVolatility

KEY = jax.random.key(0)


def models(dtype):
    linear = LinearGaussian.random(2, 2, key=KEY)
    volatility = StochasticVolatility(jnp.zeros(2), jnp.full(2, 0.95), jnp.full(2, 0.2))
    return cast({"linear": linear, "chaotic": ChaoticRNN.random(2, key=KEY), "volatility": volatility}, dtype)


def families(dtype):
    p = models(dtype)
    made = {
        "kalman": Kalman.random(p["linear"], key=KEY),
        "conjugate": Conjugate.create(2, 2, width=4, key=KEY),
        "guided": Guided.from_model(p["chaotic"], dtype=dtype),
        "recurrent": Recurrent.create(2, 2, width=4, key=KEY),
        "per_step": PerStep.create(2, 2, width=4, key=KEY),
    }
    return cast(made, dtype)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


WEIGHTS = [SelfNormalized(), BackwardSampling(2), AcceptReject(2, 4), MomentCorrected()]
BASELINES = [LeaveOneOut(), SameSample(), NoBaseline()]
SENSITIVITIES = [Forward(), Truncated(2)]
# Each axis is crossed with the default of the others, and each pair of weights, baseline and sensitivity is met.
ESTIMATORS = [RecursiveScore(3, *parts) for parts in product(WEIGHTS, SENSITIVITIES, BASELINES)]
EXTRAS = [
    RecursiveScore(3, objective=Renewal(0.8), learn_model=True, functional=moments()),
    RecursiveScore(3, BackwardSampling(2), learn_model=True, functional=moments()),
    RecursiveScore(3, MomentCorrected(), objective=Renewal(0.5), learn_model=True, functional=moments()),
    FixedLag(2, 2, WindowAverage(), learn_model=True),
    FixedLag(2, 2, WindowIncrement()),
    RecursivePathwise(4, Forward(0.8), Renewal(0.8), learn_model=True),
    Regression(4, KernelRidge(), learn_model=True),
    Regression(4, Network(width=4, steps=3)),
]
CASES = [("linear", "kalman", e) for e in ESTIMATORS]
CASES += [
    (m, f, e) for m in ("linear", "chaotic", "volatility") for f in ("conjugate", "recurrent") for e in EXTRAS[:1]
]
CASES += [("chaotic", f, RecursiveScore(3, w)) for f in ("conjugate", "guided", "recurrent") for w in WEIGHTS]
CASES += [("chaotic", "conjugate", e) for e in EXTRAS[1:]]
CASES += [("chaotic", "guided", e) for e in (RecursiveScore(3, MomentCorrected(), Truncated(2)), *EXTRAS[3:6])]
CASES += [("chaotic", "per_step", RecursiveScore(3, w, Frozen())) for w in WEIGHTS]
CASES += [("chaotic", "per_step", Regression(4, KernelRidge(), Frozen()))]
# The rest is covered with the default sensitivity and baseline: vmap doubles what has to be compiled.
UNDER_VMAP = [case for case in CASES if not isinstance(case[2], RecursiveScore)]
UNDER_VMAP += [case for case in CASES if case[1] in ("guided", "per_step")]


def label(case):
    model, family, e = case
    parts = [getattr(e, name, None) for name in ("weights", "sensitivity", "baseline", "objective")]
    return "-".join([model, family, type(e).__name__, *(type(part).__name__ for part in parts if part is not None)])


def is_slow(case):
    """Whether a case is left to `make test-slow`: where more than one part differs from the default, where a family has
    been met with another model, and where compiling takes longest."""
    model, family, e = case
    if not isinstance(e, RecursiveScore):
        return family == "guided" or isinstance(e, FixedLag)
    parts, usual = (e.weights, e.sensitivity, e.baseline), (SelfNormalized, Forward, LeaveOneOut)
    differ = sum(not isinstance(part, kind) for part, kind in zip(parts, usual, strict=True))
    met = family in ("conjugate", "recurrent") and (model != "chaotic" or (family == "recurrent" and differ > 0))
    return differ > 1 or met or family == "guided"


TIERED = [pytest.param(case, marks=pytest.mark.slow if is_slow(case) else ()) for case in CASES]


@pytest.mark.parametrize("case", TIERED, ids=label)
def test_conforms(case):
    """float32 stays float32; one compilation; a carry of fixed shapes; the same seed gives the same bits; vmap works;
    missing rows and coordinates are finite."""
    model, family, estimator = case
    dtype = jnp.float32
    p, q = models(dtype)[model], families(dtype)[family]
    ys = np.array(p.simulate(6, key=KEY)[1], np.float32)
    ys[2] = np.nan
    ys[4, 0] = np.nan
    compilations = []

    @jax.jit
    def step(carry, y, key):
        compilations.append(1)
        return estimator.step(p, q, carry, y, key=key)

    def run(key):
        carry = estimator.init(p, q)
        shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry)
        for t in range(len(ys)):
            carry, estimate = step(carry, ys[t], jax.random.fold_in(key, t))
            assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry) == shapes
            for name, leaf in jax.tree_util.tree_leaves_with_path((estimate.total, estimate.increment)):
                assert leaf.dtype == dtype, name
                assert jnp.isfinite(leaf).all(), (t, name)
        return estimate

    one, again, other = run(KEY), run(KEY), run(jax.random.key(1))
    assert len(compilations) == 1
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True)
    )
    assert one.total.elbo != other.total.elbo
    if case not in UNDER_VMAP:
        return
    # An inner optimization in float32 amplifies the rounding by which the two programs differ.
    tolerance = 5e-2 if isinstance(estimator, Regression) else 2e-3
    keys = jax.random.split(KEY, 2)
    y = jnp.asarray(ys)
    both = jax.jit(jax.vmap(lambda carry, y, key: estimator.step(p, q, carry, y, key=key), (0, None, 0)))
    start = estimator.init(p, q)
    carries, _ = both(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start), y[0], keys)
    _, batch = both(carries, y[1], keys)
    carry, _ = step(start, ys[0], keys[1])
    _, alone = step(carry, ys[1], keys[1])
    for a, b in zip(jax.tree.leaves(batch.total), jax.tree.leaves(alone.total), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=tolerance, atol=tolerance)


OFFLINE = [Exact(), BackwardTrajectories(2), AutodiffThroughWeights(3), Scan(RecursiveScore(3))]


@pytest.mark.parametrize("estimator", OFFLINE, ids=lambda e: type(e).__name__)
def test_offline_estimators_conform(estimator):
    """float32 stays float32; finite with missing rows and coordinates; same seed same bits; vmap over keys works."""
    p, q = models(jnp.float32)["linear"], families(jnp.float32)["kalman"]
    ys = np.array(p.simulate(6, key=KEY)[1], np.float32)
    ys[2] = np.nan
    ys[4, 0] = np.nan
    observed = jnp.asarray(ys)
    run = jax.jit(lambda key: estimator(p, q, observed, key=key))
    one, again = run(KEY), run(KEY)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True):
        assert a.dtype == jnp.float32 and jnp.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    assert jax.tree.structure(one.gradient) == jax.tree.structure(eqx.filter(q, eqx.is_inexact_array))
    batch = jax.vmap(run)(jax.random.split(KEY, 2))
    alone = run(jax.random.split(KEY, 2)[1])
    for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=2e-3, atol=2e-3)
