"""The examples run, quickly, as a user would run them, and what they print bears out what they claim."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    """What the example prints; its picture must be there in the end."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--quick"]
    environment = os.environ | {"JAX_ENABLE_X64": "0"}
    ended = finished(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (folder / f"{name}.png").stat().st_size > 10_000
    return ended.stdout


def finished(command: list[str], **options: Any) -> Any:
    """The likelihood of the CO₂ example now and then never ends on two cores: all threads of XLA's pool are idle, for
    a cause that is not known. It is tried again, and then left out."""
    for _ in range(2):
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(command, timeout=150, **options)
    pytest.skip("XLA did not end, twice: nothing was computed that could be checked.")


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return [float(number) for number in found.groups()]


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path.name


@pytest.mark.slow
def test_volatility(tmp_path):
    """The learned model predicts better than before learning, and no worse than GARCH beyond two standard errors."""
    said = run("sp500_volatility", tmp_path)
    (ours,) = numbers(r"stochastic volatility +(-\S+)", said)
    (before,) = numbers(r"before learning +(-\S+)", said)
    ahead, error = numbers(r"Ours minus GARCH: (\S+) ± (\S+) nats", said)
    (agreement,) = numbers(r"have correlation (\S+) \(in", said)
    assert ours > before + 0.01 and ahead > -error and agreement > 0.9


@pytest.mark.slow
def test_gaps(tmp_path):
    """Learning raises the likelihood, gaps are filled better than by lines, and the bands hold what they promise.

    The hidden weeks are fixed by a seed; 90 % bands are asked to hold 75 % or more: neighboring weeks fall in or
    out together, so that a binomial bound would be too narrow.
    """
    said = run("co2_gaps", tmp_path)
    before, after = numbers(r"while learning: (\S+) → (\S+)\.\n", said)
    model, line = numbers(r"misses by (\S+) ppm \(RMSE\), a straight line by (\S+) ppm", said)
    (held,) = numbers(r"90 % bands hold (\d+) %", said)
    (apart,) = numbers(r"at most (\S+) ppm apart", said)
    assert after > before + 0.05 and model < 0.8 * line and held >= 75 and apart < 0.01


@pytest.mark.slow
def test_outliers(tmp_path):
    """The learned posterior beats both Kalman filters, also the one tuned with the truth at hand."""
    said = run("sensors_outliers", tmp_path)
    learned = numbers(r"Backstream +(\S+) +(\S+) +(\d+) %", said)
    nominal = numbers(r"Kalman, nominal +(\S+) +(\S+) +(\d+) %", said)
    best = numbers(r"Kalman, best +(\S+) +(\S+) +(\d+) %", said)
    assert learned[0] < best[0] and learned[1] < best[1] < nominal[1]
    assert abs(learned[2] - 90) < abs(nominal[2] - 90)
