"""When the family that is not reported reads along, and which of the two is reported."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from backstream import StateSpaceModel
from backstream.estimators import LogScore
from backstream.families import Guided
from backstream.learning import OnlineLearner
from backstream.learning.unlearned import COUNTED, FIRST, HORIZON, PERIOD, UNCOUNTED, Turn, Unlearned

KEY = jax.random.key(2)


class Level(StateSpaceModel):
    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(3.0, x, 0.3).to_event(1)


@eqx.filter_jit
def filtered(p, q, state, ys):
    return jax.lax.scan(lambda state, y: (q.update(p, state, y), None), state, jnp.asarray(ys))[0]


def test_what_predicts_better_by_next_to_nothing_is_not_reported():
    """Where rows say nothing, λ moves and changes the bands, but not the scores."""
    q = Guided.from_model(Level())
    begun = Unlearned.begin(q, q.init(Level()), True, q.log_inflation.dtype)
    nothing, much = (begun._replace(advantage=jnp.asarray(gain)) for gain in (5e-6, 1e-3))
    assert not nothing.pays and much.pays
    asked = Unlearned.begin(q, q.init(Level()), False, q.log_inflation.dtype)
    assert asked._replace(advantage=jnp.asarray(-1.0)).pays


def test_turns_by_the_number_of_the_row():
    turns = jax.vmap(Turn.of)(jnp.arange(2 * PERIOD + 100))
    reads, begins, counts = map(np.asarray, turns[:3])
    first = np.arange(FIRST)
    later = (np.arange(PERIOD, 2 * PERIOD, PERIOD)[:, None] + np.arange(UNCOUNTED + COUNTED)).ravel()
    last = 2 * PERIOD + np.arange(UNCOUNTED + COUNTED)
    np.testing.assert_array_equal(np.flatnonzero(reads), np.concatenate([first, later, last]))
    np.testing.assert_array_equal(np.flatnonzero(begins), [PERIOD, 2 * PERIOD])
    np.testing.assert_array_equal(np.flatnonzero(counts), np.concatenate([first, later[UNCOUNTED:], last[UNCOUNTED:]]))
    assert float(turns.weight[0]) == 1.0 and float(turns.weight[-1]) == pytest.approx(PERIOD / COUNTED)


def test_the_advantage_is_a_running_mean_of_the_rows_that_count():
    """By hand; a row of a later period stands for as many as the period has for each that counts."""
    one = Unlearned(jnp.asarray(1.0), None, jnp.asarray(0.0), jnp.asarray(0.0))  # type: ignore[arg-type]
    one, gain, turned = one.next(jnp.asarray(0), jnp.asarray(-2.0), jnp.asarray(-1.5))
    assert float(gain) == 0.5 and float(one.advantage) == 0.5, "the unlearned one was reported, and was worse"
    assert bool(turned) and one.reported(jnp.asarray(7.0)) == 7.0 and one.other(jnp.asarray(7.0)) == 1.0
    one, gain, turned = one.next(jnp.asarray(1), jnp.asarray(-2.0), jnp.asarray(-1.8))
    assert float(gain) == pytest.approx(-0.2) and float(one.advantage) == pytest.approx(0.15) and not bool(turned)
    late = jnp.asarray(5 * PERIOD + UNCOUNTED)
    after, gain, _ = one.next(late, jnp.asarray(-1.0), jnp.asarray(-3.0))
    weight = PERIOD / COUNTED / HORIZON
    assert float(gain) == 2.0 and float(after.advantage) == pytest.approx(0.15 + weight * (2.0 - 0.15))
    after, gain, turned = one.next(late - 1, jnp.asarray(-1.0), jnp.asarray(-3.0))
    assert np.isnan(gain) and after.advantage == one.advantage and not bool(turned), "which does not count"


def test_the_other_family_reads_along_from_the_state_of_the_reported_one():
    p = Level()
    ys = np.asarray(p.simulate(PERIOD + 30, key=KEY)[1])
    off = eqx.tree_at(lambda q: q.log_inflation, Guided.from_model(p), jnp.asarray(4.0))
    learner = OnlineLearner(p, LogScore(), optax.adam(5e-2), num_draws=0)
    state, _ = learner.scan(learner.init(off, key=KEY), ys[:FIRST])
    assert bool(state.unlearned.pays), "λ starts far off, and is learned away from"
    alone = filtered(p, off, off.init(p), ys[:FIRST])
    np.testing.assert_allclose(state.unlearned.state.mean, alone.mean, rtol=1e-6)
    state, _ = learner.scan(state, ys[FIRST:PERIOD])
    np.testing.assert_allclose(state.unlearned.state.mean, alone.mean, rtol=1e-6, err_msg="it was not its turn")
    other = jax.tree.map(jnp.copy, state.filtered)
    state, _ = learner.scan(state, ys[PERIOD:])
    other = filtered(p, off, other, ys[PERIOD:])
    np.testing.assert_allclose(state.unlearned.state.mean, other.mean, rtol=1e-6)
    assert abs(float(state.filtered.mean[0] - other.mean[0])) > 1e-3
