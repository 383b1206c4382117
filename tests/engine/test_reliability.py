"""Short versions of `make soak`, and what else docs/reliability.md promises."""

import os
import pickle
import re
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as options
from hypothesis import strategies as st

from backstream.errors import InputError
from backstream.estimators import (
    BackwardSampling,
    FixedLag,
    Forward,
    MomentCorrected,
    RecursiveScore,
    Renewal,
    SelfNormalized,
    Truncated,
)
from backstream.families import Conjugate, Guided, Kalman, Recurrent
from backstream.learning import OnlineLearner
from backstream.learning.monitor import RECENT, Watch
from backstream.learning.online import _observed
from backstream.models import ChaoticRNN, LinearGaussian
from backstream.runs.checkpoints import Checkpoints, DamagedCheckpointError
from backstream.runs.config import read_config
from command import environment, here
from tests.soak import crashes, fuzz_readers, hostile_data

ROOT = Path(__file__).parents[2]


# ---- crashes ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_killed_and_damaged(tmp_path):
    """A kill, and a damaged checkpoint before the resume. The moment differs from run to run; what must come out does
    not. `make soak` fills disks too; in the tests, test_cli_bad_input does."""
    stream = crashes.Stream(tmp_path, 100, environment())
    here(*stream.command(tmp_path / "whole")[3:])
    found = crashes.killed(stream, kills=1, damage_every=1, seed=0)
    assert found["exit_code"] == 0 and found["same_bytes"]
    assert found["damaged_checkpoints"] == found["refused_by_name"] == 1


# ---- hostile data ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_hostile_data_does_not_poison_what_was_learned(monkeypatch):
    """One seed. With 500 rows of trouble and after: λ is finite, a burst is over within 50 rows, and the error on fresh
    data is at most 1.5 times that without trouble (measured: 1.1 at most)."""
    for name, value in {"warm": 1000, "rows": 800, "fresh": 200, "width": 4}.items():
        monkeypatch.setitem(hostile_data.SETTINGS, name, value)
    case = hostile_data.settled()
    clean = case.read(case.ys)
    for name, trouble in hostile_data.TROUBLES.items():
        found = hostile_data.judge(case, trouble._replace(length=min(trouble.length, 300)), clean)
        assert found["everything_finite"] and found["error_ratio"] < 1.5, (name, found)
        if "10⁶" in name:
            assert found["recovery"] < 50, (name, found)
    said = hostile_data.infinities(case)["said"]
    assert said == f"The observation in row {1000 + hostile_data.BEGIN}, column 1 is infinite: inf."


def test_a_sudden_fall_is_noticed_once_and_then_usual():
    """The monitor's memory, window by window: quiet, a fall by 1.2 nats, and quiet there. The seed is fixed: noise of
    0.02 nats, against a threshold of 0.1 and of five standard deviations."""
    noise = 0.02 * np.random.default_rng(0).normal(size=40)
    watch, fell, below_best = Watch.begin(None), [], []
    for window, reached in enumerate(np.where(np.arange(40) < 20, -1.0, -2.2) + noise):
        if watch.fell(float(reached), 0.1, 5.0):
            fell.append(window)
        if reached < watch.best - 1.0:
            below_best.append(window)
        watch = watch.next(None, float(reached))
    assert fell == [20] and 20 in below_best and below_best[-1] < 30
    assert watch.usual == pytest.approx(-2.2, abs=0.05)
    young = Watch(None, -1.0, -1.0, 0.0, RECENT - 1)
    assert not young.fell(-9.0, 0.1, 5.0)
    assert watch.next(None, float("nan")) == watch


# ---- fuzzing ---------------------------------------------------------------------------------------------------------
CASES = {"csv": 800, "jsonl": 800, "toml": 500, "metrics": 200, "checkpoint": 100, "parquet": 300}


@pytest.mark.parametrize(("kind", "cases"), CASES.items())
def test_readers_end_in_a_result_or_in_an_error_that_names_the_file(tmp_path, kind, cases):
    """The seed is fixed; `make soak` tries a hundred thousand."""
    found = fuzz_readers.fuzz(kind, cases, 1, tmp_path)
    assert found["failures"] == [] and found["read"] + found["refused"] == cases
    assert found["read"] > 0 and (found["refused"] > 0 or kind == "metrics")  # a line that makes no sense is left out


class Configuration(NamedTuple):
    """A model, a family, an estimator and observations with gaps, of any small size and either precision."""

    family: str
    dim: int
    obs_dim: int
    width: int
    particles: int
    draws: int
    depth: int
    estimator: str
    dtype: str
    missing: list[bool]

    def learner(self):
        """With the family to start from."""
        key = jax.random.key(0)
        if self.family == "kalman":
            p = LinearGaussian.random(self.dim, self.obs_dim, key=key)
            q = Kalman.random(p, key=key)
        else:
            p = ChaoticRNN.random(self.dim, key=key)
            q = {
                "conjugate": lambda: Conjugate.create(self.dim, self.dim, self.width, key=key),
                "guided": lambda: Guided.from_model(p),
                "recurrent": lambda: Recurrent.create(self.dim, self.dim, self.width, key=key),
            }[self.family]()
        estimator = {
            "window": FixedLag(self.depth, self.draws),
            "exact sensitivity": RecursiveScore(self.particles, MomentCorrected(), Forward(), objective=Renewal(0.8)),
            "truncated": RecursiveScore(self.particles, SelfNormalized(), Truncated(self.depth)),
            "sampled": RecursiveScore(self.particles, BackwardSampling(self.draws)),
        }[self.estimator]
        p, q = jax.tree.map(lambda leaf: leaf.astype(self.dtype) if eqx.is_inexact_array(leaf) else leaf, (p, q))
        return OnlineLearner(p, estimator, optax.adam(1e-3)), q

    def observation(self):
        size = self.obs_dim if self.family == "kalman" else self.dim
        return np.where(self.missing[:size], np.nan, 0.5).astype(self.dtype)


configurations = st.builds(
    Configuration,
    family=st.sampled_from(["kalman", "conjugate", "guided", "recurrent"]),
    dim=st.integers(1, 3),
    obs_dim=st.integers(1, 3),
    width=st.integers(1, 5),
    particles=st.integers(2, 5),
    draws=st.integers(2, 3),
    depth=st.integers(1, 3),
    estimator=st.sampled_from(["window", "exact sensitivity", "truncated", "sampled"]),
    dtype=st.sampled_from(["float32", "float64"]),
    missing=st.lists(st.booleans(), min_size=3, max_size=3),
)
EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "1"))


@pytest.mark.slow
@options(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configurations)
@example(Configuration("kalman", 2, 3, 1, 2, 2, 3, "window", "float64", [True, False, True]))
@example(Configuration("conjugate", 1, 1, 3, 3, 2, 1, "exact sensitivity", "float32", [True, True, True]))
@example(Configuration("guided", 3, 1, 5, 4, 3, 2, "truncated", "float64", [False, True, False]))
@example(Configuration("recurrent", 2, 1, 2, 5, 3, 1, "sampled", "float32", [False, False, False]))
def test_any_configuration_keeps_its_shapes_and_types(case):
    """A step gives back the state's own shapes and types, so that a stream never compiles anew or changes precision.
    Traced, not computed: values are for the conformance suite. The examples are the same each time: each family, each
    estimator and each precision once, and others, of which `make soak` tries 200."""
    y = case.observation()
    learner, q = case.learner()
    state = eqx.filter_eval_shape(lambda: learner.init(q, key=jax.random.key(1)))
    after, info = eqx.filter_eval_shape(lambda state: learner._read(state, jnp.asarray(y), None), state)
    assert shapes(after) == shapes(state)
    assert info.mean.shape == info.std.shape == (case.dim,)
    assert info.mean.dtype == info.elbo.dtype == case.dtype


def filled(shape, dtype, value):
    """An array of ones whose every other entry is the value, where its type has it."""
    array = np.ones(shape, dtype)
    array.reshape(-1)[::2] = value if array.dtype.kind == "f" else array.reshape(-1)[::2]
    return array


TYPES = ["float16", "float32", "float64", "int8", "uint64", "bool", "complex64", "str", "object", "M8[s]"]
ANYTHING = st.builds(
    filled,
    st.lists(st.integers(0, 3), max_size=3) | st.tuples(st.integers(1, 3), st.just(2)),
    st.sampled_from(TYPES),
    st.sampled_from([0.5, np.nan, np.inf, -np.inf]),
)
LINEAR = (lambda p: (p, Kalman.from_model(p)))(LinearGaussian.random(2, 2, key=jax.random.key(0)))


@options(max_examples=200, derandomize=True)
@given(ANYTHING, st.sampled_from(["float32", "float64"]))
def test_any_array_is_observations_or_is_refused_in_a_sentence(array, dtype):
    """What passes has rows of the model's columns, is finite or missing, and real. The examples are the same each
    time."""
    p, q = LINEAR
    p, q = jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, (p, q))
    good = array.dtype.kind in "biuf" and array.ndim == 2 and array.shape[1] == 2 and not np.isinf(array).any()
    if not good:
        with pytest.raises(ValueError, match=r"(?s)^(Observations must be|The observation in row) .*\.$"):
            _observed(p, q, array, None)
        return
    observed = _observed(p, q, array, None)
    assert observed.dtype == dtype and observed.shape == array.shape
    np.testing.assert_array_equal(observed, array.astype(dtype))


def test_what_a_learner_reads_fits_together():
    """A value beyond float32, inputs of another length, no row at all."""
    p, q = jax.tree.map(lambda leaf: leaf.astype("float32") if eqx.is_inexact_array(leaf) else leaf, LINEAR)
    learner = OnlineLearner(p, FixedLag(1, 1), optax.adam(1e-3))
    with pytest.raises(ValueError, match="row 0, column 1 is infinite"):
        learner.step(learner.init(q, key=jax.random.key(0)), np.array([0.0, 1e39]))
    state = eqx.filter_eval_shape(lambda: learner.init(q, key=jax.random.key(0)))._replace(q=q)
    with pytest.raises(ValueError, match="There are 4 rows of observations, but 3 of inputs"):
        learner.scan(state, np.zeros((4, 2)), np.zeros((3, 1)))
    after, infos = learner.scan(state, np.zeros((0, 2)))
    assert after is state and infos.mean.shape == (0, 2) and infos.elbo.dtype == "float32"


def shapes(tree):
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]


# ---- security and reproducibility ------------------------------------------------------------------------------------
def test_every_dependency_is_pinned_with_its_hash():
    lock = (ROOT / "requirements.lock").read_text()
    packages = re.split(r"^(?=\w)", lock, flags=re.M)[1:]  # before the first one stands a comment
    assert len(packages) > 30 and all("==" in package for package in packages)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", package) for package in packages)
    assert "://" not in lock
    assert "--require-hashes" in (ROOT / "tools" / "install.py").read_text()


def test_nothing_is_unpickled(tmp_path):
    """No module of ours imports pickle or the like, and a pickle in the place of a checkpoint's arrays is refused, not
    run."""
    forbidden = r"^\s*(import|from) (pickle|dill|cloudpickle|joblib|marshal|shelve)"
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(forbidden, path.read_text(), re.M), path

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    like = {"values": np.zeros(2)}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    folder = checkpoints.save(1, like, {})
    (folder / "state.bin").write_bytes(pickle.dumps(Trap()))
    sums = fuzz_readers._sums(folder)
    (folder / "SHA256SUMS").write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    with pytest.raises(DamagedCheckpointError, match=r"state\.bin is not as long"):
        checkpoints.load(1, like)
    assert not (tmp_path / "sprung").exists()


def test_paths_do_not_lead_out_of_a_run(tmp_path):
    """A sum for a file elsewhere is one for a file that is missing; a configuration has no key for a path to write."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    folder = checkpoints.save(1, {"values": np.zeros(2)}, {})
    (tmp_path / "secret").write_text("x")
    with open(folder / "SHA256SUMS", "a") as file:
        file.write(f"{'0' * 64}  ../../secret\n")
    with pytest.raises(DamagedCheckpointError, match=r"\.\./\.\./secret is missing"):
        checkpoints.about(1)
    for key in ("out", "path", "checkpoints"):
        (tmp_path / "some.toml").write_text(f"[saving]\n{key} = '../elsewhere'\n")
        with pytest.raises(InputError, match=f"unknown key '{key}'"):
            read_config(tmp_path / "some.toml")
