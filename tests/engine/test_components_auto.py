"""`components="auto"`: a run finds out by its first rows whether it needs several."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import backstream as bs
from backstream.families import Guided
from backstream.families.backward import filter_states
from backstream.learning.component_check import CHECKED_ROWS, SEVERAL, Gap, log_score_gap
from backstream.models.base import StateSpaceModel

NUM_ROWS = CHECKED_ROWS + 60
SETTINGS = bs.Settings(learn=False)


class Folded(StateSpaceModel):
    """A random walk of which the absolute value is seen."""

    sign: bool = False
    """Whether the sign is seen too."""

    def prior(self, u=None):
        return dist.Normal(jnp.full(1, 0.5), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.97 * x, 0.5).to_event(1)

    def emission(self, x, u=None):
        return dist.StudentT(20.0, x if self.sign else jnp.abs(x), 0.3).to_event(1)


@pytest.fixture(scope="module")
def ys():
    return np.asarray(Folded().simulate(NUM_ROWS, key=jax.random.key(3))[1])


@pytest.fixture(scope="module")
def run(ys, tmp_path_factory):
    """Learned in one go, with a checkpoint within the rows that decide and one after them."""
    path = tmp_path_factory.mktemp("auto") / "run"
    return bs.learn(Folded(), ys, out=path, settings=SETTINGS, progress=False)


def same(one, other):
    """Whether two results have the same state, bit for bit."""
    one, other = (jax.tree.leaves(eqx.filter(run.learned.state, eqx.is_inexact_array)) for run in (one, other))
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def test_two_modes_are_found(run):
    """By the first rows; from there on the run is the one with several components from the first row on."""
    assert run.config.learning.components == "auto"
    assert isinstance(run.family, bs.GuidedMixture) and run.family.components == SEVERAL


def test_from_there_on_it_is_the_run_with_several(run, ys):
    asked = bs.learn(Folded(), ys, settings=replace(SETTINGS, components=SEVERAL), progress=False)
    assert same(run, asked)
    late = slice(CHECKED_ROWS, None)
    np.testing.assert_array_equal(run.filtered.mean[late], asked.filtered.mean[late])
    assert not np.array_equal(run.filtered.std[:CHECKED_ROWS], asked.filtered.std[:CHECKED_ROWS])


@pytest.mark.parametrize("cut", [CHECKED_ROWS - 100, CHECKED_ROWS])
def test_a_run_that_is_resumed_decides_alike(run, ys, cut, tmp_path):
    """Before and at the row that decides."""
    bs.learn(Folded(), ys[:cut], out=tmp_path / "run", settings=SETTINGS, progress=False)
    resumed = bs.load(tmp_path / "run", Folded()).learn(ys[cut:], progress=False)
    assert resumed.filtered.table.equals(run.filtered.table)
    assert same(resumed, run)


@pytest.mark.slow
def test_one_mode_needs_no_more():
    p = Folded(sign=True)
    ys = np.asarray(p.simulate(NUM_ROWS, key=jax.random.key(3))[1])
    assert isinstance(bs.learn(p, ys, settings=SETTINGS, progress=False).family, Guided)


@pytest.mark.slow
def test_the_gap_is_that_of_the_two_filters(ys):
    """Against the two filters, each by itself, on rows of which some are missing: these do not count."""
    p, rows = Folded(), ys[:40].copy()
    rows[5:8] = np.nan
    q = Guided.from_model(p)
    gap = log_score_gap(p, q, q.init(p), rows)

    @eqx.filter_jit
    def filtered(family):
        states = filter_states(p, family, jnp.asarray(rows))
        return jax.vmap(family.log_score)(states), *jax.vmap(family.moments)(states)

    seen = ~np.isnan(rows[:, 0])
    (score, mean, _), (other, away, cov) = map(filtered, (q, bs.GuidedMixture.from_model(p, components=SEVERAL)))
    expected = np.asarray(other - score)[seen]
    np.testing.assert_allclose(gap.shift, ((away - mean)[seen] ** 2).sum() / cov[seen].sum(), rtol=1e-5)
    assert gap.rows == 37
    np.testing.assert_allclose(gap.mean, expected.mean(), rtol=1e-6)
    np.testing.assert_allclose(gap.error, abs(expected[:16].mean() - expected[16:32].mean()) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("gap", "clear"),
    [
        (Gap(0.1, 0.01, 99), True),
        (Gap(0.1, 0.05, 99), False),
        (Gap(0.0005, 0.0, 99), False),
        (Gap(0.0, 0.01, 99, 0.05), True),
        (Gap(0.0, 0.01, 99, 0.03), False),
        (Gap(-0.1, 0.01, 99, 0.05), False),
    ],
)
def test_a_gap_must_be_large_and_sure_or_the_states_elsewhere(gap, clear):
    """States that are estimated elsewhere by components that predict rows worse are no reason to take them."""
    assert gap.is_clear() == clear


def test_the_advice_says_why():
    assert "better than one, by 0.100 ± 0.010 nats a row" in Gap(0.1, 0.01, 99).advice()
    assert "0.30 standard deviations away" in Gap(0.0, 0.01, 99, 0.09).advice()


class Jumping(Folded):
    """The sign is seen, and the walk jumps now and then."""

    sign: bool = True

    def transition(self, x, u=None):
        steps = dist.Normal(0.97 * x[:, None], jnp.array([0.1, 3.0]))
        return dist.MixtureSameFamily(dist.CategoricalProbs(jnp.array([0.95, 0.05])), steps).to_event(1)


@pytest.mark.slow
def test_a_state_that_jumps_has_several_from_the_first_row_on(ys):
    assert bs.learn(Jumping(), ys[:3], settings=SETTINGS, progress=False).family.components == SEVERAL
    one = replace(SETTINGS, components=1)
    assert isinstance(bs.learn(Jumping(), ys[:3], settings=one, progress=False).family, Guided)
