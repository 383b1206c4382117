"""Which numbers of a model are learned, and what they are called."""

import json
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints

from backstream import InputError, learn, load
from backstream.learning import Settings, step_evidence
from backstream.learning.parameters import ModelParameters, free_parameters
from backstream.learning.presets import build, default_learner
from backstream.models import StateSpaceModel, StochasticVolatility
from command import here
from command import run as command

KEY = jax.random.key(0)


class Mixed(StateSpaceModel):
    """A field of each kind that a name can point at."""

    phi: Any
    sigma: Any
    order: Any = 3
    shift: Any = 0.5
    lags: Any = eqx.field(default_factory=lambda: jnp.arange(2))

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.phi[0, 1] * x, self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)


def test_numbers_behind_a_bijection_are_known():
    """The search takes smaller steps in logarithms and log odds than in others. Names leave the rest out."""
    one = jnp.ones(1)
    p = StochasticVolatility(mu=0 * one, phi=0.9 * one, sigma=0.2 * one)
    bounded = ModelParameters(p).bounded()
    assert (bounded.mu, bounded.phi, bounded.sigma) == (0, 1, 1)
    some = ModelParameters(p, free_parameters(p, ("mu", "sigma"))).bounded()
    assert (some.mu, some.phi, some.sigma) == (0, None, 1)


def test_gradients_and_errors_go_through_the_bijections():
    """σ = e^s: a gradient in σ becomes σ times it, and a standard error of s becomes σ times it; μ is as it is."""
    one = jnp.ones(1)
    p = StochasticVolatility(mu=0 * one, phi=0.9 * one, sigma=0.2 * one)
    parameters = ModelParameters(p, free_parameters(p, ("mu", "sigma")))
    raw = parameters.unconstrained()
    gradient = eqx.tree_at(lambda p: (p.mu, p.phi, p.sigma), p, (3.0 * one, 5.0 * one, 7.0 * one))
    pulled = parameters.pull(raw, gradient)
    np.testing.assert_allclose([*pulled.mu, *pulled.sigma], [3.0, 0.2 * 7.0], rtol=1e-12)
    assert pulled.phi is None
    np.testing.assert_allclose(parameters.errors(raw, jnp.diag(jnp.array([4.0, 9.0]))), [2.0, 0.2 * 3.0], rtol=1e-12)


def test_parameters_are_chosen_by_name():
    """Only what is named moves, and has derivatives; what cannot be learned is refused by name."""
    p = Mixed(jnp.full((1, 2), 0.5), jnp.array(0.3))
    made, q, key = build(p, Settings(learn_parameters=("sigma",)))
    learner = made.learner
    assert learner._parameters().names() == ("sigma",)
    assert ModelParameters(p).names() == ("phi[0,0]", "phi[0,1]", "sigma")
    ys = p.simulate(40, key=KEY)[1]
    state, _ = learner.step(learner.init(q, key=key), ys[0])
    assert state.carry.sensitivity.shape[1] == 1
    state, _ = learner.scan(state, ys[1:])
    moved = learner.current_model(state)
    assert moved.sigma != p.sigma
    np.testing.assert_array_equal(moved.phi, p.phi)
    for name, sentence in (
        ("tau", "Mixed has no parameter 'tau'. It has phi, sigma"),
        ("shift", r"Python float, which stays as it is: to have it learned, make it an array, jnp.array\(0.5\)"),
        ("order", "Python int"),
        ("lags", "int.* numbers: only floating-point numbers can be learned"),
    ):
        with pytest.raises(ValueError, match=sentence):
            build(p, Settings(learn_parameters=(name,)))


def test_parameters_are_reported_over_time(tmp_path):
    """Each look of the monitor has every learned number by its name; the table, `inspect` and the picture read them."""
    p = Mixed(jnp.full((1, 2), 0.5), jnp.array(0.3))
    ys = np.asarray(p.simulate(601, key=KEY)[1])
    run = learn(
        p, ys, out=tmp_path / "run", progress=False, settings=Settings(learn_parameters=("sigma",), monitor_every=100)
    )
    table = run.parameters()
    assert table["name"].unique().to_pylist() == ["sigma"]
    assert table["row"].to_pylist() == [101, 201, 301, 401, 501, 601]
    assert table["value"][-1].as_py() == pytest.approx(float(run.model.sigma), rel=1e-6)
    assert table["error"][0].as_py() is None, "a search has no standard errors"
    assert 0 < table["error"][-1].as_py() < 0.2

    told = json.loads(command("inspect", str(tmp_path / "run"), "--json").stdout)["parameters"]["sigma"]
    before = table["value"][-2].as_py()
    assert told["value"] == table["value"][-1].as_py()
    assert told["change"] == pytest.approx(told["value"] - before)
    assert "Parameter  sigma = " in command("inspect", str(tmp_path / "run")).stdout
    command("plot", str(tmp_path / "run"), "--parameters", "--out", str(tmp_path / "theta.png"))
    assert (tmp_path / "theta.png").stat().st_size > 5000


def small(count=60):
    p = Mixed(jnp.full((1, 2), 0.5), jnp.array(0.3))
    return p, np.asarray(p.simulate(count, key=KEY)[1])


def test_names_are_given_to_learn():
    """One name, several, or all; they win over the settings. What cannot be learned is refused before a row is read."""
    p, ys = small()
    by_settings = learn(p, ys, settings=Settings(learn_parameters=("sigma",)), progress=False).model
    for names in ("sigma", ["sigma"]):
        model = learn(p, ys, learn=names, progress=False).model
        np.testing.assert_array_equal(model.sigma, by_settings.sigma)
        np.testing.assert_array_equal(model.phi, p.phi)
    model = learn(p, ys, learn="all", progress=False).model
    assert model.sigma != p.sigma and model.phi[0, 1] != p.phi[0, 1]
    with pytest.raises(InputError, match="Mixed has no parameter 'tau'"):
        learn(p, ys, learn=["tau"], progress=False)


def test_steps_may_be_optax_transformations(tmp_path):
    """Per parameter: phi stays as its steps say, sigma moves as its own say. Such a run goes on in memory, and is not
    written down."""
    p, ys = small()
    steps = {"all": optax.sgd(0.01), "phi": optax.set_to_zero()}
    result = learn(p, ys, learn=steps, progress=False)
    state = result.learned.state
    np.testing.assert_array_equal(state.theta.phi, p.phi)
    assert state.theta.sigma != p.sigma
    further = result.learn(ys, progress=False)
    assert further.learned.state.theta.sigma != state.theta.sigma
    slower = learn(p, ys, learn={"sigma": optax.sgd(0.0001)}, progress=False).learned.state
    assert 0 < abs(slower.theta.sigma - p.sigma) < 0.1 * abs(state.theta.sigma - p.sigma)
    for write in (lambda: result.save(tmp_path / "a"), lambda: learn(p, ys, learn=steps, out=tmp_path / "b")):
        with pytest.raises(InputError, match="cannot be written into a run directory"):
            write()
    assert not any(tmp_path.iterdir())
    with pytest.raises(InputError, match="steps of sigma must be an optax transformation"):
        learn(p, ys, learn={"sigma": 0.1}, progress=False)


def test_names_on_the_command_line(tmp_path):
    """`--learn` writes what bs.learn with the same names does; an unknown name leaves no directory behind."""
    (tmp_path / "wave.py").write_text(MODEL)
    _, ys = small()
    np.savetxt(tmp_path / "obs.csv", ys, delimiter=",", header="y", comments="")
    files = tmp_path / "wave.py:Wave", tmp_path / "obs.csv", "--out", tmp_path / "run"
    run = "stream", *files, "--precision", "float64"
    assert "Wave has no parameter 'tau'. It has phi, sigma." in here(*run, "--learn", "phi,tau", check=2).stderr
    assert not (tmp_path / "run").exists()
    here(
        *run,
        "--learn",
        "phi",
        "--model-learning-rate",
        "0.05",
        "--model-learning-rate-halved-after",
        "0",
        "--model-horizon",
        "300",
    )
    opened = load(tmp_path / "run", str(tmp_path / "wave.py:Wave"))
    assert opened.config.learning == Settings(
        learn_parameters=("phi",), model_learning_rate=0.05, model_learning_rate_halved_after=0, model_horizon=300
    )
    assert opened.model.phi != 0.5 and opened.model.sigma == pytest.approx(0.3)


MODEL = """
import jax.numpy as jnp
import numpyro.distributions as dist
from backstream import StateSpaceModel


class Wave(StateSpaceModel):
    phi: object
    sigma: object

    def __init__(self):
        self.phi, self.sigma = jnp.array(0.5), jnp.array(0.3)

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.phi * x, self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)
"""


class Networked(StateSpaceModel):
    """A network as a field: the mean of the transition."""

    net: eqx.nn.MLP
    sigma: Any

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(self.net(x), self.sigma).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.3).to_event(1)


@pytest.mark.slow
def test_a_network_is_a_field_like_any_other():
    """It is learned by its name, and a part of it by that of the part; each number is reported; the rest stays. What
    was learned predicts better than the start, by more than 0.1 nats per row."""
    net = eqx.nn.MLP(1, 1, 2, depth=1, activation=jnp.tanh, key=KEY)
    swinging = eqx.tree_at(lambda net: net.layers[-1].weight, net, -2.0 * jnp.sign(net.layers[0].weight).T)
    sigma = jnp.array(0.3)
    start = Networked(net, sigma)
    ys = np.asarray(Networked(swinging, sigma).simulate(1500, key=KEY)[1])
    result = learn(start, ys, learn="net", progress=False)
    names = result.parameters()["name"].unique().to_pylist()
    assert names[:2] == ["net.layers[0].weight[0,0]", "net.layers[0].weight[1,0]"] and len(names) == 7
    assert result.model.sigma == sigma
    early, late = (
        np.mean([report.average_elbo for report in part]) for part in (result.reports[:1], result.reports[1:])
    )
    assert late > early + 0.1
    bias = learn(Networked(net, sigma), ys[:50], learn="net.layers", progress=False).model
    assert bias.net.layers[0].weight[0, 0] != net.layers[0].weight[0, 0]


@pytest.mark.parametrize("horizon", [None, 500])
def test_a_jump_is_followed_and_said(horizon):
    """The noise of the state triples in mid-stream. The monitor says so in one of the two windows after the jump, and
    in no other; in the end the estimate is within four standard errors of the new value, and the evidence has the age
    of the jump."""
    phi = jnp.full((1, 2), 0.5)
    parts = [Mixed(phi, jnp.array(scale)).simulate(1500, key=KEY)[1] for scale in (0.5, 1.5)]
    settings = Settings(learn_parameters=("sigma",), model_horizon=horizon, monitor_every=250)
    watched, q, key = build(Mixed(phi, jnp.array(0.6)), settings)
    state = watched.learner.init(q, key=key)
    assert step_evidence(watched.learner, state).rows_since_restart is None
    result = learn(Mixed(phi, jnp.array(0.6)), np.concatenate(parts), settings=settings, progress=False)
    said = [report.t for report in result.reports if any("no longer fit" in words for words in report.warnings)]
    assert said and set(said) <= {1751, 2001}
    found = result.reports[-1].parameters["sigma"]
    assert abs(found.value - 1.5) < 4 * found.error < 1.0
    evidence = step_evidence(watched.learner, result.learned.state)
    assert evidence.settled and not evidence.stuck and evidence.horizon == horizon
    assert 500 < evidence.rows_since_restart < 1500


@pytest.mark.parametrize(
    ("settings", "family", "model"),
    [
        (Settings(learn_model=True, model_learning_rate=0.1), (0.01, 0.001), (0.1, 0.01)),
        (Settings(learn_model=True, model_learning_rate=0.1, learning_rate=0.2, horizon=300), (0.2, 0.2), (0.1, 0.01)),
        (Settings(learn_model=True, model_learning_rate=0.1, model_horizon=300), (0.01, 0.001), (0.1, 0.1)),
        (
            Settings(learn_model=True, model_learning_rate=0.1, model_learning_rate_halved_after=100),
            (0.01, 0.001),
            (0.1, 0.01),
        ),
        (Settings(learn_model=True, model_learning_rate=0.1, learning_rate_halved_after=0), (0.01, 0.01), (0.1, 0.01)),
    ],
)
def test_rates_of_posterior_and_model_are_set_apart(settings, family, model):
    """Under a constant gradient a step of Adam is its rate: at the first row, and after a million. Averages forget
    after the horizon of their own."""
    learner = default_learner(small()[0], settings)
    for optimizer, rates in ((learner.optimizer, family), (learner.model_optimizer, model)):
        state = optimizer.init(jnp.zeros(1))
        later = optax.tree.set(state, count=10**6, mu=jnp.ones(1), nu=jnp.ones(1))
        steps = [optimizer.update(jnp.ones(1), at, jnp.zeros(1))[0] for at in (state, later)]
        np.testing.assert_allclose(-np.concatenate(steps), rates, rtol=1e-3)
    assert learner.averaging.horizon == (settings.horizon or 4000)
    assert learner.model_averaging.horizon == (settings.model_horizon or 4000)


def test_constraints_of_matrices_and_python_numbers():
    """Entries above a diagonal are never dropped without a word, and what is not learned may be a Python number."""

    class Rates(Mixed):
        constraints: ClassVar = {"phi": constraints.positive, "shift": constraints.positive}

    wide = Rates(jnp.array([[0.5, 2.0]]), jnp.array(0.3))
    parameters = ModelParameters(wide, free_parameters(wide))
    np.testing.assert_allclose(parameters.model(parameters.unconstrained()).phi, wide.phi, rtol=1e-6)
    with pytest.raises(ValueError, match=r"phi of Rates is a square matrix .* above its diagonal"):
        free_parameters(Rates(jnp.array([[0.5, 2.0], [1.0, 1.0]]), jnp.array(0.3)))
    free_parameters(Rates(jnp.array([[0.5, 0.0], [1.0, 1.0]]), jnp.array(0.3)))
