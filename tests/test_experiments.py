"""The long runs in short: each would fail if learning were broken.

Seeds are fixed; each bound lies far from what a learner that does not learn would give, and that too is checked.
"""

import json

import pytest

from backstream.families import Innovation
from experiments import chaotic_stream, harness, linear_offline, linear_stream, report


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
    """Chaotic RNN, d = 5: 5 000 observations take away half of what the start has above the particle limit."""
    small_and_apart(chaotic_stream, dim=5, observations=5000, fresh=400, every=2500, width=32)
    p, judge, keys = chaotic_stream.case(0)
    limit = judge.limit(num_particles=2000)
    start = judge.errors(Innovation.from_model(p, width=32, key=keys[3]))
    end = chaotic_stream.run("default", 0)[-1]
    for name in ("smoothing", "filtering"):
        assert end[name] - limit[name] < 0.5 * (start[name] - limit[name]), (name, start, end, limit)
    assert end["refused"] == 0 and abs(end["elbo"] - end["unbiased_elbo"]) < 0.2


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


@pytest.mark.parametrize("page", report.SECTIONS)
def test_the_documentation_shows_the_committed_results(page):
    text = (report.DOCS / page).read_text()
    assert report.filled(text, report.SECTIONS[page]) == text, "run python -m experiments.report"
