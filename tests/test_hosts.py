"""Several devices and several processes: the same numbers as one, a clear end when one of them dies, nothing lost.

Processes talk over the loopback interface only, never for longer than a stated time, and are ended by their id.
"""

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from backstream.io.checkpoints import Checkpoints
from command import BACKSTREAM, SECONDS, environment, here, run
from test_keyed import ARGUMENTS, lines

ROWS = 240

MESH = """
import equinox as eqx, jax, numpy as np, optax, re
jax.config.update("jax_enable_x64", True)
from jax.sharding import Mesh
from backstream.estimators import MomentCorrected, RecursiveScore, Renewal
from backstream.estimators.base import flatten
from backstream.families import Kalman
from backstream.learning import OnlineLearner, Panel, panel as module
from backstream.models import LinearGaussian

N, programs, advanced = 26, [], module._advanced

def watched(*arguments):
    programs.append(eqx.filter_jit(advanced.__wrapped__).lower(*arguments).compile().compiled)
    return advanced(*arguments)

module._advanced = watched
p = LinearGaussian.random(2, 2, key=jax.random.key(0))
lam, rebuild = flatten(Kalman.from_model(p))  # at the optimum the gradient would be nothing but rounding
q = rebuild(lam + 0.2 * jax.random.normal(jax.random.key(2), lam.shape))
learner = OnlineLearner(p, RecursiveScore(N, MomentCorrected(), objective=Renewal(0.8)), optax.adam(1e-2))
ys = np.random.default_rng(0).normal(size=(20, 2))
slots, ticks = np.tile(np.arange(5), 4), np.repeat(np.arange(4), 5)
found = []
for shape in ((1, 1), (2, 2)):
    devices = np.asarray(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    panel = Panel(
        learner, q, key=jax.random.key(1), common=True, lanes=2,
        mesh=Mesh(devices, ("streams", "particles")),
    )
    state = panel.begin(panel.open(5), np.arange(5), np.arange(10).reshape(5, 2))
    state, infos = panel.read(state, slots, ticks, ys)
    found.append((np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(state.common.q)]), infos.mean))
G = state.slots.carry.G.at_samples
assert len({str((s.index[0], s.index[2])) for s in G.addressable_shards}) == 4, G.sharding
for one, other in zip(*found):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
# W is [N, N] on one device; divided, no array of the program is
of_pairs = [{shape for shape in re.findall(r"f64\\[([0-9,]+)\\]", one.as_text()) if shape.split(",").count(str(N)) > 1}
            for one in programs]
assert of_pairs[0] and not of_pairs[1], of_pairs
flops = [one.cost_analysis()["flops"] for one in programs]
assert flops[1] < 0.6 * flops[0], flops
try:
    Panel(OnlineLearner(p, RecursiveScore(3, objective=Renewal(0.8)), optax.adam(1e-2)), q,
          key=jax.random.key(1), common=True, mesh=panel.mesh)
except ValueError as error:
    assert "3 particles cannot be divided evenly over 2 devices" in str(error)
    print("done")
"""


@pytest.mark.slow
def test_a_mesh_of_devices_gives_the_same_numbers():
    """Streams over two devices, the particles of each over two more: W, H and G are divided, and the work with them."""
    flags = f"--xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
    ended = subprocess.run(
        [sys.executable, "-c", MESH],
        env=environment() | {"XLA_FLAGS": flags}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0 and ended.stdout.endswith("done\n"), ended.stderr


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(index, port, folder, *more):
    told = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)}

    return subprocess.Popen(
        [BACKSTREAM, *ARGUMENTS, str(folder / "obs.csv"), "--out", str(folder / "run"), "--hosts", *more],
        env=environment() | told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process):
    _, stderr = process.communicate(timeout=SECONDS)
    assert "Traceback" not in stderr, stderr
    return process.returncode, stderr


def filtered(folder):
    table = pq.read_table(folder / "run" / "filtered")
    assert table["row"].to_pylist() == list(range(ROWS))  # each row once
    return table["key"].to_pylist(), np.column_stack([table["mean_0"], table["std_0"]])


def saved(folder):
    return Checkpoints(folder / "run" / "checkpoints").positions()


def killed(folder, which, after, *more):
    """Two processes, of which one is killed once there is a checkpoint beyond a position: what the other says."""
    port = free_port()
    processes = [start(index, port, folder, *more) for index in (0, 1)]
    try:
        end = time.monotonic() + SECONDS
        while max(saved(folder), default=0) <= after and time.monotonic() < end:
            assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
            time.sleep(0.02)
        processes[which].kill()
        began = time.monotonic()
        code, stderr = ended(processes[1 - which])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert code == 1 and "Another host went away" in stderr and "--resume" in stderr, (code, stderr)
    assert time.monotonic() - began < 60 and after < saved(folder)[-1] < ROWS
    return saved(folder)[-1]


@pytest.mark.slow
def test_two_processes_are_killed_one_after_the_other(tmp_path):
    """They learn one λ together. The second is killed after some checkpoints, and the first says so and ends; both
    resume, and the first is killed; one process alone resumes what two have left, to the end. Every row is there once,
    and the results are those of one process that was never stopped."""
    alone, pair = tmp_path / "alone", tmp_path / "pair"
    for folder in (alone, pair):
        folder.mkdir()
        (folder / "obs.csv").write_text("\n".join(lines(ROWS)) + "\n")
    here(*ARGUMENTS, alone / "obs.csv", "--out", alone / "run")
    position = killed(pair, 1, 30)
    position = killed(pair, 0, position, "--resume")
    here(*ARGUMENTS, pair / "obs.csv", "--out", pair / "run", "--resume")
    assert filtered(pair)[0] == filtered(alone)[0]
    np.testing.assert_allclose(filtered(pair)[1], filtered(alone)[1], rtol=1e-7)


def test_what_hosts_cannot_do(tmp_path):
    """A host that does not come, a mesh that does not divide, a source that cannot be shared."""
    (tmp_path / "obs.csv").write_text("\n".join(lines(20)) + "\n")
    source = (*ARGUMENTS, tmp_path / "obs.csv")
    address = ("--coordinator", f"127.0.0.1:{free_port()}", "--process-count", "2", "--process-index", "0")
    stderr = run(*source, "--hosts", *address, "--host-timeout", "3", check=2).stderr
    assert "Not all of the 2 processes" in stderr and "within 3 s" in stderr
    stderr = here(*source, "--particle-devices", "2", check=2).stderr
    assert "1 devices cannot be divided into groups of 2" in stderr
    stderr = here(*ARGUMENTS, "-", "--hosts", *address, check=2).stderr
    assert "cannot be standard input" in stderr
    stderr = here(*ARGUMENTS[:-2], tmp_path / "obs.csv", "--tick-rows", "0", check=2).stderr
    assert "tick_rows must be at least 1, not 0" in stderr
