"""A guard against slow steps: ratios within one run, with margins wide enough for a busy machine.

The other tests compile without optimisation, so these programs are timed in a process of their own. What a step costs
is compared with its largest product, and one weighting with another; seconds are those of the processor, and the least
of several rounds counts: other work on the machine can only add to it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import json, time
import jax
from backstream.estimators import BackwardSampling, RecursiveScore, Truncated
from experiments import speed

p, q = speed.chaotic(5, 50)
size = speed.flatten(q)[0].size
N, steps = 100, 20
programs = {
    "limit": speed.limit(N, size, steps),
    "forward": speed.streamed(RecursiveScore(N), p, q, steps),
    "many, all": speed.streamed(RecursiveScore(5 * N, sensitivity=Truncated(2)), p, q, steps),
    "many, sampled": speed.streamed(RecursiveScore(5 * N, BackwardSampling(2), Truncated(2)), p, q, steps),
}
least = dict.fromkeys(programs, float("inf"))
for _ in range(6):
    for name, program in programs.items():
        began = time.process_time()
        jax.block_until_ready(program())
        least[name] = min(least[name], time.process_time() - began)
print(json.dumps(least))
"""


@pytest.fixture(scope="module")
def seconds():
    """Of each program, on one core."""
    flags = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_ENABLE_X64": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | flags, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_step_stays_near_its_largest_product(seconds):
    """MEASURED times the limit."""
    assert seconds["forward"] < 20 * seconds["limit"], seconds


def test_sampled_weights_are_gathered(seconds):
    """Two backward draws of 500 cost less than all weights: with products in the place of gathers they would not."""
    assert seconds["many, sampled"] < 0.7 * seconds["many, all"], seconds
