"""The Python interface that a user meets first: learn, load, Tracker and results."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpyro import distributions as dist

import backstream as bs
from backstream.errors import InputError
from backstream.families import Guided

SETTINGS = bs.Settings(learn=False, monitor_every=20)


class Driven(bs.StateSpaceModel):
    """A level that a known input pushes, seen with noise."""

    push: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x + self.push * u, 0.5).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.3).to_event(1)


MODEL = Driven(jnp.array([2.0]))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    us, x, ys = rng.standard_normal((60, 1)), 0.0, []
    for u in us[:, 0]:
        x = 0.9 * x + 2.0 * u + 0.5 * rng.standard_normal()
        ys.append([x + 0.3 * rng.standard_normal()])
    return np.array(ys), us


@pytest.fixture(scope="module")
def result(data):
    return bs.learn(MODEL, data[0][:50], inputs=data[1][:50], settings=SETTINGS, progress=False)


def test_a_result_in_memory_has_the_filter_of_the_model(result, data):
    """Nothing is learned, so that what was told row by row is the filter of the whole; both are the family's own."""
    ys, us = data[0][:50], data[1][:50]
    q = Guided.from_model(MODEL, us[0])
    expected = bs.filter(MODEL, q, ys, us)
    np.testing.assert_allclose(result.filtered.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(result.filtered.std, expected.std, rtol=1e-6)
    np.testing.assert_allclose(result.filter(ys, inputs=us).mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(result.smooth(ys, inputs=us).mean, bs.smooth(MODEL, q, ys, us).mean, rtol=1e-6)
    assert result.forecast(4, inputs=us[:4]).observations.values.shape == (1000, 4, 1)
    column = pd.Series(us[:4, 0])
    np.testing.assert_array_equal(result.forecast(4, column).states.values, result.forecast(4, us[:4]).states.values)
    assert repr(result.smooth()).startswith("Marginals(50 rows, 1 state: mean")
    ahead = repr(result.forecast(4, inputs=us[:4]))
    assert ahead.startswith("Forecast(states=Draws(1,000 paths of 4 rows:") and len(ahead) < 300
    assert repr(result) == f"MemoryResult(Driven: 50 rows of y0; verdict: {result.health.kind})"


def test_a_picture_has_the_scores_of_the_rows_below_the_states(result, data):
    """The histogram of the PIT values and the log score over time; of other rows there are none."""
    upper, below = result.plot().subfigs
    histogram, scores = below.axes
    counts = [bar.get_height() for bar in histogram.patches if bar.get_width() < 0.2]
    expected, _ = np.histogram(result.filtered.pit, np.linspace(0, 1, 11), density=True)
    np.testing.assert_allclose(counts, expected)
    drawn = scores.lines[0].get_ydata()
    parts = np.array_split(result.filtered.log_score, len(drawn))
    np.testing.assert_allclose(drawn, [part.mean() for part in parts], rtol=1e-6)
    assert len(upper.axes) == 2 and len(result.plot(data[0][:20], data[1][:20]).subfigs) == 1
    plt.close("all")


def test_a_result_goes_on_and_the_one_before_stays(result, data):
    whole = bs.learn(MODEL, data[0], inputs=data[1], settings=SETTINGS, progress=False)
    further = result.learn(data[0][50:], data[1][50:], progress=False)
    assert len(further.filtered) == 60 and len(result.filtered) == 50
    np.testing.assert_array_equal(further.filtered.mean, whole.filtered.mean)
    np.testing.assert_array_equal(further.smooth().mean, further.smooth(*data).mean)
    np.testing.assert_array_equal(result.filter().mean, result.filter(data[0][:50], data[1][:50]).mean)
    again = result.learn(data[0][50:], data[1][50:], progress=False)
    np.testing.assert_array_equal(again.filtered.mean, whole.filtered.mean)


def test_a_saved_result_is_a_run(result, data, tmp_path):
    """Saved, opened and continued, it ends where a stream into a directory ends."""
    saved = result.save(tmp_path / "saved")
    opened = bs.load(tmp_path / "saved", MODEL)
    assert opened.filtered.table.equals(result.filtered.table)
    with pytest.raises(InputError, match="does not contain the observations"):
        opened.smooth()
    np.testing.assert_array_equal(saved.smooth().mean, opened.smooth(data[0][:50], data[1][:50]).mean)
    assert len(opened.reports) == len(result.reports) == 2
    saved.learn(data[0][50:], data[1][50:], progress=False)
    whole = bs.learn(MODEL, data[0], inputs=data[1], out=tmp_path / "whole", settings=SETTINGS, progress=False)
    ended = bs.load(tmp_path / "saved", MODEL)
    np.testing.assert_array_equal(ended.filtered.mean, whole.filtered.mean)
    copy = ended.save(tmp_path / "copy")
    assert copy.filtered.table.equals(ended.filtered.table)
    with pytest.raises(InputError, match="already holds a run"):
        result.save(tmp_path / "saved")


def test_tables_and_series_are_as_good_as_arrays(data, tmp_path):
    """Names and dates are kept, and an array is taken where a table was learned from."""
    ys, us = data[0][:30], data[1][:30]
    dates = pd.date_range("2024-03-01", periods=30, freq="D", name="day")
    frame = pd.DataFrame({"level": ys[:, 0]}, index=dates)
    result = bs.learn(MODEL, frame, inputs=pd.DataFrame({"heat": us[:, 0]}), settings=SETTINGS, progress=False)
    assert result.config.columns.observed == ("level",) and result.config.columns.inputs == ("heat",)
    assert result.filtered.table["time"][1].as_py().startswith("2024-03-02")
    plain = bs.learn(MODEL, ys, inputs=us, settings=SETTINGS, progress=False)
    np.testing.assert_array_equal(result.filtered.mean, plain.filtered.mean)
    series = bs.learn(MODEL, frame["level"], inputs=us[:, 0], settings=SETTINGS, progress=False)
    np.testing.assert_array_equal(series.filtered.mean, plain.filtered.mean)
    np.testing.assert_array_equal(result.filter(ys, inputs=us).mean, plain.filter(ys, inputs=us).mean)
    path = tmp_path / "rows.csv"
    lines = [f"{y!r},{u!r}\n" for y, u in zip(ys[:, 0].tolist(), us[:, 0].tolist(), strict=True)]
    path.write_text("level,heat\n" + "".join(lines))
    named = bs.Columns(inputs=("heat",))
    read = bs.learn(MODEL, path, columns=named, settings=SETTINGS, progress=False)
    np.testing.assert_array_equal(read.filtered.mean, plain.filtered.mean)


def test_what_does_not_fit_is_named(result, data):
    ys, us = data[0][:5], data[1][:5]
    for call, sentence in (
        (lambda: result.filter(ys), r"The model has inputs \(u0\)"),
        (lambda: result.filter(ys, inputs=us[:4]), r"inputs must have shape \(5, 1\) \(u0\), not \(4, 1\)"),
        (lambda: result.smooth(inputs=us), "inputs without their rows"),
        (lambda: result.forecast(5), r"The model has inputs \(u0\): pass those of the next 5 rows with inputs="),
        (lambda: result.plot(horizon=5), "in plot: future_inputs="),
        (lambda: result.forecast(5, inputs=us[:4]), r"inputs must have shape \(5, 1\) \(u0\), not \(4, 1\)"),
        (lambda: result.filter(np.zeros((5, 2)), inputs=us), r"1 columns were observed \(y0\), not 2"),
        (lambda: bs.learn(MODEL, ys, inputs=us[:4]), "5 rows of observations, but 4 of inputs"),
        (lambda: bs.learn(MODEL, np.zeros((2, 2, 2)), inputs=us), "must be an array of numbers"),
        (lambda: bs.learn(MODEL, "rows.csv", inputs=us), "Inputs of a file are columns of it"),
        (lambda: bs.learn(MODEL, ys, inputs=us, resume=True), "needs a directory"),
        (lambda: result.filtered.interval(1.0), "strictly between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_a_tracker_is_the_filter_row_by_row(data):
    ys, us = data[0][:20].copy(), data[1][:20]
    ys[7] = np.nan
    q = Guided.from_model(MODEL, us[0])
    expected, tracker, scores = bs.filter(MODEL, q, ys, us), bs.Tracker(MODEL), []
    for t, (y, u) in enumerate(zip(ys, us, strict=True)):
        told = tracker.update(y, u)
        scores.append(told.log_score)
        np.testing.assert_allclose(told.posterior.mean, expected.mean[t], rtol=1e-6)
        np.testing.assert_allclose(told.posterior.cov, expected.cov[t], rtol=1e-6)
        if t:  # the prediction follows from the model, which is linear and Gaussian
            mean, var = 0.9 * expected.mean[t - 1] + 2.0 * u, 0.81 * expected.cov[t - 1] + 0.25
            np.testing.assert_allclose(told.prediction.mean, mean, rtol=1e-6)
            np.testing.assert_allclose(told.prediction.cov, var, rtol=1e-6)
            if t != 7:
                law = dist.Normal(mean[0], float(np.sqrt(var[0, 0] + 0.09)))
                assert told.log_score == pytest.approx(float(law.log_prob(y[0])), abs=1e-6)
    assert scores[7] == 0.0 and tracker.rows == 20
    assert tracker.forecast(3, inputs=us[:3]).states.mean.shape == (3, 1)
    with pytest.raises(ValueError, match="row 20"):
        tracker.update(np.inf, us[0])


@pytest.mark.parametrize("u", [0.5, 1, [0.5]])
def test_a_tracker_takes_inputs_as_numbers(u):
    """As `learn` takes a column of numbers. The model indexes its inputs."""

    class Indexed(Driven):
        def transition(self, x, u=None):
            return dist.Normal(0.9 * x + self.push * u[0], 0.5).to_event(1)

    one, other = bs.Tracker(Indexed(jnp.array([2.0]))), bs.Tracker(Indexed(jnp.array([2.0])))
    for y in (0.3, 1.2):
        told, expected = one.update(y, u), other.update(y, np.array([u], float).reshape(1))
    np.testing.assert_array_equal(told.posterior.mean, expected.posterior.mean)
