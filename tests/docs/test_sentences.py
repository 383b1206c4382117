"""Numbers in sentences about speed, scale and alternatives are those of committed results, or of the code."""

import pytest

from backstream.learning import presets, unlearned
from backstream.learning.component_check import CHECKED_ROWS, EVERY, LEAST_GAP, SEVERAL
from backstream.learning.steps import LENGTHENING
from backstream.runs.results import MERGED
from backstream.settings import FleetSettings, Saving, Settings
from benchmarks import rows
from sentences import page, results, says

SPEED = results("benchmarks/results/speed.json")["parts"]
FLEET = results("benchmarks/results/fleet.json")["parts"]


def milliseconds(part: str, name: str) -> float:
    return SPEED[part]["times"][name]["ms"]


def test_why_a_step_is_slower_than_the_limit():
    where, N, d = "docs/performance.md", 100, 10
    A = d * (d + 3) // 2
    says(where, f"A = d(d+3)/2 = {A} numbers")
    says(where, f"(N (N + A) + A²) / N² = {(N * (N + A) + A**2) / N**2:.2f} times those of the limit")
    profile = SPEED["profile"]["100"]
    product, with_J = profile["W @ G"]["us"], profile["the product with ∂a_{t-1}/∂λ"]["us"]
    says(where, f"{product / 1e3:.2f} ms for `W @ G`, {with_J / 1e3:.1f} ms for both products with J")
    says(where, f"There are {sum(part['operations'] for part in profile.values())} small operations")
    draws = milliseconds("sampled", "BackwardSampling(2)") / milliseconds("sampled", "all weights")
    assert draws == pytest.approx(1 / 4, abs=0.02)
    says(where, "two backward draws take a quarter of the time of all weights; the target was a fifth")
    score = milliseconds("offline, linear-Gaussian", "score")
    assert milliseconds("offline, linear-Gaussian", "trajectories") / score == pytest.approx(2 / 3, abs=0.06)
    assert milliseconds("offline, linear-Gaussian", "exact") / score == pytest.approx(1.0, abs=0.06)
    again = milliseconds("step from Python", "step") / milliseconds("step from Python", "scan")
    says(where, f"A `step` from Python takes {again:.1f} times as long as inside `scan`")
    says(where, f"The least of {rows.ROUNDS} rounds counts")
    says(where, f"λ had {SPEED['sampled']['P'] // 1000} {SPEED['sampled']['P'] % 1000} numbers")


def test_which_states_are_above_the_wanted_ratio():
    found = results("benchmarks/results/rows.json")["filter"]
    above = [states for states, one in found.items() if one["ours"] / one["ekf"] > (8 if int(states) < 4 else 3.5)]
    assert above == ["10", "20"]
    says("docs/performance.md", "With ten and twenty states the filter is above the ratio that is wanted")


def test_how_much_faster_the_reverse_score_is():
    ratio = milliseconds("offline, linear-Gaussian", "score, as a recursion") / milliseconds(
        "offline, linear-Gaussian", "score"
    )
    assert ratio == pytest.approx(3, abs=0.5)
    says("docs/choosing.md", "It equals `Scan(RecursiveScore(N))` and is three times as fast at N = 2")


def test_settings_of_the_recursion():
    settings, where = Settings(), "docs/choosing.md"
    says(where, "| learning rate of Adam | 1e-3 (the window uses 3e-3) |")
    assert presets.RATES["recursion"] == 1e-3 and presets.RATES["window"] == 3e-3
    says(where, f"| `num_particles` | {settings.particles} |")
    says(where, f"`Forward({settings.gamma})`, which forgets at the same rate as the objective")


def test_how_the_time_of_a_fleet_grows():
    where = "docs/scale.md"
    few, more, most = (FLEET[f"work, recursion with {n} particles"] for n in (50, 100, 200))
    says(where, f"the time of the recursion grows {more / few:.1f} and {most / more:.1f} times")
    short, middle, long = (FLEET[f"work, window of {n}, 4 trajectories"] for n in (8, 16, 32))
    says(where, f"When the window doubles, its time grows {middle / short:.1f} and {long / middle:.1f} times")
    assert FLEET["work, window of 16, 8 trajectories"] < middle
    steps = {FLEET[f"short streams, seed {seed}"]["steps"] for seed in (0, 1)}
    assert steps == {1600}
    says(where, "With ticks of 64 rows, λ makes 1 600 steps instead of 100 000")


def test_bytes_of_a_stream():
    """The formulas of the table, for both of its models."""
    L, N = Settings().lag, 100
    for d, P, h, place in ((2, 88, 8, 0), (10, 4260, 120, 1)):
        a = d + d * (d + 1) // 2
        window = 4 * (L * d + 2 * a) + 24
        own = 16 * P + 8 * h + 8
        recursion = 4 * (N * (P + d + 1) + a * P + 3 * P)
        lines = {
            line.split("|")[1].strip(): [int(cell.replace(" ", "")) for cell in line.split("|")[3:5]]
            for line in page("docs/scale.md").splitlines()
            if line.startswith(("| window, ", "| recursion"))
            if line.count("|") == 5
        }
        assert lines["window, common λ"][place] == window
        assert lines["window, own λ"][place] == window + own
        assert lines["recursion (N = 100), common λ"][place] == pytest.approx(recursion, rel=3e-3)
        assert lines["recursion, own λ"][place] == lines["recursion (N = 100), common λ"][place] + own
    assert FLEET["memory, 1000 streams"]["bytes_per_stream"] == 192


def test_settings_of_a_fleet():
    fleet = FleetSettings()
    says("docs/scale.md", f"(n up to {LENGTHENING})")
    says("docs/scale.md", f"if that has `--tick-rows` rows ({fleet.tick_rows})")
    says("docs/scale.md", f"the first `--watched` streams ({fleet.watched})")
    says("docs/reliability.md", f"become one file after every {MERGED}")
    says("docs/streaming.md", f"there is a checkpoint every {Saving().checkpoint_every // 1000} 000 rows")


def test_when_components_are_decided():
    where = "docs/posterior.md"
    says(where, f"After {CHECKED_ROWS} rows a filter with four")
    says(where, f"by more than {LEAST_GAP} nats a row and three standard errors")
    says(where, f"half of every {EVERY}th window")
    assert SEVERAL == 4 and 2 * CHECKED_ROWS // 500 == 1
    says(where, f"over the latest {unlearned.HORIZON // 1000} 000 rows or so")
