"""The laws that a model returns: single numbers, integers, missing columns, angles, supports."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats

import backstream as bs
from backstream.families import Guided
from backstream.metrics import particle_limit
from backstream.models import StateSpaceModel, check_model, check_observations, log_emission, log_prior, log_transitions
from backstream.models.laws import mean_of, parameters_of, variance_of


class Seen(StateSpaceModel):
    """A random walk in two dimensions, with the emission that it is given."""

    emit: object

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return self.emit(x)


class Bare(StateSpaceModel):
    """All three laws are of single numbers."""

    def prior(self, u=None):
        return dist.Normal(0.5, 1.0)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x[0], 0.3)

    def emission(self, x, u=None):
        return dist.Normal(2 * x[0], 0.5)


class Dressed(Bare):
    """The same, of vectors."""

    def prior(self, u=None):
        return dist.Normal(jnp.array([0.5]), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(0.9 * x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(2 * x, 0.5).to_event(1)


# ---- single numbers --------------------------------------------------------------------------------------------------
def test_a_law_of_single_numbers_is_one_of_vectors_with_one_entry():
    bare, dressed = Bare(), Dressed()
    assert check_model(bare) == check_model(dressed) == (1, 1, True, None)
    key = jax.random.key(0)
    for ours, theirs in zip(bare.simulate(30, key=key), dressed.simulate(30, key=key), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    ys = np.array(dressed.simulate(30, key=key)[1])
    ys[7] = np.nan
    q = Guided.from_model(bare)
    assert q.plan == Guided.from_model(dressed).plan and q.exact
    for read in (bs.filter, bs.smooth):
        for ours, theirs in zip(read(bare, q, ys), read(dressed, q, ys), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    x = jnp.array([[0.3], [-0.2]])
    for log in (
        lambda p: log_prior(p, x[0]),
        lambda p: log_emission(p, x[0], jnp.asarray(ys[3])),
        lambda p: log_transitions(p, x, x),
        lambda p: particle_limit(p, ys[:5], num_particles=20, num_trajectories=2, key=key),
        lambda p: bs.forecast(p, bs.filter(p, q, ys), 3, 5, key=key),
    ):
        for ours, theirs in zip(jax.tree.leaves(log(bare)), jax.tree.leaves(log(dressed)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_one_law_for_several_columns():
    """`expand` repeats a law: the columns are seen through it."""
    repeated = Seen(lambda x: dist.Normal(x[0], 0.5).expand((3,)).to_event(1))
    written = Seen(lambda x: dist.Normal(jnp.full(3, x[0]), 0.5).to_event(1))
    assert check_model(repeated) == (2, 3, True, None)
    ys = written.simulate(10, key=jax.random.key(0))[1]
    means = [bs.filter(p, Guided.from_model(p), ys).mean for p in (repeated, written)]
    np.testing.assert_allclose(*means, rtol=1e-12)


# ---- integers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "emit",
    [
        lambda x: dist.Categorical(logits=jnp.stack([x[0], x[1], 0.0])),
        lambda x: dist.Categorical(probs=jax.nn.softmax(jnp.stack([x, -x]))).to_event(1),
        lambda x: dist.OrderedLogistic(x[0], jnp.array([-1.0, 1.0])),
    ],
    ids=["bare", "two columns", "ordered"],
)
def test_labels_stay_integers(emit):
    """Rows come as floats, and a label is an index."""
    p = Seen(emit)
    xs, ys = p.simulate(20, key=jax.random.key(0))
    assert ys.dtype == jnp.float64
    law = emit(xs[4])
    expected = np.sum(law.log_prob(ys[4].astype(int) if law.event_shape else int(ys[4, 0])))
    np.testing.assert_allclose(log_emission(p, xs[4], ys[4]), expected, rtol=1e-12)
    gradient = jax.grad(lambda x: log_emission(p, x, ys[4].at[0].set(jnp.nan)))(xs[4])

    def rest(x):
        """What the second column says, where there is one."""
        return emit(x).base_dist.log_prob(ys[4].astype(int))[1] if law.event_shape else 0.0 * x[0]

    np.testing.assert_allclose(gradient, jax.grad(rest)(xs[4]), rtol=1e-10)
    found = bs.filter(p, Guided.from_model(p), ys)
    assert np.isfinite(found.mean).all() and np.abs(found.mean).max() > 0.1


# ---- missing columns -------------------------------------------------------------------------------------------------
COV = np.array([[1.0, 0.6, -0.3], [0.6, 2.0, 0.4], [-0.3, 0.4, 1.5]])
LOADING = np.array([[1.0], [-0.5], [0.8]])


@pytest.mark.parametrize("low_rank", [False, True])
def test_a_missing_column_of_a_normal_law_is_integrated_out(low_rank):
    B = np.array([[1.0, 0.2], [0.3, -1.0], [0.5, 0.5]])

    def emit(x):
        if low_rank:
            return dist.LowRankMultivariateNormal(B @ x, jnp.asarray(LOADING), jnp.array([0.5, 0.4, 0.3]))
        return dist.MultivariateNormal(B @ x, jnp.asarray(COV))

    cov = LOADING @ LOADING.T + np.diag([0.5, 0.4, 0.3]) if low_rank else COV
    p, x, y = Seen(emit), jnp.array([0.3, -0.7]), np.array([0.4, -1.0, 0.9])
    for seen in ([0, 1, 2], [0, 2], [1]):
        partial = np.full(3, np.nan)
        partial[seen] = y[seen]
        expected = scipy.stats.multivariate_normal((B @ x)[np.array(seen)], cov[np.ix_(seen, seen)]).logpdf(y[seen])
        value, slope = jax.value_and_grad(lambda x, y=partial: log_emission(p, x, jnp.asarray(y)))(x)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        precision = np.linalg.inv(cov[np.ix_(seen, seen)])
        np.testing.assert_allclose(slope, B[seen].T @ precision @ (y[seen] - B[seen] @ x), rtol=1e-10)
    check_observations(p, np.array([[0.0, np.nan, 1.0]]))


def test_a_law_that_is_neither_independent_nor_normal_needs_whole_rows():
    p = Seen(lambda x: dist.Dirichlet(jnp.exp(jnp.append(x, 0.0))))
    assert not check_model(p).partial_rows
    assert np.isnan(log_emission(p, jnp.zeros(2), jnp.array([0.2, jnp.nan, 0.5])))
    assert log_emission(p, jnp.zeros(2), jnp.full(3, jnp.nan)) == 0
    assert log_emission(p, jnp.zeros(2), jnp.array([0.2, 0.3, 0.5])) == pytest.approx(np.log(2)), "uniform"
    with pytest.raises(ValueError, match=r"row 9, column 1 is missing.*neither factorizes over columns nor is normal"):
        check_observations(p, np.array([[0.2, np.nan, 0.5]]), first_row=9)


# ---- angles ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("concentration", [0.01, 0.7, 4.0, 90.0, 1e6])
def test_the_variance_of_an_angle_is_one_on_a_line(concentration):
    """numpyro's is the circular variance: half as large for a narrow law."""

    def moment(power):
        width = min(np.pi, 12 / np.sqrt(concentration))
        weight = lambda t: t**power * np.exp(-2 * concentration * np.sin(t / 2) ** 2)  # noqa: E731
        return scipy.integrate.quad(weight, 0, width, epsabs=0, epsrel=1e-11)[0]

    law = dist.VonMises(jnp.array([3.0, 7.0]), concentration).to_event(1)
    np.testing.assert_allclose(variance_of(law), moment(2) / moment(0), rtol=1e-8)
    np.testing.assert_array_equal(mean_of(law), [3.0, 7.0])  # not wrapped: a state that turns goes on past π


def test_an_angle_as_a_state_has_the_spread_of_its_draws():
    """The predicted variance after one row: that of the prior and of the noise, not of half of it."""

    class Turning(StateSpaceModel):
        def prior(self, u=None):
            return dist.VonMises(jnp.array([3.0]), 400.0).to_event(1)

        def transition(self, x, u=None):
            return dist.VonMises(x + 0.5, 100.0).to_event(1)

        def emission(self, x, u=None):
            return dist.VonMises(x, 50.0).to_event(1)

    p = Turning()
    found = bs.filter(p, Guided.from_model(p), np.full((2, 1), np.nan))
    np.testing.assert_allclose(found.mean[:, 0], [3.0, 3.5], rtol=1e-12)
    np.testing.assert_allclose(found.cov[:, 0, 0], [1 / 400, 1 / 400 + 1 / 100], rtol=0.01)


# ---- supports --------------------------------------------------------------------------------------------------------
OUTSIDE = {
    "a negative count": (lambda x: dist.Poisson(jnp.exp(x)).to_event(1), -1, "Poisson is a law of integers from 0"),
    "half a count": (lambda x: dist.Poisson(jnp.exp(x)).to_event(1), 1.5, "Poisson is a law of integers from 0"),
    "a count": (lambda x: dist.NegativeBinomial2(jnp.exp(x), 2.0).to_event(1), 0.1, "NegativeBinomial2 is a law of"),
    "label 7 of 4": (
        lambda x: dist.Categorical(logits=jnp.outer(x, jnp.arange(4.0))).to_event(1),
        7,
        "CategoricalLogits is a law of integers from 0 up to 3",
    ),
    "neither yes nor no": (
        lambda x: dist.Bernoulli(logits=x).to_event(1),
        2,
        "BernoulliLogits is a law of integers from 0 up to 1",
    ),
    "above all trials": (lambda x: dist.Binomial(5, logits=x).to_event(1), 6, "BinomialLogits"),
    "zero": (lambda x: dist.Gamma(2.0, jnp.exp(x)).to_event(1), 0, "Gamma is a law of numbers above 0"),
    "negative": (lambda x: dist.LogNormal(x, 1.0).to_event(1), -0.1, "LogNormal is a law of numbers above 0"),
    "above one": (lambda x: dist.Beta(jnp.exp(x), 1.0).to_event(1), 1.1, "Beta is a law of numbers from 0 up to 1"),
    "below": (
        lambda x: dist.TruncatedNormal(x, 1.0, low=-1.0).to_event(1),
        -2,
        "LeftTruncatedDistribution is a law of numbers from -1",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_observation_outside_of_the_support_is_named(name):
    emit, value, support = OUTSIDE[name]
    p = Seen(emit)
    rows = np.full((4, 2), 1.0 if value != 1.1 else 0.5)
    rows[1] = np.nan
    check_observations(p, rows)
    rows[2, 1] = value
    sentence = rf"row 12, column 1 is {value}, but the emission's {support}"
    if name == "above all trials":  # how many there are is an array: it might depend on the state
        return check_observations(p, rows)
    with pytest.raises(ValueError, match=sentence):
        check_observations(p, rows, first_row=10)
    with pytest.raises(ValueError, match=sentence.replace("row 12", "row 2")):
        bs.filter(p, Guided.from_model(p), rows)


def test_any_number_is_an_angle():
    p = Seen(lambda x: dist.VonMises(x, 2.0).to_event(1))
    ys = np.array(p.simulate(20, key=jax.random.key(0))[1])
    turned = ys + 2 * np.pi * np.arange(20)[:, None]
    check_observations(p, turned)
    q = Guided.from_model(p)
    np.testing.assert_allclose(bs.filter(p, q, turned).mean, bs.filter(p, q, ys).mean, atol=1e-9)
    densities = [log_emission(p, jnp.ones(2), jnp.asarray(y)) for y in (ys[3], turned[3])]
    np.testing.assert_allclose(*densities, rtol=1e-12)


def test_what_lies_in_no_fixed_support_is_left_to_the_density():
    """A bound that depends on the state."""
    for emit, value, expected in (
        (lambda x: dist.Uniform(x - 9.0, x + 9.0).to_event(1), 8.0, -np.log(18.0)),
        (lambda x: dist.Normal(x, 1.0).to_event(1), 1e9, -5e17),
    ):
        check_observations(Seen(emit), np.full((1, 2), value))
        assert log_emission(Seen(emit), jnp.zeros(2), jnp.full(2, value)) == pytest.approx(2 * expected)


@pytest.mark.parametrize("fields", [("loc", "scale"), ("scale", "loc")])
def test_a_law_has_its_parameters_in_one_order_in_all_processes(monkeypatch, fields):
    """numpyro's own order changes with Python's seed of hashes: what one process finds must hold in another."""
    monkeypatch.setattr(dist.Normal, "gather_pytree_data_fields", classmethod(lambda cls: fields))
    values, rebuilt = parameters_of(dist.Normal(1.0, 2.0))
    assert [float(value) for value in values] == [1.0, 2.0]
    again = rebuilt([3.0, 4.0])
    assert (again.loc, again.scale) == (3.0, 4.0)


@pytest.mark.parametrize("columns", [1, 5], ids=["grids", "regressed"])
def test_a_row_is_one_program_in_all_processes(monkeypatch, columns):
    """A run is continued by another process, bit for bit: so both must compile the same operations in the same order,
    whichever order numpyro's leaves have there."""

    class Outliers(StateSpaceModel):
        def prior(self, u=None):
            return dist.Normal(jnp.zeros(columns), 1.0).to_event(1)

        def transition(self, x, u=None):
            return dist.Normal(0.9 * x, 0.1).to_event(1)

        def emission(self, x, u=None):
            A = jax.random.normal(jax.random.key(0), (5, 5))
            mixed = A @ jnp.tanh(A @ x) if columns == 5 else x
            return dist.StudentT(3.0, mixed, jnp.full(columns, 0.3)).to_event(1)

    p = Outliers()
    fields, programs = dist.StudentT.gather_pytree_data_fields(), []
    for order in (fields, fields[::-1]):
        monkeypatch.setattr(dist.StudentT, "gather_pytree_data_fields", classmethod(lambda cls, order=order: order))
        q = Guided.from_model(p)
        text = str(jax.make_jaxpr(lambda state, y, q=q: q.update(p, state, y))(q.init(p), jnp.zeros(columns)))
        programs.append(re.sub(r"0x[0-9a-f]+", "", text))
    assert type(q.plan.update).__name__ == ("Propagated" if columns == 1 else "Regressed")
    assert programs[0] == programs[1]
