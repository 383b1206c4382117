"""No failure looks like success: what a verdict is made of, and which verdict runs end with."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import backstream as bs
from backstream.families import Guided
from backstream.learning import Reference, ThetaGain, Verdict
from backstream.learning.calibration import FALSE_ALARMS
from backstream.learning.judging import Checks, judge, pooled
from backstream.learning.particle_reference import particle_reference
from backstream.learning.plan_check import PlanNews
from backstream.learning.predictive import Predictive, predictive_scores
from backstream.learning.remedies import Circumstances
from backstream.learning.tally import LONG, RECENT, Evidence, Figures, Tally, poor_coverage
from backstream.models import LinearGaussian
from command import here

ABOUT = Circumstances(scores=True, components=1, learns_model=False, improves=False, fallback=True)
KEY = jax.random.key(5)


class Level(bs.StateSpaceModel):
    """A level that is forgotten over some three rows."""

    scale: jax.Array

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(1), 0.5).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.7 * x, 0.4).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, self.scale).to_event(1)


RIGHT = Level(jnp.array([0.5]))
YS = np.asarray(RIGHT.simulate(240, key=KEY)[1])
QUIET = {"progress": False, "warn": lambda sentence: None}


# ---- evidence --------------------------------------------------------------------------------------------------------
@jax.jit
@jax.vmap
def tallied(z, rank, refused):
    """Tallies of streams [S, T, dy] of normal numbers, with ranks and refusals [S, T]."""

    def step(tally, row):
        z, rank, refused = row
        predicted = Predictive(jax.scipy.stats.norm.cdf(z), z, z, rank)
        nothing = jnp.full((), jnp.nan)
        return tally.add(Evidence(refused, -(z.sum() ** 2), -(z.sum() ** 2), nothing, predicted)), None

    return jax.lax.scan(step, Tally.begin(z.shape[1], z.dtype), (z, rank, refused))[0]


def streams(count, rows, columns=1, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, rows, columns)), rng.uniform(size=(count, rows))


def verdicts(z, rank, **checks):
    tallies, checks = tallied(z, rank, np.zeros(rank.shape, bool)), Checks(**checks)
    return [judge(jax.tree.map(lambda leaf, i=i: leaf[i], tallies), ABOUT, checks) for i in range(len(z))]


def share(found, *kinds):
    return np.mean([one.kind in kinds for one in found])


def test_a_tally_holds_the_weighted_means_of_what_is_known():
    z, rank = (part[0] for part in streams(1, 50, 2))
    z[20:30, 1] = np.nan
    tally = tally_of(z[None], rank[None], np.zeros((1, 50), bool))
    for which, horizon in enumerate((RECENT, LONG)):
        w = np.exp(-np.arange(49, -1, -1) / horizon)
        figures = Figures(tally, which)
        for i, known in enumerate(~np.isnan(z).T):
            found = figures["z_square"]
            assert found.value[i] == pytest.approx((w * z[:, i] ** 2)[known].sum() / w[known].sum(), rel=1e-6)
            assert found.count[i] == pytest.approx(w[known].sum() ** 2 / (w[known] ** 2).sum(), rel=1e-6)
        pairs = w[1:] * z[1:, 0] * z[:-1, 0]
        assert figures["z_lag"].value[0] == pytest.approx(pairs.sum() / w[1:].sum(), rel=1e-6)
        assert figures["rank"].value == pytest.approx((w * rank).sum() / w.sum(), rel=1e-6)
        inside = np.abs(stats.norm.cdf(z[:, 0]) - 0.5) < 0.45
        assert figures["inside"].value[0] == pytest.approx((w * inside).sum() / w.sum(), rel=1e-6)


@pytest.mark.parametrize("rows", [50, 400])
def test_exact_predictions_are_rarely_doubted(rows):
    found = verdicts(*streams(300, rows, columns=3))
    assert share(found, "doubtful", "failed") <= FALSE_ALARMS + 3 * np.sqrt(FALSE_ALARMS / 300)


def shift(z, rank):
    return z + 0.5, rank


def spread(z, rank):
    return 1.4 * z, rank


def narrow(z, rank):
    return z / 1.6, rank


def repeat(z, rank):
    for t in range(1, z.shape[1]):
        z[:, t] = 0.5 * z[:, t - 1] + np.sqrt(0.75) * z[:, t]
    return z, rank


def improbable(z, rank):
    return np.full_like(z, np.nan), rank**1.6


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (shift, "above their predictions"),
        (spread, "vary more"),
        (narrow, "vary less"),
        (repeat, "repeat from row to row"),
        (improbable, "less probable"),
    ],
)
def test_each_departure_of_a_tenth_of_a_nat_is_seen_within_500_rows(fault, words):
    found = verdicts(*fault(*streams(40, 500)))
    assert share(found, "doubtful", "failed") == 1
    assert all(words in str(one) and "Likely cause" in str(one) and "Try" in str(one) for one in found)


def test_a_bad_beginning_is_forgotten_and_a_late_change_is_seen():
    z, rank = streams(10, 6000)
    assert share(verdicts(np.where(np.arange(6000)[:, None] < 300, 4 * z, z), rank), "good") == 1
    soon = verdicts(np.where(np.arange(1500)[:, None] < 200, 4 * z[:, :1500], z[:, :1500]), rank[:, :1500])
    assert share(soon, "good") >= 0.8, "although the long run still has it; by chance 1 in 20 recent rows seem to agree"
    late = verdicts(np.where(np.arange(6000)[:, None] < 5850, z, z + 1.0), rank)
    assert share(late, "doubtful") == 1
    assert all("in the latest rows" in str(one) and "has changed" in str(one) for one in late)


def test_far_too_narrow_bands_and_refusals_are_failures():
    z, rank = streams(1, 100)
    always = verdicts(4 * z, rank)[0]
    assert always.kind == "failed" and "the model does not describe these rows" in str(always.reasons[0])
    more, ranks = streams(1, 900)
    more[:, 800:] *= 5
    late = verdicts(more, ranks)[0]
    assert late.kind == "failed" and "the process or a sensor has changed" in str(late.reasons[0])
    four, one = (judge(tally_of(z, rank, np.arange(100)[None] < count), ABOUT) for count in (4, 1))
    assert four.kind == "failed" and "of the updates were not finite" in str(four)
    assert one.kind == "good" and "--learning-rate" in str(four)
    left = judge(tally_of(z, rank, np.arange(100)[None] < 4), ABOUT._replace(learns_model=True))
    assert left.kind == "failed" and "constraints" in str(left), "a scale that became negative"
    few = verdicts(*streams(1, 20))[0]
    assert few.kind == "learning" and "too few" in str(few)


def tally_of(z, rank, refused):
    return jax.tree.map(lambda leaf: leaf[0], tallied(z, rank, refused))


def test_one_bad_stream_among_many_is_found():
    z, rank = streams(30, 100)
    z[7] *= 5
    tallies = tallied(z, rank, np.zeros(rank.shape, bool))
    assert poor_coverage(tallies, 0.7) == [7]
    together = Figures(pooled(tallies), 1)["z_square"]
    assert together.count == pytest.approx(30 * Figures(jax.tree.map(lambda leaf: leaf[0], tallies), 1)["z"].count)


def test_the_rank_of_the_density_is_uniform_for_labels_and_shows_wrong_probabilities():
    class Labels(Level):
        def emission(self, x, u=None):
            return dist.CategoricalLogits(jnp.stack([self.scale + x, -x, 0 * x], -1)).to_event(1)

    p, other = Labels(jnp.array([2.0])), Labels(jnp.array([-1.0]))
    ys = p.simulate(300, key=KEY)[1]
    q = Guided.from_model(p)
    state = q.update(p, q.init(p), ys[0])

    def ranks(p):
        def one(y, key):
            return predictive_scores(p, q, state, jnp.asarray(False), y, None, 32, key=key).rank

        return np.asarray(jax.vmap(one)(ys, jax.random.split(KEY, 300)))

    assert abs(ranks(p).mean() - 0.5) < 4 / np.sqrt(12 * 300) + 0.02, "but for what the row before says"
    assert ranks(other).mean() < 0.5 - 8 / np.sqrt(12 * 300)


# ---- particle filters ------------------------------------------------------------------------------------------------
def test_particle_filters_agree_with_the_exact_gap():
    """The posterior is made wrong, with noise e times too large; the exact likelihood is of the right one."""
    p = LinearGaussian.random(2, 2, key=jax.random.key(1))
    ys = p.simulate(65, key=KEY)[1]
    right = Guided.from_model(p)
    wrong = replace(right, log_inflation=jnp.array(1.0))
    anchor = right.update(p, right.init(p), ys[0])

    def score(q):
        return float(jax.lax.scan(lambda state, y: (q.update(p, state, y),) * 2, anchor, ys[1:])[1].log_score.sum())

    exact = (score(right) - score(wrong)) / 64
    found = [particle_reference(p, wrong, anchor, ys[1:], None, key=jax.random.key(i)) for i in range(4)]
    off = np.array([one.gap - exact for one in found])
    assert exact > 0.02 and all(one.rows == 64 and one.is_trusted for one in found)
    assert np.abs(off).max() < 4 * max(one.error for one in found)
    assert abs(off.mean()) < 3 * np.mean([one.error for one in found]) / 2
    part = particle_reference(p, wrong, anchor, ys[1:31], None, key=KEY)
    assert part.rows == 30 and abs(part.gap) < 1 and part.ess < 1, "rows that are not there have no say"
    _, _, A, B, _, _ = p.dense()
    far, path = (
        anchor._replace(mean=anchor.mean + 4.0),
        [B @ np.linalg.matrix_power(A, t + 1) @ np.full(2, 4.0) for t in range(64)],
    )
    elsewhere = particle_reference(p, right, far, ys[1:] + np.stack(path), None, key=KEY)
    assert abs(elsewhere.gap) < 4 * elsewhere.error, "the filters start where the posterior is, far from the prior"


def test_a_loss_against_particle_filters_is_doubted_with_the_remedy_that_fits():
    z, rank = streams(1, 200)
    lost = Reference(64, 0.3, 0.01, 0.6)
    assert "--components 4" in str(verdicts(z, rank, reference=lost)[0])
    assert verdicts(z, rank, reference=lost._replace(gap=0.04))[0].kind == "good"
    tally = tally_of(z, rank, np.zeros(rank.shape, bool))
    assert "--components 8" in str(judge(tally, ABOUT._replace(components=4), Checks(lost)))


def test_what_particle_filters_cannot_check_is_not_plainly_good():
    """Where they are starved, the first line says so, and several components are compared in their place."""
    tally = tally_of(*streams(1, 200), np.zeros((1, 200), bool))
    starved = Reference(64, -0.01, 0.01, 0.01)
    unsure = judge(tally, ABOUT, Checks(starved))
    assert unsure.kind == "good" and not unsure.is_checked()
    assert unsure.headline().startswith("Verdict: good, but not checked by particle filters (")
    assert "cannot be trusted" in str(unsure) and "against a particle filter" not in unsure.headline()
    assert judge(tally, ABOUT, Checks(starved._replace(ess=0.5))).is_checked()
    modes = judge(tally, ABOUT, Checks(starved._replace(several=0.3, several_error=0.2)))
    assert modes.kind == "doubtful" and "--components 4" in str(modes) and "by 0.30 nats" in str(modes)
    assert judge(tally, ABOUT, Checks(starved._replace(several=0.01, several_error=0.001))).kind == "good"


def test_a_model_that_is_another_one_than_the_plan_says_is_doubted():
    tally = tally_of(*streams(1, 200), np.zeros((1, 200), bool))
    found = judge(tally, ABOUT, Checks(plan=PlanNews(256, "The model differs.")))
    assert found.kind == "doubtful" and "The model differs. Likely cause: a switch" in str(found)
    assert "a factor of zero" not in str(found), "no parameter is learned"
    learned = judge(tally, ABOUT._replace(learns_model=True), Checks(plan=PlanNews(0, "The model differs.")))
    assert "a factor of zero" in str(learned)
    again = judge(tally, ABOUT, Checks(plan=PlanNews(256)))
    assert again.kind == "good" and "After row 256 the model was read again" in str(again)


def test_a_posterior_that_predicts_better_than_the_model_shows_a_wrong_model():
    tally = tally_of(*streams(1, 200), np.zeros((1, 200), bool))
    better = Reference(64, -0.3, 0.01, 0.6)
    found = judge(tally, ABOUT, Checks(better))
    assert found.kind == "doubtful" and "more probable than the model does, by 0.30" in str(found)
    assert "0.300 ± 0.010 nats per row gained" in found.headline() and "--learn-model" in str(found)
    assert judge(tally, ABOUT, Checks(better._replace(gap=-0.04))).kind == "good"
    assert judge(tally, ABOUT, Checks(better._replace(ess=0.01))).kind == "good", "a starved filter says too little"


def test_a_column_without_values_is_told():
    z, rank = streams(1, 400, 2)
    z[0, :, 1] = np.nan
    about = ABOUT._replace(names=("speed", "height"))
    found = judge(tally_of(z, rank, np.zeros((1, 400), bool)), about)
    assert found.kind == "doubtful" and "no value that could be judged in height." in str(found)
    z[0, 50, 1] = 0.3
    assert judge(tally_of(z, rank, np.zeros((1, 400), bool)), about).kind == "doubtful", "not for 300 rows"
    z[0, 390, 1] = 0.3
    assert judge(tally_of(z, rank, np.zeros((1, 400), bool)), about).kind == "good"
    labels = np.full_like(z, np.nan)
    assert judge(tally_of(labels, rank, np.zeros((1, 400), bool)), about).kind == "good", "labels have no order"
    nothing = judge(tally_of(labels, np.full_like(rank, np.nan), np.zeros((1, 400), bool)), about)
    assert nothing.kind == "doubtful" and "speed, height" in str(nothing)


def test_a_few_values_say_nothing():
    """Of three values two lie outside: 1 in 40 of such sets do."""
    z, rank = np.full((1, 400, 1), np.nan), np.full((1, 400), np.nan)
    z[0, [350, 380, 395], 0] = 2.5, -2.5, 0.0
    assert judge(tally_of(z, rank, np.zeros((1, 400), bool)), ABOUT).kind == "learning"


def test_what_learning_theta_gained_is_told_and_a_loss_is_doubted():
    tally = tally_of(*streams(1, 200), np.zeros((1, 200), bool))
    gained = judge(tally, ABOUT, Checks(theta_gain=ThetaGain(0.2, 0.01)))
    assert gained.kind == "good" and "has gained 0.200 ± 0.010 nats per row" in str(gained)
    lost = judge(tally, ABOUT, Checks(theta_gain=ThetaGain(-0.2, 0.01)))
    assert lost.kind == "doubtful" and "--model-learning-rate" in str(lost) and "by 0.200 ± 0.010" in str(lost)
    assert lost.figures["theta_gain"] == -0.2
    for small in (ThetaGain(-0.04, 0.001), ThetaGain(-0.2, 0.1)):
        assert judge(tally, ABOUT, Checks(theta_gain=small)).kind == "good"


# ---- runs ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A run whose model expects a quarter of the noise."""
    said, path = [], tmp_path_factory.mktemp("verdict") / "run"
    return bs.learn(Level(jnp.array([0.1])), YS, out=path, progress=False, warn=said.append), said


def test_a_wrong_model_is_never_good(wrong):
    result, said = wrong
    assert result.health.kind in ("doubtful", "failed")
    assert str(result.health) in said, "warn is called with the verdict"
    assert bs.learn(RIGHT, YS, **QUIET).health.kind == "good"


def test_verdicts_are_kept_with_the_run_and_need_no_model(wrong):
    result, _ = wrong
    assert bs.load(result.path).health == result.health
    assert Verdict.restored(json.loads(json.dumps(result.health.record()))) == result.health


def test_a_run_that_goes_on_ends_with_the_same_verdict(tmp_path):
    settings = bs.Settings(learn=False, monitor_every=50)
    whole = bs.learn(RIGHT, YS[:150], settings=settings, **QUIET)
    parts = bs.learn(RIGHT, YS[:70], settings=settings, **QUIET).learn(YS[70:150], **QUIET)
    assert parts.health == whole.health and whole.health.figures["coverage"] is not None


def test_what_was_learned_is_reported_in_any_case_without_a_fallback():
    class Counts(Level):
        def transition(self, x, u=None):
            return dist.Normal(0.9 * x, 0.5).to_event(1)

        def emission(self, x, u=None):
            return dist.Poisson(jnp.exp(1 + x)).to_event(1)

    p = Counts(RIGHT.scale)
    ys = p.simulate(100, key=KEY)[1]
    settings = bs.Settings(learning_rate=10.0, fallback=False)
    bold, safe = (bs.learn(p, ys, settings=replace(settings, fallback=each), **QUIET) for each in (False, True))
    assert bold.health.kind == "failed" and "predicts worse than before learning" in str(bold.health)
    assert "--learning-rate" in str(bold.health) and float(bold.family.log_inflation) != 0.0
    assert safe.health.kind != "failed" and float(safe.family.log_inflation) == 0.0
    assert "Learning did not help" in str(safe.health)


def test_the_command_line_says_so_everywhere(tmp_path, monkeypatch):
    obs, folder = tmp_path / "obs.csv", tmp_path / "run"
    far = np.cumsum(np.full(80, 30.0))
    obs.write_text("y0\n" + "\n".join(map(str, far)))
    said = here("stream", "stochastic-volatility", obs, "--out", folder, "--no-learn", check=3).stderr
    assert "Verdict: failed" in said and "Try: " in said
    assert "Health     failed" in here("inspect", folder).stdout
    assert json.loads(here("inspect", folder, "--json").stdout)["health"]["kind"] == "failed"
    scores = json.loads(here("evaluate", folder, "--json").stdout)
    assert scores["predictive"]["rows"] == 80 and scores["predictive"]["coverage"][0] < 0.7
    for command in (("forecast", folder), ("smooth", folder, obs), ("plot", folder)):
        assert "Verdict: failed" in here(*command).stderr
