"""The zoo of models: each works in both precisions, its references are right, and comparisons say what they measure."""

import dataclasses
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backstream.models import ChaoticRNN, check_model
from benchmarks import assimilation, networks, wide_emissions
from benchmarks.zoo import catalogue, comparison, gaussian_filters, laws, methods, report, scores
from benchmarks.zoo.case import Data, Posterior
from benchmarks.zoo.references.bound import bound
from benchmarks.zoo.references.chains import chain_smoother
from benchmarks.zoo.references.grid import Grid
from benchmarks.zoo.references.kalman import Exact
from benchmarks.zoo.references.particles import average, converged, particle_smoother

NAMES = catalogue.SINGLE_MODE + catalogue.SEVERAL_MODES


def short(name: str, rows: int):
    """A model of the zoo with fewer rows, and its first data set."""
    case = dataclasses.replace(catalogue.find(name), rows=rows)
    return case, case.simulate(0)


def test_catalogue_lists_every_file():
    files = {path.stem for path in Path(catalogue.__file__).parent.glob("models/*.py")}
    assert files == set(NAMES)
    assert all(catalogue.find(name).name == name for name in NAMES)
    with pytest.raises(ValueError, match="No model 'zebra'"):
        catalogue.find("zebra")


@pytest.mark.parametrize("name", NAMES)
def test_models_run_in_both_precisions(name):
    """Densities at simulated rows are finite in float64, and float32 stays float32."""
    case, data = short(name, 20)
    u = None if data.us is None else data.us[-1]
    shape = check_model(case.build(), u)
    assert data.states.shape == (20, shape.state_dim) and data.ys.shape == (20, shape.obs_dim)

    def densities(x, y, u):
        model = case.build()
        law = model.transition(x, u)
        return model.prior(u).log_prob(x), law.sample(jax.random.key(0)), laws.log_emission(model, x, y, u)

    _, drawn, seen = jax.jit(densities)(data.states[-1], data.ys[-1], u)
    assert np.isfinite(drawn).all() and np.isfinite(seen)
    with jax.enable_x64(False):
        single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (data.states[-1], data.ys[-1], u))
        kinds = jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(densities, *single))
        parameters = case.build()
    assert set(jax.tree.leaves(kinds)) == {jnp.dtype("float32")}
    # An analysis at the end of a chaotic run is known to fewer digits in float32.
    same = jax.tree.map(lambda one, other: np.allclose(one, other, rtol=1e-3, atol=1e-3), case.build(), parameters)
    assert all(jax.tree.leaves(same))


def test_kalman_is_the_conditional_law():
    """Of all states given all rows, by conditioning their joint normal law; the process noise is singular."""
    case, data = short("sunspots", 6)
    found, half, _ = Exact().run(case.build(), data, 0)
    A, shock, noise, rows = np.array([[1.6, -0.9], [1.0, 0.0]]), 8.0, 10.0, 6
    paths = np.zeros((rows, 2, 2 + rows))  # each state as a sum of independent parts: two of the prior, shocks
    paths[0, :, :2] = 30 * np.eye(2)
    for t in range(1, rows):
        paths[t] = A @ paths[t - 1]
        paths[t, 0, 1 + t] += shock
    seen = paths[:, 0]

    def given(rows_seen):
        S = seen[:rows_seen] @ seen[:rows_seen].T + noise**2 * np.eye(rows_seen)
        gain = np.linalg.solve(S, seen[:rows_seen]).T
        parts, left = gain @ data.ys[:rows_seen, 0], np.eye(2 + rows) - gain @ seen[:rows_seen]
        return paths @ parts, paths @ left @ paths.transpose(0, 2, 1), S

    mean, cov, S = given(rows)
    assert half is None
    np.testing.assert_allclose(found.smoothed_mean, mean, rtol=1e-9)
    np.testing.assert_allclose(found.smoothed_cov, cov, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.filtered_mean[3], given(4)[0][3], rtol=1e-9)
    joint = jax.scipy.stats.multivariate_normal.logpdf(data.ys[:, 0], np.zeros(rows), S)
    np.testing.assert_allclose(found.log_score.sum(), joint, rtol=1e-9)


def test_kalman_refuses_what_is_not_linear():
    case, data = short("pendulum", 5)
    with pytest.raises(ValueError, match=r"Pendulum\.transition is not linear"):
        Exact().run(case.build(), data, 0)


def test_grid_agrees_with_kalman():
    """With inputs that change the transition in every row. The error of the rule is far below the tolerance."""
    case, data = short("quasar", 40)
    data.us[1:, 0] += 2.0  # the grid must resolve the shortest step's noise
    grid, half, _ = Grid(margin=2.0, nodes=400).run(case.build(), data, 0)
    exact, _, _ = Exact().run(case.build(), data, 0)
    for ours, half_of_ours, theirs in zip(grid, half, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
        np.testing.assert_allclose(half_of_ours, theirs, rtol=1e-7)


def test_grid_grows_until_no_mass_is_at_its_ends():
    case, data = short("volatility", 20)
    wide, _, effort = Grid(margin=6.0, nodes=400).run(case.build(), data, 0)
    assert effort == "400 nodes"
    grown, _, effort = Grid(margin=0.1, nodes=100).run(case.build(), data, 0)
    assert int(effort.split()[0]) > 100
    np.testing.assert_allclose(grown.filtered_mean, wide.filtered_mean, atol=1e-4)


def test_grid_refuses_what_has_no_end(monkeypatch):
    case, data = short("volatility", 20)
    monkeypatch.setattr("benchmarks.zoo.references.grid.MOST_WIDENINGS", 1)
    with pytest.raises(ValueError, match="at the edge of a grid"):
        Grid(margin=0.1, nodes=100).run(case.build(), data, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trades", "wind"])
def test_particles_agree_with_the_grid(name):
    """With 2048 particles and four keys, means differed by 0.03 to 0.06 posterior standard deviations, root mean square
    over 50 rows; the filter's mean in the place of the smoother's is off by 0.6. The key is fixed.
    """
    case, data = short(name, 50)
    exact, _, _ = case.reference.run(case.build(), data, 0)
    found = particle_smoother(case.build(), data.ys, None, 2048, jax.random.key(0))
    spread = np.sqrt(exact.smoothed_cov[..., 0])

    def off(mean):
        return np.sqrt(np.mean(((mean - exact.smoothed_mean) / spread) ** 2))

    assert off(found.smoothed_mean) < 0.1 < off(exact.filtered_mean)
    assert np.sqrt(np.mean(((found.filtered_mean - exact.filtered_mean) / spread) ** 2)) < 0.1
    np.testing.assert_allclose(np.mean(found.smoothed_cov / exact.smoothed_cov), 1, atol=0.05)
    np.testing.assert_allclose(np.mean(found.filtered_cov / exact.filtered_cov), 1, atol=0.05)
    assert abs(np.mean(found.log_score) - exact.log_score.mean()) < 0.01


@pytest.mark.slow
def test_chains_agree_with_kalman():
    """800 draws whose average converges faster than that of independent ones: their mean is off by less than 0.04
    posterior standard deviations, and by a few times that where the start of the window is wrong. The key is fixed.
    """
    case, data = short("revenue", 12)
    exact, _, _ = Exact().run(case.build(), data, 0)
    guess = gaussian_filters.ukf(case.build(), data.ys, None).smoothed_mean
    found = chain_smoother(case.build(), data.ys, None, guess, 6, 8, 100, jax.random.key(0))

    def off(mean, other):
        return np.sqrt(np.mean((mean - other) ** 2 / np.diagonal(exact.smoothed_cov, axis1=1, axis2=2)))

    assert off(found.filtered_mean, exact.filtered_mean) < 0.2
    assert off(found.smoothed_mean, exact.smoothed_mean) < 0.1 < off(exact.filtered_mean, exact.smoothed_mean)
    np.testing.assert_allclose(np.mean(found.smoothed_cov / exact.smoothed_cov), 1, atol=0.1)
    assert abs(found.log_score - exact.log_score).max() < 0.2


def test_the_bound_of_a_network_is_the_law_of_one_unit_given_the_others():
    """Against sums over all paths of one unit of three, three rows, with the model's own densities."""
    network = ChaoticRNN(3 * jax.random.normal(jax.random.key(0), (3, 3)), step=0.01)
    states, ys = (np.asarray(part) for part in network.simulate(3, key=jax.random.key(1)))
    nodes = states[:, :1] + np.arange(-1.0, 1.025, 0.05)
    paths = np.stack(np.meshgrid(*nodes, indexing="ij"), -1)  # of unit 0

    def log_density(path, rows):
        x = jnp.asarray(states).at[:, 0].set(path)
        seen = jax.vmap(network.emission)(x).log_prob(jnp.asarray(ys))
        moved = jax.vmap(network.transition)(x[:-1]).log_prob(x[1:])
        return network.prior().log_prob(x[0]) + seen[:rows].sum() + moved[: rows - 1].sum()

    def mean(rows):
        log_p = jax.vmap(lambda path: log_density(path, rows))(paths.reshape(-1, 3)).reshape(paths.shape[:3])
        weight = np.exp(log_p - log_p.max())
        return np.array([(weight * paths[..., t]).sum() / weight.sum() for t in range(3)])

    filtered, smoothed = bound(network, states, ys, 0.05)
    np.testing.assert_allclose(filtered[1, 0], mean(2)[1], rtol=1e-6)
    np.testing.assert_allclose(smoothed[:, 0], mean(3), rtol=1e-6)


def test_particles_average_and_converge():
    states = np.array([[0.0], [1.0], [2.0]])
    one, other = (
        Posterior(states + shift, None, states + shift, None, np.log(p)) for shift, p in ((0.1, 1.0), (0.3, 3.0))
    )
    one, other = (
        part._replace(filtered_cov=np.ones((3, 1, 1)), smoothed_cov=np.ones((3, 1, 1))) for part in (one, other)
    )
    both = average([one, other])
    np.testing.assert_allclose(both.filtered_mean, states + 0.2)
    np.testing.assert_allclose(both.log_score, np.log(2.0))
    assert converged(one, one, states)
    assert not converged(one, one._replace(smoothed_mean=states + 0.101), states)
    assert not converged(one, one._replace(filtered_mean=states + 0.101), states)
    assert not converged(one, one._replace(log_score=one.log_score + 0.002), states)


@pytest.mark.parametrize("method", [gaussian_filters.ekf, gaussian_filters.ukf])
@pytest.mark.parametrize("name", ["heating", "aircraft", "revenue"])
def test_gaussian_filters_are_exact_where_the_model_is_linear(method, name):
    case, data = short(name, 30)
    exact, _, _ = Exact().run(case.build(), data, 0)
    found = method(case.build(), data.ys, data.us)
    for ours, theirs in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())


def test_gaussian_filters_take_angles_the_short_way():
    """A vane that jumps from π to −π has hardly moved."""
    case, _ = short("wind", 5)
    ys = np.array([[3.1], [-3.1], [3.1], [-3.1], [3.1]])
    found = gaussian_filters.ekf(case.build(), ys, None)
    assert (found.filtered_mean[:, 0] > 2.0).all()


@pytest.mark.parametrize("name", ["labels", "diary"])
def test_gaussian_filters_refuse_laws_without_moments(name):
    case, data = short(name, 5)
    with pytest.raises(gaussian_filters.NotApplicableError):
        gaussian_filters.ekf(case.build(), data.ys, data.us)


def test_scores():
    random = np.random.default_rng(0)
    states = random.normal(size=(400, 2)) * [1.0, 100.0]
    away = random.normal(size=(400, 2)) * [0.1, 20.0]
    cov = np.broadcast_to(np.diag([0.01, 400.0]), (400, 2, 2))
    reference = Posterior(states + away, cov, states + away / 2, cov, np.zeros(400))
    data = Data(states, np.zeros((400, 4)), None)
    same = scores.against(reference, reference, data)
    assert same["filtering"] == same["smoothing"] == {"ratio": 1.0, "error": 0.0}
    assert same["log_score"] == {"difference": 0.0, "error": 0.0}
    np.testing.assert_allclose(same["rmse"][0], 0.15, rtol=0.1)  # the mean of 0.1 and 0.2 standard deviations
    assert same["coverage"][0] == np.mean(np.abs(away / [0.1, 20.0]) < 1.6449) and same["coverage"][1] > 0.99
    worse = reference._replace(filtered_mean=states + 2 * away, log_score=np.full(400, -1.0))
    found = scores.against(worse, reference, data)
    np.testing.assert_allclose([found["filtering"]["ratio"], found["smoothing"]["ratio"]], [2, 1])
    assert found["log_score"]["difference"] == -0.25  # a column
    shown = np.stack([states[:, 0] + 3 * away[:, 0], np.full(400, np.nan)], 1)
    np.testing.assert_allclose(scores.raw_ratio(shown, reference, states), [3, 6])


def test_the_error_of_a_ratio():
    """The bootstrap's standard error is that of the ratio over fresh data, within the 25 % that 60 data sets can tell
    (4.5 standard errors of it); the seed is fixed.
    """
    random = np.random.default_rng(1)
    found = []
    for _ in range(60):
        states, first, second = random.normal(size=(3, 1000, 1))
        found.append(scores.ratio(states + 0.3 * first + 0.1 * second, states + 0.3 * first, states))
    spread = np.std([part["ratio"] for part in found])
    assert 0.6 < np.mean([part["error"] for part in found]) / spread < 1.6


@pytest.mark.slow
def test_comparison_and_page(tmp_path, monkeypatch):
    """From data to results, page and picture; results of other methods stay, those of another model's file do not."""
    monkeypatch.setenv("BACKSTREAM_BENCHMARKS", str(tmp_path / "cache"))
    path, page = tmp_path / "zoo.json", tmp_path / "zoo.md"
    cases = [dataclasses.replace(catalogue.find(name), rows=100) for name in ("revenue", "labels", "lorenz96_laplace")]
    cases[1:] = [dataclasses.replace(case, reference=None) for case in cases[1:]]  # they would take minutes
    comparison.compare(cases, ["ekf"], 2, path)
    comparison.compare(cases[:1], ["ukf"], 1, path)
    content = json.loads(path.read_text())["models"]
    first = content["revenue"]["0"]
    assert first["methods"].keys() == {"ekf", "ukf"} and content["revenue"]["1"]["methods"].keys() == {"ekf"}
    assert first["methods"]["ekf"]["filtering"]["ratio"] == pytest.approx(1, abs=1e-6) and first["raw"][0] > 1
    assert "not_applicable" in content["labels"]["0"]["methods"]["ekf"]
    assert "reference" not in content["lorenz96_laplace"]["0"]
    comparison.compare([dataclasses.replace(cases[0], rows=101)], ["ekf"], 1, path)
    assert json.loads(path.read_text())["models"]["revenue"]["0"]["methods"].keys() == {"ekf"}
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 7

    page.write_text(report.PAGE.read_text())
    report.render(path, page, tmp_path / "zoo.png")
    text = page.read_text()
    assert "| business: trend near 10⁶ | 2 | 1 |" in text and "no mean" in text and "1.00 / 1.00" in text
    assert (tmp_path / "zoo.png").stat().st_size > 5000
    report.render(path, page, tmp_path / "zoo.png")
    assert page.read_text() == text


def test_committed_page_is_that_of_the_committed_results(tmp_path):
    page = tmp_path / "zoo.md"
    page.write_text(report.PAGE.read_text())
    report.render(page=page, picture=tmp_path / "zoo.png")
    assimilation.render(page=page)
    wide_emissions.render(page=page)
    networks.render(page=page)
    assert page.read_text() == report.PAGE.read_text()
    assert comparison.RESULTS.stat().st_size < 200_000


def test_learned_posteriors_have_learned():
    """The model's noise is a fifth of that of the rows: the factor has to grow."""
    case, data = short("thermometer", 400)
    narrow = dataclasses.replace(case.build(), drift=jnp.array(0.02))
    assert methods.METHODS["learned"].prepare(narrow, data, data).log_inflation > 0
    assert methods.METHODS["guided"].prepare(narrow, data, None).log_inflation == 0


def test_comparison_refuses_unknown_methods(tmp_path):
    with pytest.raises(SystemExit, match="No method 'magic'"):
        comparison.compare([], ["magic"], 1, tmp_path / "zoo.json")


def test_assimilation_truth_has_no_noise():
    setting = assimilation.SETTINGS["Lorenz96/bocquet2010_m40"]
    truth = setting.build(jnp.array(0.0))
    states, ys = eqx.filter_jit(truth.simulate)(4, key=jax.random.key(0))
    moved = jax.jit(jax.vmap(lambda x: truth.transition(x).mean))(states[:-1])
    np.testing.assert_allclose(states[1:], moved, rtol=1e-12)
    assert ys.shape == (4, 20)


def test_assimilation_error():
    """The mean over rows after the burn-in of the root mean square over coordinates."""
    states = np.zeros((3, 2))
    mean = np.array([[9.0, 9.0], [3.0, 3.0], [1.0, 7.0]])
    assert assimilation.analysis_error(mean, states, 1) == pytest.approx((3 + 5) / 2)
