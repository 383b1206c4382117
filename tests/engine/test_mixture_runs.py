"""Several components from the settings to the result: learning, files, filters, smoothers and forecasts."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import backstream as bs
from backstream import plots
from backstream.engine.picture import replicate
from backstream.learning.predictive import predictive_scores

NUM_ROWS = 60
US = np.arange(float(NUM_ROWS))
STATES, YS = map(np.asarray, bs.Growth().simulate(NUM_ROWS, jnp.asarray(US), key=jax.random.key(0)))
SETTINGS = bs.Settings(components=3, learn=False, monitor_every=20)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    bs.learn(bs.Growth(), YS, inputs=US, settings=SETTINGS, out=out)
    return bs.load(out, bs.Growth())


@pytest.mark.slow
def test_what_was_streamed_is_what_the_filter_says(result):
    """The run was opened from its files: settings and state have gone through them."""
    assert result.config.learning.components == 3
    law = result.filter(YS, inputs=US)
    assert isinstance(law, bs.laws.MixtureMarginals)
    np.testing.assert_allclose(result.filtered.mean, law.mean, atol=1e-3)
    np.testing.assert_allclose(law.weight.sum(1), 1, atol=1e-5)


@pytest.mark.slow
def test_the_monitor_draws_trajectories_through_the_components(result):
    """Its ELBO is below the log score, and near it: with one component it is some 20 nats below."""
    for report in result.reports:
        assert report.elbo - 1.5 < report.unbiased_elbo < report.elbo + 3 * report.unbiased_error


@pytest.mark.slow
def test_smoothing_keeps_the_modes(result):
    law = result.smooth(YS, inputs=US)
    assert isinstance(law, bs.laws.MixtureMarginals)
    regions = np.asarray(law.regions(0.9))
    inside = ((STATES[..., None] >= regions[..., 0]) & (STATES[..., None] <= regions[..., 1])).any(-1)
    assert inside.mean() > 0.7
    table = result.filter(YS, inputs=US).to_arrow()
    assert table.column_names[:5] == ["row", "mean_0", "std_0", "weight_0", "weight_1"]


def test_forecasts_start_from_the_mixture():
    """Halves at ±10: draws of the next state are around the images of both, and none where a normal law with the same
    moments has most. Seed fixed; of 500 draws 200 to 300 are positive in all but one of 100 000 seeds."""
    law = bs.laws.Mixture.of(jnp.array([0.5, 0.5]), jnp.array([[-10.0], [10.0]]), 0.1 * jnp.ones((2, 1, 1)))
    still = bs.Growth(transition_scale=0.1)
    ahead = bs.forecast(still, law, 1, 500, jnp.array([np.pi / 2.4]), key=jax.random.key(0)).states.values[:, 0, 0]
    assert 200 < (ahead > 0).sum() < 300
    assert (np.abs(ahead) > 5).all()


def test_pictures_show_the_modes():
    """Halves at ±10: the band is in two pieces, and observations are drawn of both, none near that of 0."""
    law = bs.laws.Mixture.of(jnp.array([0.5, 0.5]), jnp.array([[-10.0], [10.0]]), 0.1 * jnp.ones((2, 1, 1)))
    laws = bs.laws.MixtureMarginals(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), law))
    figure, axes = plt.subplots()
    plots.states(axes, laws, laws)
    pieces = [path.vertices[:, 1] for band in axes.collections for path in band.get_paths()]
    plt.close(figure)
    assert sorted(np.sign(piece.mean()) for piece in pieces) == [-1, 1]
    assert all(np.ptp(piece) < 1 for piece in pieces)
    seen = replicate(bs.Growth(emission_scale=0.1), laws, jnp.zeros(3), jax.random.key(0))
    np.testing.assert_allclose(seen, 5, atol=1)


@pytest.mark.slow
def test_predictive_ranks_are_those_of_the_mixture():
    """The law of before has halves at ±10, and the row is what comes of 10: its rank among the predictions of x²/20 is
    in the middle; with a normal law of the same moments it is not."""
    p = bs.Growth(transition_scale=0.01, emission_scale=0.1)
    q = bs.GuidedMixture.from_model(p, jnp.array(0.0), components=2)
    law = bs.laws.Mixture.of(jnp.array([0.5, 0.5]), jnp.array([[-10.0], [10.0]]), 0.001 * jnp.ones((2, 1, 1)))
    before = q.init(p, jnp.array(0.0))._replace(law=law)
    u = jnp.array(np.pi / 2.4)  # where the input's part is zero: the images of ±10 are ±7.4752
    y = jnp.array([7.4752**2 / 20])
    found = predictive_scores(p, q, before, jnp.asarray(False), y, u, 200, key=jax.random.key(0))
    assert 0.3 < float(found.pit[0]) < 0.7
    assert abs(float(found.residual[0])) < 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"components": 0}, "components must be at least 1, not 0"),
        ({"components": 2, "method": "window"}, "not for the method 'window'"),
        ({"components": 2, "family": "conjugate"}, "not for the family 'conjugate'"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        bs.Settings(**changes)
