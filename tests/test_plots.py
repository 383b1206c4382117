"""Pictures show the numbers they are given: each test reads them back off the Axes."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from backstream import metrics, plots
from backstream.learning import Report
from backstream.posterior import Draws, Marginals

RNG = np.random.default_rng(0)
T, D = 40, 2
TRUTH = RNG.normal(size=(T, D)).cumsum(0)


def law(scale: float) -> Marginals:
    """A law whose error and whose standard deviation are `scale`."""
    noise = scale * RNG.normal(size=(T, D))
    return Marginals(jnp.asarray(TRUTH + noise), jnp.asarray(np.broadcast_to(scale**2 * np.eye(D), (T, D, D))))


FILTERED, SMOOTHED = (jax.tree.map(lambda leaf: leaf.astype(jnp.float32), law(scale)) for scale in (0.5, 0.3))
REPORTS = [Report(500 * k, -1.0 + k, -2.0 + k, 0.1 * k, -1.5 + k, 10.0 / k, 1.0, 0.0, ()) for k in (1, 2, 3)]
REPORTS[1] = REPORTS[1]._replace(warnings=("The effective sample size is low.",))


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    figure.canvas.draw()
    plt.close(figure)


def curve(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.asarray(line.get_ydata(), float)


def edges(collection):
    """The lower and upper ends of a band."""
    points = collection.get_paths()[0].vertices
    return [
        np.array([part(points[points[:, 0] == t, 1]) for t in np.unique(points[:, 0])]) for part in (np.min, np.max)
    ]


def test_states(axes):
    """The asked-for coordinate, the band of the asked-for level; far observations at the edge, missing ones nowhere."""
    observed = TRUTH + 0.1
    observed[3], observed[7] = np.nan, 1e6
    plots.states(axes, FILTERED, SMOOTHED, 1, truth=TRUTH, observed=observed, level=0.5)
    np.testing.assert_allclose(curve(axes, "smoothed, 50 % band"), SMOOTHED.mean[:, 1])
    np.testing.assert_allclose(curve(axes, "filtered"), FILTERED.mean[:, 1])
    np.testing.assert_allclose(curve(axes, "truth"), TRUTH[:, 1])
    np.testing.assert_allclose(edges(axes.collections[0]), [end[:, 1] for end in SMOOTHED.interval(0.5)])
    shown = curve(axes, "observations")
    assert np.isnan(shown[3]) and np.isfinite(shown[7])
    low, high = axes.get_ylim()
    assert low < np.nanmin(shown) and TRUTH[:, 1].max() < shown[7] < high
    assert axes.get_ylabel() == "state 1"


def test_times_may_be_dates_and_must_be_as_many_as_rows(axes):
    days = np.datetime64("2020-01-01") + np.arange(T)
    plots.states(axes, FILTERED, SMOOTHED, times=days)
    assert axes.lines[0].get_xdata()[0] == days[0]
    with pytest.raises(ValueError, match="40 rows to draw, but 39 times"):
        plots.states(axes, FILTERED, SMOOTHED, times=days[1:])


def test_hindsight(axes):
    plots.hindsight(axes, FILTERED, SMOOTHED, 1)
    outer = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(outer, [end[:, 1] for end in FILTERED.interval(0.9)])
    np.testing.assert_allclose(edges(axes.collections[0]), [end[:, 1] for end in SMOOTHED.interval(0.9)])


def test_elbo(axes):
    """Three curves, bars of two standard errors, and a mark where the monitor warned."""
    plots.elbo(axes, REPORTS)
    np.testing.assert_allclose(curve(axes, "the learner's own"), [0.0, 1.0, 2.0])
    np.testing.assert_allclose(curve(axes, "unbiased, averaged λ"), [-0.5, 0.5, 1.5])
    (bars,) = axes.containers
    np.testing.assert_allclose(bars.lines[0].get_ydata(), [-1.0, 0.0, 1.0])
    heights = [np.ptp(segment[:, 1]) for segment in bars.lines[2][0].get_segments()]
    np.testing.assert_allclose(heights, [0.4, 0.8, 1.2])
    (warned,) = [line for line in axes.lines if line.get_label() == "warning"]
    assert list(warned.get_xdata()) == [1000]


def test_effective_sample_size(axes):
    plots.effective_sample_size(axes, REPORTS, num_particles=50, least=2.0)
    np.testing.assert_allclose(curve(axes, "mean of a window"), [10.0, 5.0, 10 / 3])
    assert set(curve(axes, "particles")) == {50.0} and set(curve(axes, "too few")) == {2.0}
    assert axes.get_yscale() == "log"
    axes.figure.canvas.draw()
    assert "10" in [label.get_text() for label in axes.get_yticklabels()]  # not 10¹


def test_calibration(axes):
    """An overconfident law lies below the diagonal, an honest one on it: 1 000 states, three standard errors."""
    levels = np.linspace(0.1, 0.9, 9)
    states = RNG.normal(size=(1000, 1))
    laws = {"honest law": 1.0, "too sure": 0.25}
    found = {
        name: metrics.calibration(Marginals(jnp.zeros((1000, 1)), jnp.full((1000, 1, 1), v)), states, levels)
        for name, v in laws.items()
    }
    plots.calibration(axes, levels, found)
    assert np.abs(curve(axes, "honest law") - levels).max() < 3 * np.sqrt(0.25 / 1000)
    assert (curve(axes, "too sure") < levels).all()
    with pytest.raises(ValueError, match="At most 4 curves"):
        plots.calibration(axes, levels, dict.fromkeys("abcde", levels))


def test_fan(axes):
    """The bands are quantiles of the draws, nested, and start where the past ends."""
    draws = Draws(jnp.asarray(RNG.normal(size=(400, 12, D)).cumsum(1)))
    future = RNG.normal(size=(12, D))
    plots.fan(axes, draws, 1, past=TRUTH, future=future, levels=(0.5, 0.9))
    assert [c.get_label() for c in axes.collections] == ["90 %", "50 %"]
    outer, inner = (c.get_facecolor()[0] for c in axes.collections)
    assert outer[3] == inner[3] == 1 and inner[:3].sum() < outer[:3].sum()  # told apart in the legend too
    for collection, level in zip(axes.collections, (0.9, 0.5), strict=True):
        np.testing.assert_allclose(edges(collection), [end[:, 1] for end in draws.interval(level)], rtol=1e-5)
    past, ahead = (next(line for line in axes.lines if line.get_label() == name) for name in ("past", "median"))
    assert past.get_xdata()[-1] == -1 and ahead.get_xdata()[0] == 0
    np.testing.assert_allclose(curve(axes, "median"), np.median(draws.values[:, :, 1], axis=0), rtol=1e-5)
    np.testing.assert_allclose(curve(axes, "what came"), future[:, 1])


def test_curves_differ_in_more_than_color(axes):
    """In a gray print they must still be told apart."""
    plots.calibration(axes, [0.5], {name: [0.5] for name in "abcd"})
    looks = [(line.get_linestyle(), line.get_marker()) for line in axes.lines]
    assert len(set(looks)) == len(looks)


def test_save_closes_the_figure(tmp_path):
    figure, axes = plt.subplots()
    plots.learning_curve(axes, [1, 2], [3.0, 2.0], "error", limit=1.0)
    path = plots.save(figure, tmp_path / "picture.png")
    assert path.stat().st_size > 1000 and not plt.fignum_exists(figure.number)


def test_gradient_norm(axes):
    plots.gradient_norm(axes, REPORTS)
    np.testing.assert_allclose(curve(axes, "median of a window"), [r.gradient_norm for r in REPORTS])
    assert axes.get_yscale() == "log"


def test_a_link_in_the_place_of_a_picture_is_replaced(tmp_path):
    """A run directory made by somebody else may hold one that leads to a file of yours."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "plot.png").symlink_to(tmp_path / "mine")
    (tmp_path / ".incoming-plot.png").symlink_to(tmp_path / "mine")
    figure, axes = plt.subplots()
    axes.set_ylabel("odd")
    plots.parameter(axes, [1, 2], [1.0, 2.0], [0.1, 0.1], "$\\frac{")  # a name is no formula
    plots.save(figure, tmp_path / "plot.png")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "plot.png").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "plot.png"]
