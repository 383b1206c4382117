"""Which numbers of a model are learned, and what they are called."""

import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from backstream import learn
from backstream.learning import Settings
from backstream.learning.parameters import ModelParameters
from backstream.learning.presets import build
from backstream.models import StateSpaceModel
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
