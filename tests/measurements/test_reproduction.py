"""The long runs in short: each result of the paper is run end to end at a small size, and learning shows in it.

Seeds are fixed; each bound lies far from what a learner that does not learn would give, and that too is checked.
"""

import json
import sys

import jax
import pytest

import benchmarks.report
import reproduction.report
import studies.report
import tests.soak.report
from backstream.cli.reproduce import Bench, Name
from backstream.estimators import BackwardTrajectories, Exact
from backstream.models import ChaoticRNN
from benchmarks import gradients, harness, learning, pages, runner
from command import here
from reproduction import ablations, fig1, fig2, fig3, table1, table2, table3


@pytest.fixture
def shortened(monkeypatch, tmp_path):
    """Runs a result with its quick settings made smaller still. Its numbers by part, and its page."""

    def run(module, **settings):
        name = module.__name__.split(".")[-1]
        monkeypatch.setattr(module, "QUICK", module.QUICK | settings)
        monkeypatch.setattr(jax, "clear_caches", lambda: None)  # few parts: their programs can stay
        page = runner.run(module.__name__, tmp_path, quick=True)
        text = page.read_text()
        assert harness.MISSING not in text and "nan" not in text
        assert page.with_suffix(".png").stat().st_size > 5000
        content = json.loads(page.with_suffix(".json").read_text())
        assert content["command"] == f"backstream reproduce {name} --quick" and content["machine"]["jax"]
        return content["parts"], text

    return run


@pytest.mark.slow
def test_fig1(shortened, monkeypatch):
    """From more than 0.3 nats below the log-likelihood to less than 0.05, with the oracle and with the score.

    The oracle stands in for the others here, which would have to be compiled.
    """
    every = fig1.estimators(fig1.SETTINGS)
    oracle, ours = every[fig1.ORACLE], every[fig1.OURS]
    monkeypatch.setattr(fig1, "estimators", lambda _: dict.fromkeys(every, oracle) | {fig1.OURS: ours})
    parts, _ = shortened(fig1, dim=2, length=60, epochs=150, timings=1)
    for name in (fig1.ORACLE, fig1.OURS):
        part = parts[f"{name}, seed 0"]
        assert part["gap"] < 0.05 and part["elbo"][-1] - part["elbo"][0] > 0.3 and part["refused"] == 0
    assert set(parts["time"]) == set(every)


@pytest.mark.slow
def test_fig2(shortened):
    """The default's ELBO on fresh data ends within 0.05 nats of the log-likelihood, and has risen."""
    parts, _ = shortened(fig2, dim=2, observations=4000, fresh=300, test=50, snapshots=[0, 1000, 4000])
    curve, limit = parts["default, seed 0"]["curve"], parts["limit, seed 0"]
    assert limit["fresh_elbo"] - curve[-1]["fresh_elbo"] < 0.05 and curve[-1]["fresh_elbo"] > curve[0]["fresh_elbo"]
    assert list(parts["default, seed 0"]["test"]["smoothed"]) == ["0", "1000", "4000"]


@pytest.mark.slow
def test_table1(shortened, monkeypatch):
    """After some epochs our score and trajectories are both far nearer to the limit than the raw observation is."""
    monkeypatch.setattr(table1, "NAMES", tuple(name for name in table1.NAMES if name.endswith("ours")))
    ours = table1.QUICK["ours"] | {"epochs": 40, "width": 8}
    parts, _ = shortened(table1, dim=2, length=50, limit_particles=500, timings=1, ours=ours)
    limit = parts["limit, seed 0"]
    for name in table1.NAMES:
        assert parts[f"{name}, seed 0"]["smoothing"] - limit["smoothing"] < 0.5 * (limit["raw"] - limit["smoothing"])


@pytest.mark.slow
def test_fig3(shortened, monkeypatch):
    """Updates inside epochs raise the ELBO, with the paper's settings: by 0.7 nats per step, whose noise is 0.1."""
    monkeypatch.setattr(fig3, "STYLES", {name: fig3.STYLES[name] for name in (fig3.INSIDE, fig3.PER_EPOCH)})
    small = {"dim": 2, "length": 60, "width": 4, "epochs": 3, "long_epochs": 5, "limit_particles": 500}
    parts, _ = shortened(fig3, **small, rate=1e-2, judged_by=200)
    inside, once = (parts[f"{name}, seed 0"]["elbo"] for name in (fig3.INSIDE, fig3.PER_EPOCH))
    assert len(inside) == len(once) == 4 and inside[3] > inside[0] + 0.2, (inside, once)
    curve = fig3.summary([0.0, 5.0, 4.0, 9.8, 10.0, 9.0], epochs=2)
    assert curve["elbo"] == [0.0, 5.0, 4.0] and curve["records"] == [[0, 0.0], [1, 5.0], [3, 9.8], [4, 10.0]]
    assert abs(curve["end"] - 7.56) < 1e-9
    assert fig3.epochs_needed(curve["records"], end=10.0, start=0.0) == 4
    assert fig3.epochs_needed(curve["records"][:2], end=10.0, start=0.0) is None


@pytest.mark.slow
def test_table2(shortened):
    """Score and regression both filter better than the raw observation."""
    small = {"dim": 2, "length": 25, "width": 8, "updates": 100, "particles": 20, "block": 4, "limit_particles": 500}
    parts, _ = shortened(table2, **small)
    for name in table2.NAMES:
        assert parts[f"{name}, seed 0"]["filtering"] < 0.8 * parts["limit, seed 0"]["raw"]
        assert parts["time"][name] > 0


@pytest.mark.slow
def test_table3(shortened, monkeypatch):
    """5 000 observations take away half of what our start has above the particle limit; nothing is refused.

    The two other learners, the recursions, are only made.
    """
    settings = {"observations": 5000, "every": 2500, "snapshots": [0, 5000], "test": 50}
    made = table3.SETTINGS | table3.QUICK | settings
    judge, keys = table3.case(made, 0)
    families = {name: table3.learner_and_family(name, made, judge.p, keys[3])[1] for name in table3.NAMES}
    monkeypatch.setattr(table3, "NAMES", (table3.DEFAULT,))
    parts, page = shortened(table3, **settings)
    start, end, limit = judge.errors(families[table3.DEFAULT]), parts["default, seed 0"]["end"], parts["limit, seed 0"]
    for name in ("smoothing", "filtering"):
        assert end[name] - limit[name] < 0.5 * (start[name] - limit[name]), (name, start, end, limit)
    assert end["refused"] == 0 and abs(end["elbo"] - end["unbiased_elbo"]) < 0.2
    assert "0.278" in page and list(parts["default, seed 0"]["test"]["smoothed"]) == ["0", "5000"]


@pytest.mark.slow
def test_ablations(shortened, monkeypatch):
    """With the exact gradient in the place of the estimator: no bias, and learning ends at the log-likelihood.

    Without the entropy term the gradient of a single step is another one.
    """
    kept = {ablations.REFERENCE: Exact(), ablations.WITHOUT: ablations.WithoutEntropy(Exact())}
    monkeypatch.setattr(ablations, "estimators", lambda N: kept)
    parts, _ = shortened(ablations, draws=4, epochs=100)
    right, wrong = (parts[f"{name}, T = 1, seed 0"]["start"]["bias"] for name in kept)
    assert right < 1e-6 and wrong > 0.5
    assert abs(parts[f"{ablations.REFERENCE}, seed 0"]["gap"]) < 0.05


@pytest.mark.slow
def test_gradients(monkeypatch, tmp_path):
    """At the start of a linear-Gaussian stream: unbiased trajectories have no bias, the bench says; a gradient that is
    off by a half of itself has one of a half, and no noise. Seed fixed; the noise of the first is 0.3 of its length.
    """

    class Half(Exact):
        def estimate(self, *arguments):
            exact = super().estimate(*arguments)
            return exact._replace(gradient=jax.tree.map(lambda leaf: 0.5 * leaf, exact.gradient))

    made = {gradients.PLAIN: Half(), "trajectories": BackwardTrajectories(8)}
    monkeypatch.setattr(gradients, "estimators", lambda *_: made)
    monkeypatch.setattr(gradients, "cases", lambda _: {"slow": gradients.slow})
    monkeypatch.setattr(gradients, "COLORS", {gradients.PLAIN: "black"})
    page = runner.run("benchmarks.gradients", tmp_path, quick=True, replicates=64)
    assert "`backstream bench gradients --quick`" in page.read_text() and "nan" not in page.read_text()
    stages = json.loads(page.with_suffix(".json").read_text())["parts"]["slow"]
    half, unbiased = stages["start"][gradients.PLAIN], stages["start"]["trajectories"]
    assert abs(half["bias"] - 0.5) < 1e-4 and half["deviation"] < 1e-4 and half["cosine"] > 0.9999
    assert unbiased["bias"] < 0.5 * unbiased["deviation"] and unbiased["deviation"] > 0.05
    assert set(stages) == {"start", "late"}


@pytest.mark.slow
def test_learning(monkeypatch, tmp_path):
    """The window ends nearer to the limit than it starts, and the recursion to that of a filter that is told more."""
    made = {"chaotic": ("window", gradients.chaotic(2)), "larger": ("recursion", gradients.chaotic(4))}
    for case, (method, make) in made.items():
        monkeypatch.setattr(learning, "cases", lambda _, case=case, make=make: {case: make})
        monkeypatch.setattr(learning, "METHODS", {method: learning.METHODS[method]})
        monkeypatch.setattr(jax, "clear_caches", lambda: None)
        page = runner.run("benchmarks.learning", tmp_path / case, quick=True, replicates=1)
        assert "`backstream bench learning --quick`" in page.read_text() and "nan" not in page.read_text()
        assert page.with_suffix(".png").stat().st_size > 5000
        parts = json.loads(page.with_suffix(".json").read_text())["parts"]
        first, *_, last = parts[f"{case}: {method}, seed 0"]
        limit = parts[f"{case}: limit, seed 0"]
        halfway = 0.5 * (limit["filtering"] + limit["raw"])
        assert 0.9 * limit["filtering"] < last["filtering"] < min(first["filtering"], halfway)
        monkeypatch.undo()


@pytest.mark.slow
def test_the_filter_that_is_told_the_others():
    """With one coordinate there are no others, and it is a particle filter; with three they tell it next to nothing.

    One fixed seed. The Monte Carlo error of either side is at most 0.6 %, the bound three times as much.
    """
    for dim in (1, 3):
        p = ChaoticRNN.random(dim, key=jax.random.key(1))
        judge = harness.Judge(p, 1000, key=jax.random.key(2))
        told = learning.told(p, judge, 1000, key=jax.random.key(3))
        assert abs(told / judge.limit(5000, smoothing=False)["filtering"] - 1) < 0.02


def test_results_survive_an_interruption(tmp_path):
    """A part that is there is not run again, and results of other settings are not mixed with these."""
    path = tmp_path / "some.json"
    results = harness.Results(path, "some command", {"n": 1})
    assert results.run("a", lambda: {"x": 1.5}) == {"x": 1.5}
    again = harness.Results(path, "some command", {"n": 1})
    assert again.run("a", lambda: pytest.fail("computed twice")) == {"x": 1.5}
    assert json.loads(path.read_text())["command"] == "some command"
    with pytest.raises(SystemExit, match="other settings"):
        harness.Results(path, "some command", {"n": 2})


def test_the_first_row_within_the_limit():
    limit = {"smoothing": 1.0, "filtering": 1.0}
    curve = [{"smoothing": s, "filtering": 1.0, "k": k} for k, s in enumerate([1.2, 1.01, 1.2, 1.04, 1.02])]
    assert harness.first_within(curve, limit) == curve[3]
    assert harness.first_within(curve[:3], limit) is None


def test_the_command_knows_every_result():
    assert tuple(Name) == reproduction.report.NAMES
    assert tuple(Bench) == benchmarks.report.BENCHES


def test_what_is_missing_says_so():
    """A page can be made of any part of the results."""
    for name in reproduction.report.NAMES:
        chosen = runner.result(f"reproduction.{name}")
        assert harness.MISSING in chosen.markdown({"settings": chosen.SETTINGS, "parts": {}})


REPORTS = (benchmarks.report, reproduction.report, studies.report, tests.soak.report)


@pytest.mark.parametrize("page", sorted({page for report in REPORTS for page in report.SECTIONS}))
def test_the_documentation_shows_the_committed_results(page):
    text = (pages.DOCS / page).read_text()
    for report in REPORTS:
        made = pages.filled(text, report.SECTIONS.get(page, {}))
        assert made == text, f"run python -m {report.__name__}"


def test_committed_results_are_summaries():
    """Each below 200 kB, all below 2 MB."""
    sizes = {path: path.stat().st_size for report in REPORTS for path in report.RESULTS.iterdir()}
    assert len(sizes) > 20 and max(sizes.values()) < 200_000 and sum(sizes.values()) < 2_000_000, sizes


def test_results_are_written_short(tmp_path):
    results = harness.Results(tmp_path / "some.json", "some command", {})
    part = results.run(
        "a", lambda: {"x": (1 / 3, jax.numpy.float32(0.1)), "n": 123456789, "none": None, "text": "a [ b"}
    )
    assert part == {"x": [0.33333333, 0.1], "n": 123456789, "none": None, "text": "a [ b"}
    text = results.path.read_text()
    assert json.loads(text)["parts"] == {"a": part} and '"x": [ 0.33333333, 0.1 ]' in text
    assert harness.thinned(range(10), 4) == [0, 3, 6, 9] and harness.thinned(range(4), 4) == [0, 1, 2, 3]


def test_the_commands_need_a_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["backstream.cli.reproduce"], "CLONE", tmp_path)
    assert "a clone of the repository" in here("bench", "speed", check=1).stderr
