"""A model that is another one where the rows lead than near its prior: that is noticed, and the model is read again."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.engine.preparation import MOST_PLACES, prepare
from backstream.learning.plan_check import PlanNews, find_contradiction
from backstream.learning.records import Info
from backstream.runs.config import Config

ROWS = 400


class Thermostat(bs.StateSpaceModel):
    """Linear and Gaussian below 18 degrees, which the prior does not reach."""

    start: float = 15.0
    rise: float = 0.05

    def prior(self, u=None):
        return dist.Normal(jnp.array([self.start]), 0.05).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(jnp.where(x > 18.0, x - 0.4, x + self.rise), 0.05).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.3).to_event(1)


class Dial(bs.StateSpaceModel):
    """Labels of one state, and of another one where the dial is turned far enough."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.95 * x, 0.3).to_event(1)

    def emission(self, x, u):
        shown = 2 * jnp.where(u[0] > 2.0, x[1], x[0])
        return dist.Categorical(logits=jnp.stack([shown, jnp.zeros_like(shown), -shown])[None]).to_event(1)


POSITIONS = (np.arange(ROWS) // 20 % 2 * 3.0)[:, None]


def rows(p, us=None):
    return p.simulate(ROWS, *(() if us is None else (us,)), key=jax.random.key(0))


def test_a_transition_that_bends_far_from_the_prior_is_read_again():
    states, ys = rows(Thermostat())
    result = bs.learn(Thermostat(), ys, progress=False)
    near = bs.Guided.from_model(Thermostat(18.0))  # whose prior is where the transition bends
    assert bs.Guided.from_model(Thermostat()).exact and not near.exact
    assert result.family.plan.transition == near.plan.transition and result.family.plan.update == near.plan.update
    assert result.health.kind == "good" and "was read again" in str(result.health)
    assert 0.85 < bs.metrics.coverage(*result.smooth().interval(0.9), states) < 0.95


@pytest.mark.slow
def test_an_emission_that_other_inputs_change_is_read_again():
    _, ys = rows(Dial(), POSITIONS)
    result = bs.learn(Dial(), ys, inputs=POSITIONS, progress=False)
    first, turned = (bs.Guided.from_model(Dial(), np.array([position])) for position in (0.0, 3.0))
    assert first.plan.update != turned.plan.update == result.family.plan.update
    assert result.health.kind == "good"


def test_too_few_rows_to_read_it_again_are_doubted():
    """They end before the plan is compared with the model for the first time."""
    p = Thermostat(rise=0.1)
    health = bs.learn(p, p.simulate(60, key=jax.random.key(0))[1], progress=False).health
    assert health.kind == "doubtful"
    assert "the model differs from what it is near its prior: its transition" in str(health)


def test_a_run_that_is_resumed_reads_it_again_as_one_that_was_not_interrupted(tmp_path):
    _, ys = rows(Dial(), POSITIONS)
    half = 150  # after the first look, at which the plan changed
    whole = bs.learn(Dial(), ys, inputs=POSITIONS, out=tmp_path / "whole", progress=False)
    bs.learn(Dial(), ys[:half], inputs=POSITIONS[:half], out=tmp_path / "parts", progress=False)
    parts = bs.load(tmp_path / "parts", Dial()).learn(ys[half:], inputs=POSITIONS[half:], progress=False)
    for one, other in zip(jax.tree.leaves(whole.learned), jax.tree.leaves(parts.learned), strict=True):
        if isinstance(one, jax.Array | np.ndarray) and not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.filtered.mean, parts.filtered.mean)
    assert whole.family == parts.family and str(whole.health) == str(parts.health)


def test_a_mixture_takes_over_what_another_plan_has_found():
    """The pieces of a transition that is affine are fewer."""
    affine, bent = (bs.GuidedMixture.from_model(Thermostat(start), components=2) for start in (15.0, 18.0))
    p, state = Thermostat(), jax.jit(lambda: affine.init(Thermostat()))()
    state = jax.jit(lambda state: affine.update(p, state, jnp.array([15.2])))(state)
    taken = bent.taken_over(state)
    jax.tree.map(np.testing.assert_array_equal, (taken.t, taken.log_score), (state.t, state.log_score))
    jax.tree.map(np.testing.assert_allclose, bent.moments(taken), affine.moments(state))
    after = jax.eval_shape(lambda state: bent.update(p, state, jnp.array([15.2])), taken)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, taken)


@pytest.mark.parametrize("record", [["1", ""], [1.0, ""], [1, None], [1], 1, None])
def test_a_record_of_another_shape_is_refused(record):
    """It may come from somebody else's checkpoint."""
    with pytest.raises((TypeError, ValueError)):
        PlanNews.restored(record)
    assert PlanNews.restored([64, "so"]) == PlanNews(64, "so")


def test_a_record_cannot_have_the_model_read_at_any_number_of_places():
    config, place = Config(columns=bs.Columns(("y",)), precision="float64"), [[15.0], [0.1], None]
    with pytest.raises(bs.InputError, match=f"at {MOST_PLACES + 1} places"):
        prepare(Thermostat(), config, {"places": [place] * (MOST_PLACES + 1)})


def infos(mean, std):
    rest = {name: np.zeros(len(mean)) for name in Info._fields}
    return Info(**{**rest, "mean": mean, "std": std})


@pytest.mark.parametrize("crossings", [0, 1, 5])
def test_a_bend_that_the_filter_hardly_ever_meets_is_no_contradiction(crossings):
    p, mean = Thermostat(), np.full((100, 1), 16.0)
    mean[20 : 20 + crossings] = 18.0
    found = find_contradiction(p, bs.Guided.from_model(p), infos(mean, np.full((100, 1), 0.1)), mean)
    if crossings < 5:
        assert found is None
    else:
        assert found is not None
        assert found.share == {"transition": pytest.approx(5 / 99)}
        assert all(place.mean == 18.0 for place in found.places)
