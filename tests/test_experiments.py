"""The long runs in short: each would fail if learning were broken.

Seeds are fixed; each bound lies far from what a learner that does not learn would give, and that too is checked.
"""

import json

import pytest

from experiments import chaotic_stream, harness, linear_offline, linear_stream


@pytest.fixture(autouse=True)
def small_and_apart(monkeypatch, tmp_path):
    """Results of tests stay out of the repository."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def shrink(module, **settings):
        for name, value in settings.items():
            monkeypatch.setitem(module.SETTINGS, name, value)

    return shrink


def test_offline_gradients_close_the_gap(small_and_apart):
    """Linear-Gaussian, d = 2: from more than 0.3 nats below the log-likelihood to less than 0.05."""
    small_and_apart(linear_offline, dim=2, length=60, epochs=150, rate=3e-2)
    for name in ("exact", "score"):
        start = linear_offline.run(name, 0, epochs=1)["gap"]
        end = linear_offline.run(name, 0)["gap"]
        assert end < 0.05 and start > 0.3, (name, start, end)


def test_the_default_learner_comes_near_the_limit(small_and_apart):
    """Chaotic RNN, d = 2: within 10 % of the particle limit after 3 000 observations, and nearer than at the start."""
    small_and_apart(chaotic_stream, dim=2, observations=3000, fresh=400, every=1000, width=16)
    limit = chaotic_stream.case(0)[1].limit(num_particles=2000)
    curve = chaotic_stream.run("default", 0)
    for name in ("smoothing", "filtering"):
        assert curve[-1][name] < 1.1 * limit[name] < limit["raw"]
    assert curve[-1]["refused"] == 0 and abs(curve[-1]["elbo"] - curve[-1]["unbiased_elbo"]) < 0.2


def test_a_linear_stream_is_learned(small_and_apart):
    small_and_apart(linear_stream, dim=2, observations=4000, fresh=500, every=1000)
    part = linear_stream.run()
    assert part["limit"]["fresh_elbo"] - part["curve"][-1]["fresh_elbo"] < 0.05
    assert part["curve"][-1]["fresh_elbo"] > part["curve"][0]["fresh_elbo"]


def test_results_survive_an_interruption(tmp_path):
    """A part that is there is not run again, and results of other settings are not mixed with these."""
    results = harness.Results("some", {"n": 1}, tmp_path)
    assert results.run("a", lambda: {"x": 1.5}) == {"x": 1.5}
    again = harness.Results("some", {"n": 1}, tmp_path)
    assert again.run("a", lambda: pytest.fail("computed twice")) == {"x": 1.5}
    assert json.loads((tmp_path / "some.json").read_text())["command"] == "python -m experiments.some"
    with pytest.raises(SystemExit, match="other settings"):
        harness.Results("some", {"n": 2}, tmp_path)


def test_the_first_row_within_the_limit():
    limit = {"smoothing": 1.0, "filtering": 1.0}
    curve = [{"smoothing": s, "filtering": 1.0, "k": k} for k, s in enumerate([1.2, 1.01, 1.2, 1.04, 1.02])]
    assert harness.first_within(curve, limit) == curve[3]
    assert harness.first_within(curve[:3], limit) is None
