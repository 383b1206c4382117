"""Buckets of streams, as a worker on Spark advances them. Neither Spark nor Java is needed here."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import backstream as bs
from backstream.engine.spark import common
from backstream.engine.spark.bucket import BEGINS_ANEW, Bucket, padded
from backstream.engine.spark.recipe import Recipe, held
from backstream.engine.spark.tables import BucketRows
from backstream.errors import InputError
from backstream.estimators import LogScore
from backstream.families import Guided
from backstream.learning import OnlineLearner, Panel
from backstream.learning.multistream.fleet import words
from backstream.learning.multistream.packing import WASTE, pack_ticks
from backstream.runs.checkpoints import DamagedCheckpointError
from backstream.runs.packed import DIGEST, START, pack, unpack
from linear_gaussian import model

KEY = jax.random.key(3)
NAMES = "abcde"
LEARNER = OnlineLearner(model(), LogScore(), optax.adam(1e-2))


@pytest.fixture(scope="module")
def own():
    recipe = Recipe(LEARNER, Guided.from_model(model()), KEY, None, "own", "float64")
    return recipe, Bucket(recipe)


@pytest.fixture(scope="module")
def filtering():
    recipe = held(model(), Guided.from_model(model()), None, "float64")
    return recipe, Bucket(recipe)


DATA = {name: np.array(model().simulate(8, key=jax.random.key(i))[1]) for i, name in enumerate(NAMES)}


def rows(wanted, **problems):
    """`wanted` names streams and rows, as in ("a", 0)."""
    names = [name for name, _ in wanted]
    reasons = [problems.get(f"{name}{t}") for name, t in wanted]
    return BucketRows(names, np.stack([DATA[name][t] for name, t in wanted]), None, reasons)


def between(first, end, names=NAMES):
    return [(name, t) for t in range(first, end) for name in names]


def alone(recipe, name, ys):
    key = jax.random.fold_in(jax.random.fold_in(recipe.key, words(name)[0]), words(name)[1])
    _, infos = recipe.learner.scan(recipe.learner.init(recipe.q, key=key), ys)
    return infos.mean


@pytest.mark.parametrize("kind", [pytest.param("own", marks=pytest.mark.slow), "filtering"])
def test_streams_of_a_bucket_are_as_they_would_be_alone(kind, request):
    """Own λ that moves, and a λ that is held; ragged batches, and the state goes through bytes after each."""
    recipe, bucket = request.getfixturevalue(kind)
    batches = [between(0, 2), [("b", 2), ("b", 3), ("b", 4), ("a", 2)], between(3, 8, "acde"), between(5, 8, "b")]
    batches[2] = [("c", 2), ("d", 2), ("e", 2), *batches[2]]
    content, found = None, {}
    for wanted in batches:
        content, told, _ = bucket.advance(content, rows(wanted))
        assert told.reasons == [None] * len(wanted)
        found |= {(name, t): told.infos.mean[i] for i, (name, t) in enumerate(wanted)}
    for name in NAMES:
        got = np.stack([found[name, t] for t in range(8)])
        np.testing.assert_allclose(got, alone(recipe, name, DATA[name]), rtol=1e-9, atol=1e-9)


def test_what_cannot_be_used_is_set_aside_and_the_rest_goes_on(filtering):
    """An infinity, a row with a known problem and one without a name: each has a reason, and the streams are as if
    the rows had not been there."""
    recipe, bucket = filtering
    given = rows(between(0, 3), b1="Column 'y0' holds abc, which is no number.")
    given.ys[given.names.index("c"), 0] = np.inf
    given = given._replace(names=[*given.names[:-1], None])  # the last row of e
    content, told, _ = bucket.advance(None, given)
    reasons = dict(zip(between(0, 3), told.reasons, strict=True))
    assert {row for row, reason in reasons.items() if reason} == {("b", 1), ("c", 0), ("e", 2)}
    assert "infinite" in reasons["c", 0] and "no number" in reasons["b", 1] and "names no stream" in reasons["e", 2]
    means = dict(zip(between(0, 3), told.infos.mean, strict=True))
    assert np.isnan(means["c", 0]).all()
    expected = alone(recipe, "c", DATA["c"][1:3])
    np.testing.assert_allclose(np.stack([means["c", 1], means["c", 2]]), expected, rtol=1e-9, atol=1e-9)
    assert content is not None


def test_values_that_the_model_cannot_give_and_infinite_inputs_have_a_reason():
    class Counts(bs.StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(1), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(0.9 * x, 0.3).to_event(1)

        def emission(self, x, u=None):
            return dist.Poisson(jnp.exp(x)).to_event(1)

    bucket = Bucket(held(Counts(), Guided.from_model(Counts()), None, "float64"))
    ys, inputs = np.array([[2.0], [-1.0], [0.5], [3.0], [np.nan]]), np.array([[0.0], [0.0], [0.0], [np.inf], [0.0]])
    reasons = bucket._reasons(BucketRows(list("abcde"), ys, inputs, [None] * 5), ys, inputs, {})
    assert [reason is None for reason in reasons] == [True, False, False, False, True]
    assert "-1" in reasons[1] and "0.5" in reasons[2] and "input" in reasons[3]


def test_damage_is_confined_to_the_stream_it_hit(filtering):
    recipe, bucket = filtering
    content, _, _ = bucket.advance(None, rows(between(0, 2)))
    damaged = bytearray(content)
    damaged[-1] ^= 1  # in the last stream
    lost = bucket.open(bytes(damaged))[0].names
    assert lost == list("abcd")
    content, told, _ = bucket.advance(bytes(damaged), rows(between(2, 4)))
    reasons = dict(zip(between(2, 4), told.reasons, strict=True))
    assert {name for (name, _), reason in reasons.items() if reason} == {"e"}
    assert BEGINS_ANEW in reasons["e", 2]
    means = dict(zip(between(2, 4), told.infos.mean, strict=True))
    np.testing.assert_allclose(means["a", 3], alone(recipe, "a", DATA["a"][:4])[3], rtol=1e-9, atol=1e-9)
    _, told, _ = bucket.advance(content, rows([("e", 4)]))  # it begins anew
    np.testing.assert_allclose(told.infos.mean[0], alone(recipe, "e", DATA["e"][4:5])[0], rtol=1e-9, atol=1e-9)


def test_a_header_that_is_damaged_sets_the_bucket_aside_and_a_state_of_another_model_too(filtering):
    bucket = filtering[1]
    content, _, _ = bucket.advance(None, rows(between(0, 1)))
    damaged = bytearray(content)
    damaged[START.size + 3] ^= 1
    again, told, _ = bucket.advance(bytes(damaged), rows(between(1, 2)))
    assert again is None and all("header" in reason for reason in told.reasons)
    _, told, _ = bucket.advance(pack({"x": np.zeros((5, 2))}, {"names": [*NAMES]}), rows(between(1, 2)))
    assert all("another model, family or setting" in reason for reason in told.reasons)


def test_silent_streams_end(filtering):
    bucket = filtering[1]
    content, _, _ = bucket.advance(None, rows(between(0, 1)), now=1000, forget_after=500)
    content, _, _ = bucket.advance(content, rows([("a", 1)]), now=1400, forget_after=500)
    content, told, _ = bucket.advance(content, rows([("b", 1)]), now=1600, forget_after=500)
    assert bucket.open(content)[0].names == ["a", "b"]
    assert told.infos.t[0] == 0


@pytest.mark.slow
def test_a_common_lambda_is_that_of_a_panel_on_one_machine(tmp_path):
    """Two buckets, a step for each micro-batch, every λ through its file; and a micro-batch that is repeated."""
    recipe = Recipe(LEARNER, Guided.from_model(model()), KEY, None, "common", "float64")
    bucket, panel = Bucket(recipe), Panel(LEARNER, recipe.q, key=KEY, common=True, lanes=4)
    where, contents = str(tmp_path / "lambda"), {"abc": None, "de": None}
    common.save(where, 0, bucket.common)
    for batch in range(3):
        for _ in range(2 if batch == 1 else 1):
            after, parts, means = {}, [], {}
            for names, content in contents.items():
                state = common.load(where, batch, bucket.common)
                wanted = between(batch, batch + 1, names)
                after[names], told, sums = bucket.advance(content, rows(wanted), common=state)
                parts.append(common.packed_sums(sums))
                means |= dict(zip(names, told.infos.mean, strict=True))
            common.advance(where, batch, bucket, parts)
        contents = after
    state = panel.begin(panel.open(8), range(5), [words(name) for name in NAMES])
    ys = np.stack([DATA[name][t] for name, t in between(0, 3)])
    state, infos = panel.read(state, np.tile(np.arange(5), 3), np.repeat(np.arange(3), 5), ys)
    np.testing.assert_allclose(np.stack([means[name] for name in NAMES]), infos.mean[-5:], rtol=1e-9, atol=1e-9)
    found = common.load(where, 3, bucket.common)
    assert found.t == 3
    for one, other, start in zip(*(jax.tree.leaves(q) for q in (found.q, state.common.q, recipe.q)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        assert np.abs(one - start).max() > 1e-3
    assert common.versions(where) == [0, 1, 2, 3]


def test_every_bit_of_a_block_is_guarded():
    """Whatever bit is turned, the block says so: of one stream, or of the whole."""
    tree = {"x": np.arange(6.0).reshape(3, 2), "n": np.arange(3)}
    like = {"x": jax.ShapeDtypeStruct((2,), np.float64), "n": jax.ShapeDtypeStruct((), np.int64)}
    content = pack(tree, {"names": ["a", "b", "c"]})
    found = unpack(content, like)
    assert not found.damaged.any() and found.record == {"names": ["a", "b", "c"]}
    for wanted, array in zip(jax.tree.leaves(tree), found.arrays, strict=True):
        np.testing.assert_array_equal(wanted, array)
    record = DIGEST + 3 * 8
    for at in range(len(content)):
        turned = bytearray(content)
        turned[at] ^= 4
        if at < len(content) - 3 * record:
            with pytest.raises(DamagedCheckpointError):
                unpack(bytes(turned), like)
        else:
            assert unpack(bytes(turned), like).damaged.sum() == 1
    assert unpack(content[:-1], like).damaged.tolist() == [False, False, True]
    with pytest.raises(InputError, match="x"):
        unpack(content, {**like, "x": jax.ShapeDtypeStruct((3,), np.float64)})


@pytest.mark.parametrize("seed", range(5))
def test_ticks_keep_order_and_waste_at_most_a_third(seed):
    random = np.random.default_rng(seed)
    counts = random.integers(1, 1 + 4**seed, 40)
    slots = random.permutation(np.repeat(np.arange(40), counts))
    ticks, lanes = pack_ticks(slots, (256, 32, 4))
    for slot in range(40):
        assert (np.diff(ticks[slots == slot]) > 0).all()
    work = (-(-np.bincount(ticks) // lanes)).sum() * lanes
    assert work <= max(WASTE * len(slots), 4 * counts.max(), 4 * -(-len(slots) // 4))


def test_padding_wastes_at_most_a_third_and_has_few_sizes():
    sizes = [padded(count) for count in range(8, 5000)]
    assert all(count <= size <= 1.5 * count for count, size in enumerate(sizes, 8))
    assert len(set(sizes)) <= 20
