"""Checkpoints: a restored learner continues bit for bit, damage is refused by name, and what differs is named."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import backstream.runs.checkpoints as module
from backstream.errors import InputError, RunError
from backstream.estimators import RecursiveScore, Renewal
from backstream.families import Conjugate, Recurrent
from backstream.learning import Monitor, OnlineLearner, WatchedLearner
from backstream.models import ChaoticRNN, StochasticVolatility
from backstream.runs.checkpoints import Checkpoints, DamagedCheckpointError, digest

KEY = jax.random.key(3)


@cache  # one learner, compiled once
def watched(dim=2, width=4, learn_model=False):
    p = ChaoticRNN.random(dim, key=jax.random.key(0))
    estimator = RecursiveScore(8, objective=Renewal(0.8), learn_model=learn_model)
    learner = OnlineLearner(p, estimator, optax.adam(1e-2), optax.adam(1e-3) if learn_model else None, block=64)
    q = Conjugate.create(dim, dim, width, key=jax.random.key(1))
    return WatchedLearner(learner, Monitor(window=40, num_trajectories=4)), q


def observations(n):
    """With a missing row and a missing coordinate."""
    ys = np.array(ChaoticRNN.random(2, key=jax.random.key(0)).simulate(300, key=jax.random.key(2))[1])
    ys[7], ys[200, 1] = np.nan, np.nan
    return ys[:n]


def blank(**options):
    made, q = watched(**options)
    return made.blank(q, np.zeros((1, options.get("dim", 2))), key=KEY)


def saved(folder, positions=(1,), keep=3):
    made, q = watched()
    state, _ = made.begin(q, observations(1), key=KEY)
    checkpoints = Checkpoints(folder, keep)
    for position in positions:
        checkpoints.save(position, state, {"position": position})
    return checkpoints, state


RESUME = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import test_checkpoints as t
from backstream.runs.checkpoints import Checkpoints, digest
made, q = t.watched(learn_model=True)
position, state, _ = Checkpoints(sys.argv[1]).newest(t.blank(learn_model=True))
state, infos, reports = made.read(state, t.observations(300)[position:])
print(digest((state, infos, [report[:-1] for report in reports])))
"""


@pytest.mark.slow
def test_a_restored_learner_continues_bit_for_bit(tmp_path):
    """300 observations; against 150, a checkpoint in the middle of a window, and 150 more in another process. θ is
    learned too, so that every part of the state is in use."""
    made, q = watched(learn_model=True)
    ys = observations(300)
    state, _ = made.begin(q, ys[:1], key=KEY)
    state, _, before = made.read(state, ys[1:150])
    assert [report.t for report in before] == [41, 81, 121]
    Checkpoints(tmp_path).save(150, state, {})
    state, infos, reports = made.read(state, ys[150:])
    assert [report.t for report in reports] == [161, 201, 241, 281]
    cache = jax.config.jax_compilation_cache_dir
    ended = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
    )
    assert ended.stdout.split()[-1] == digest((state, infos, [report[:-1] for report in reports]))


def test_a_checkpoint_holds_the_whole_state(tmp_path):
    checkpoints, state = saved(tmp_path)
    position, restored, record = checkpoints.newest(blank())
    assert position == 1 and record == {"position": 1}
    assert digest(restored) == digest(state)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert restored.learner.key == state.learner.key and restored.watch.best == -np.inf
    weak = [leaf for leaf in jax.tree.leaves(restored) if getattr(leaf, "weak_type", False)]
    assert not weak, "a weakly typed leaf would have the next block compiled anew"


def test_the_newest_are_kept_and_the_rest_removed(tmp_path):
    checkpoints, _ = saved(tmp_path, positions=(10, 20, 5, 30), keep=2)
    assert checkpoints.positions() == [20, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000020", "000000000030"]
    assert Checkpoints(tmp_path / "nothing").newest(blank()) is None


def test_any_changed_byte_is_refused_by_name_and_the_one_before_is_used(tmp_path):
    """Every file of a checkpoint in turn: a byte flipped, the file truncated, the file removed. Seed fixed."""
    checkpoints, state = saved(tmp_path, positions=(10, 20))
    rng = np.random.default_rng(0)
    files = [path for path in (tmp_path / "000000000020").rglob("*") if path.is_file()]
    assert len(files) == 3
    for file in files:
        whole = file.read_bytes()
        flipped = bytearray(whole)
        if whole:
            flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        damages = [bytes(flipped), whole[: len(whole) // 2], None] if whole else [b"x", None]
        for damage in damages:
            file.unlink()
            if damage is not None:
                file.write_bytes(damage)
            warnings = []
            position, restored, _ = checkpoints.newest(blank(), warnings.append)
            assert position == 10 and digest(restored) == digest(state)
            (sentence,) = warnings
            assert str(tmp_path / "000000000020") in sentence and "damaged" in sentence and "before it" in sentence
            file.write_bytes(whole)
    assert checkpoints.newest(blank()).position == 20


def test_what_lies_beside_checkpoints_is_left_alone(tmp_path):
    """A directory that is none of ours, files in the place of checkpoints, links to others, copies under another
    position, nothing but an empty list of sums: none is used, none is in the way, and nothing that a link leads to is
    touched."""
    small, elsewhere = {"values": np.arange(3.0)}, tmp_path / "elsewhere"
    Checkpoints(elsewhere).save(40, small, {})
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(10, small, {})
    for name in ("20", "٠٠٠٠٠٠٠٠٠٠٢٠"):
        (folder / name).mkdir()
    (folder / "000000000030").write_text("a file")
    (folder / "000000000040").symlink_to(elsewhere / "000000000040")
    shutil.copytree(folder / "000000000010", folder / "000000000050")
    (folder / "000000000060").mkdir()
    (folder / "000000000060" / "SHA256SUMS").touch()
    linked = folder / "000000000070"
    shutil.copytree(elsewhere / "000000000040", linked)
    (linked / "state.bin").unlink()
    (linked / "state.bin").symlink_to(elsewhere / "000000000040" / "state.bin")
    warnings = []
    assert checkpoints.newest(small, warnings.append).position == 10
    assert [warning.split("damaged: ")[1].split(".")[0] for warning in warnings] == [
        "state",
        "about",
        "it is that of row 10",
        "000000000040 is a link to something else",
        "SHA256SUMS is missing",
    ]
    checkpoints.save(15, small, {})
    assert 15 in checkpoints.positions() and 10 not in checkpoints.positions()
    checkpoints.save(80, small, {})
    assert checkpoints.positions() == [80]
    assert Checkpoints(elsewhere).newest(small).position == 40 and (folder / "20").is_dir()


def test_when_all_are_damaged_nothing_is_guessed(tmp_path):
    checkpoints, _ = saved(tmp_path)
    (tmp_path / "000000000001" / "about.json").write_text("{}")
    with pytest.raises(DamagedCheckpointError, match="Every checkpoint"):
        checkpoints.newest(blank())


def test_sums_are_those_of_sha256sum(tmp_path):
    saved(tmp_path)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "000000000001", check=True)


def test_what_differs_is_named(tmp_path, monkeypatch):
    checkpoints, _ = saved(tmp_path)
    with pytest.raises(InputError, match=r"shape of .*weight is \[4, 2\] there, and \[5, 2\]"):
        checkpoints.newest(blank(width=5))
    with pytest.raises(InputError, match=r"shape of .* is \[2"):
        checkpoints.newest(blank(dim=3))
    with pytest.raises(InputError, match=r"another family or learner: the learner has \.learner\.carry\.S"):
        checkpoints.newest(blank(learn_model=True))
    with pytest.raises(InputError, match=r"dtype of .* is float64 there, and float32"), jax.enable_x64(False):
        made, q = watched.__wrapped__()
        checkpoints.newest(made.blank(q, np.zeros((1, 2)), key=KEY))
    monkeypatch.setattr(module.formats, "FORMAT_VERSION", 2)
    monkeypatch.setattr(module.formats, "OLDEST_FORMAT", 2)
    with pytest.raises(InputError, match=r"written by backstream 0\.\d\.\d in an older format"):
        checkpoints.newest(blank())


def test_another_family_is_named(tmp_path):
    checkpoints, _ = saved(tmp_path)
    p = StochasticVolatility(jnp.zeros(2), 0.9 * jnp.ones(2), jnp.ones(2))
    made, _ = watched()
    made = eqx.tree_at(lambda made: made.learner.model, made, p)
    other = made.blank(Recurrent.create(2, 2, 4, key=KEY), np.zeros((1, 2)), key=KEY)
    with pytest.raises(InputError, match="another family"):
        checkpoints.newest(other)


def test_a_checkpoint_that_cannot_be_written_leaves_the_ones_before(tmp_path, monkeypatch):
    checkpoints, state = saved(tmp_path)
    monkeypatch.setattr(module.atomic_files.os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"000000000002 could not be written: No space left on device\.$"):
        checkpoints.save(2, state, {})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001"]


def full_disk(descriptor):
    raise OSError(28, "No space left on device")


def test_a_reader_keeps_up_with_the_process_that_writes(tmp_path, monkeypatch):
    """The only checkpoint is replaced by a later one while it is looked at: no damage is spoken of."""
    checkpoints, like = Checkpoints(tmp_path, keep=1), {"values": np.zeros(4)}
    checkpoints.save(1, like, {})
    load, said = Checkpoints.load, []

    def replaced(self, position, like):
        if position == 1:
            checkpoints.save(2, like, {})
        return load(self, position, like)

    monkeypatch.setattr(Checkpoints, "load", replaced)
    assert checkpoints.newest(like, said.append).position == 2 and said == []


def test_sizes_are_compared_before_memory_is_taken(tmp_path):
    """A small checkpoint whose list says that an array is of a terabyte, with sums made right again."""
    checkpoints = Checkpoints(tmp_path)
    folder = checkpoints.save(1, {"values": np.zeros(4)}, {})
    about = folder / "about.json"
    about.write_text(re.sub(r'"shape": \[\s*4\s*\]', '"shape": [137438953472]', about.read_text()))
    sums = module._sums(folder)
    (folder / "SHA256SUMS").write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    like = {"values": jax.ShapeDtypeStruct((1 << 37,), np.float64)}
    with pytest.raises(DamagedCheckpointError, match=r"state\.bin is not as long as its arrays"):
        checkpoints.load(1, like)


@pytest.mark.slow
def test_checkpoints_take_no_memory_that_stays(tmp_path):
    """200 of them after a warm-up: below 1 MB in all, where each used to leave 33 kB (6.6 MB)."""
    checkpoints, state = saved(tmp_path, positions=range(1, 60))
    before = resident()
    for position in range(100, 300):
        checkpoints.save(position, state, {"position": position})
    assert resident() - before < 1e6


def resident():
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_unpickled(tmp_path):
    """A checkpoint is arrays and JSON: no file of it is a pickle, and no pickle is asked for."""
    saved(tmp_path)
    for path in (tmp_path / "000000000001").rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80"), path
    about = json.loads((tmp_path / "000000000001" / "about.json").read_text())
    assert about["version"] and about["position"] == 1 and len(about["digest"]) == 64
