"""Models and inputs that cannot be used: a sentence that names the method, or the row and the column."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import backstream as bs
from backstream.estimators import Exact, LogScore
from backstream.families import Guided, Kalman
from backstream.families.backward import filter_states
from backstream.learning import OnlineLearner, fit
from backstream.models import LinearGaussian, StateSpaceModel, check_model, log_prior, log_transitions

KEY = jax.random.key(0)


class Model(StateSpaceModel):
    """A random walk seen with noise. A test replaces what is wrong."""

    def prior(self, u=None):
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def transition(self, x, u=None):
        return dist.Normal(x, 0.3).to_event(1)

    def emission(self, x, u=None):
        return dist.Normal(x, 0.5).to_event(1)


def having(**methods):
    """A class with other methods, of the same arguments."""
    return type("Having", (Model,), methods)()


# ---- laws without a density ------------------------------------------------------------------------------------------
class NoDensity(dist.Distribution):
    """Can be drawn from, and knows its moments."""

    support = dist.constraints.real_vector

    def __init__(self, center):
        self.center = center
        super().__init__((), jnp.shape(center))

    @property
    def mean(self):
        return self.center

    @property
    def covariance_matrix(self):
        return jnp.eye(len(self.center))

    def sample(self, key, sample_shape=()):
        return self.center + jax.random.normal(key, (*sample_shape, *self.event_shape))


def test_a_law_without_a_density_is_named():
    emits = having(emission=lambda self, x, u=None: NoDensity(x))
    for use in (check_model, Guided.from_model):
        with pytest.raises(ValueError, match="emission returns NoDensity, which has no density: its log_prob"):
            use(emits)
    starts, moves = (
        having(prior=lambda self, u=None: NoDensity(jnp.zeros(2))),
        having(transition=emits.emission.__func__),
    )
    with pytest.raises(ValueError, match="prior returns NoDensity, which has no density"):
        log_prior(starts, jnp.zeros(2))
    with pytest.raises(ValueError, match="transition returns NoDensity, which has no density"):
        log_transitions(moves, jnp.zeros((3, 2)), jnp.zeros((3, 2)))
    # A filter needs moments of the states' laws, and no density.
    normal = having(prior=lambda self, u=None: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
    assert np.array_equal(starts.prior().covariance_matrix, np.eye(2))
    found, expected = (bs.filter(p, Guided.from_model(p), np.ones((3, 2))).mean for p in (starts, normal))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ---- what cannot be compiled -----------------------------------------------------------------------------------------
def branching(self, x, u=None):
    return dist.Normal(x if x[0] > 0 else 0.5 * x, 0.3).to_event(1)


def switched(self, x, u=None):
    return dist.Normal(x if u[0] > 0 else 0.5 * x, 0.3).to_event(1)


def through_numpy(self, x, u=None):
    return dist.Normal(np.sin(x), 0.3).to_event(1)


def rounded(self, x, u=None):
    return dist.Normal(x * int(x[0]), 0.3).to_event(1)


def indexed(self, x, u=None):
    return dist.Normal(x[u[0]] * x, 0.3).to_event(1)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (branching, "asks `if`, `and`, `or` or `not` of a state or an input: use jnp.where"),
        (switched, "asks `if`, `and`, `or` or `not` of a state or an input: use jnp.where"),
        (through_numpy, "gives a state or an input to NumPy: use jax.numpy"),
        (rounded, "makes a Python number of a state or an input: keep it an array"),
        (indexed, r"takes a floating-point number as an index: use .astype\(int\)"),
    ],
)
def test_python_where_jax_is_needed_is_named(method, sentence):
    for name in ("transition", "emission"):
        with pytest.raises(bs.InputError, match=f"^The model cannot be used: {name} {sentence}.$"):
            bs.learn(having(**{name: method}), np.ones((3, 2)), inputs=np.zeros((3, 1)), progress=False)


def test_a_class_in_the_place_of_a_model_is_named(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own check of types comes first
    with pytest.raises(bs.InputError, match=r"^The model cannot be used: The model is a class: .* Model\(\)"):
        bs.learn(Model, np.ones((3, 2)), progress=False)  # type: ignore[arg-type]


def test_inputs_are_named_where_they_may_be_the_reason_only():
    emits = having(emission=lambda self, x, u=None: dist.Normal(x, 0.3))
    with pytest.raises(bs.InputError, match=r"^The model cannot be used: emission returns 2 separate"):
        bs.learn(emits, np.ones((3, 2)), progress=False)
    needs = having(emission=lambda self, x, u=None: dist.Normal(x + u[0], 0.3).to_event(1))
    with pytest.raises(bs.InputError, match=r"with no input columns; choose .* emission reads inputs, but none"):
        bs.learn(needs, np.ones((3, 2)), progress=False)


# ---- no derivative ---------------------------------------------------------------------------------------------------
def outside(x):
    """A function that JAX calls, and knows nothing of."""
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def looped(x):
    """Some turns of a loop whose number is not known beforehand: it has a derivative forwards, and none backwards."""
    return jax.lax.while_loop(lambda y: jnp.abs(y).max() > 1.0, lambda y: 0.5 * y, x)


def test_a_method_without_a_derivative_is_named():
    def moves(self, x, u=None):
        return dist.Normal(outside(x), 0.3).to_event(1)

    with pytest.raises(ValueError, match=r"transition has no derivative.*guided family needs: Pure callbacks do not"):
        Guided.from_model(having(transition=moves))
    with pytest.raises(ValueError, match=r"emission has no derivative in the state.*Pure callbacks do not"):
        Guided.from_model(having(emission=moves))


def test_a_derivative_forwards_is_enough_where_columns_are_independent():
    p = having(emission=lambda self, x, u=None: dist.Normal(looped(x), 0.3).to_event(1))
    assert Guided.from_model(p).obs_dim == 2
    joint = having(emission=lambda self, x, u=None: dist.Dirichlet(jnp.exp(looped(x))))
    with pytest.raises(ValueError, match=r"emission has no derivative in the state.*Reverse-mode differentiation"):
        Guided.from_model(joint)


# ---- NaN -------------------------------------------------------------------------------------------------------------
def wrong(x):
    return jnp.log(-1.0 - x**2)


def test_the_method_that_gives_nan_is_named():
    for name, method, sentence in (
        ("prior", lambda self, u=None: dist.Normal(wrong(jnp.zeros(2)), 1.0).to_event(1), r"prior.*mean \[nan nan\]"),
        ("prior", lambda self, u=None: dist.Cauchy(wrong(jnp.zeros(2)), 1.0).to_event(1), r"prior.*mean \[nan nan\]"),
        (
            "transition",
            lambda self, x, u=None: dist.Normal(wrong(x), 1.0).to_event(1),
            r"transition returns a law whose mean or covariance is NaN at the states around the prior mean \[0. 0.\]",
        ),
        (
            "transition",
            lambda self, x, u=None: dist.Normal(x, wrong(x)).to_event(1),
            "transition.*mean or covariance is NaN",
        ),
        (
            "transition",
            lambda self, x, u=None: dist.Cauchy(wrong(x), 1.0).to_event(1),
            "transition.*mean or covariance is NaN",
        ),
        ("emission", lambda self, x, u=None: dist.Normal(wrong(x), 1.0).to_event(1), "emission.*log density is NaN"),
        ("emission", lambda self, x, u=None: dist.Poisson(wrong(x)).to_event(1), "emission.*log density is NaN"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Guided.from_model(having(**{name: method}))


def test_nan_at_single_states_is_no_mistake():
    """A direction has none at the origin, which is the prior mean; a root has none on one side."""
    towards = having(emission=lambda self, x, u=None: dist.Normal(x / jnp.sqrt((x**2).sum()), 0.5).to_event(1))
    half = having(emission=lambda self, x, u=None: dist.Normal(jnp.sqrt(x), 0.5).to_event(1))
    for p in (towards, half):
        found = bs.filter(p, Guided.from_model(p), np.full((5, 2), 0.7))
        assert np.isfinite(found.mean).all() and found.mean.min() > 0.1


# ---- inputs ----------------------------------------------------------------------------------------------------------
READS_INPUTS = {
    "an entry": lambda u: u[0],
    "a product": lambda u: 0.1 * u,
    "a function": jnp.cos,
    "an array": jnp.asarray,
    "a field": lambda u: u.step,
}


@pytest.mark.parametrize("name", READS_INPUTS)
def test_missing_inputs_are_named(name):
    read = READS_INPUTS[name]
    p = having(transition=lambda self, x, u=None: dist.Normal(read(u) * x, 0.3).to_event(1))
    for use in (check_model, Guided.from_model):
        with pytest.raises(ValueError, match="transition reads inputs, but none are given: pass the model's inputs"):
            use(p)


def test_missing_inputs_are_named_wherever_there_are_rows():
    p = having(emission=lambda self, x, u=None: dist.Normal(u[0] * x, 0.3).to_event(1))
    q, ys = Guided.from_model(p, np.ones(1)), np.ones((3, 2))
    law = bs.filter(p, q, ys, np.ones((3, 1)))
    made = OnlineLearner(p, LogScore(), optax.sgd(0.0))
    for use in (
        lambda: bs.filter(p, q, ys),
        lambda: bs.forecast(p, law, 2, key=KEY),
        lambda: made.step(made.init(q, key=KEY), ys[0]),
    ):
        with pytest.raises(ValueError, match="emission reads inputs, but none are given"):
            use()


def test_an_error_of_the_models_own_is_left_alone():
    p = having(transition=lambda self, x, u=None: dist.Normal(x + None, 0.3).to_event(1))
    with pytest.raises(TypeError, match="unsupported operand"):
        check_model(p, np.ones(1))


def test_inputs_that_are_not_finite_are_named():
    p = having(emission=lambda self, x, u=None: dist.Normal(x + u["a"][0], 0.3).to_event(1))
    ys, us = np.ones((6, 2)), {"a": np.ones((6, 1)), "b": np.arange(6)}
    q = Guided.from_model(p, {"a": np.ones(1), "b": np.asarray(0)})
    made = OnlineLearner(p, LogScore(), optax.sgd(0.0))
    state = made.init(q, jax.tree.map(lambda leaf: leaf[0], us), key=KEY)
    state, _ = made.scan(state, ys[:3], jax.tree.map(lambda leaf: leaf[:3], us))
    us["a"][4, 0] = np.nan
    with pytest.raises(ValueError, match=r"The input \['a'\] in row 4, column 0 is nan: inputs must be finite"):
        bs.filter(p, q, ys, us)
    with pytest.raises(ValueError, match="in row 7, column 0 is nan"):
        made.scan(state, ys, us)
    with pytest.raises(ValueError, match="in row 0, column 0 is inf"):
        made.init(q, {"a": np.full(1, np.inf), "b": np.asarray(0)}, key=KEY)
    with pytest.raises(ValueError, match="in row 4, column 0 is nan"):
        bs.forecast(p, bs.laws.Marginals(jnp.zeros((1, 2)), jnp.eye(2)[None]), 6, inputs=us, key=KEY)
    linear = LinearGaussian.random(2, 2, key=KEY)
    with pytest.raises(ValueError, match="The input in row 1 is -inf"):
        fit(linear, Kalman.from_model(linear), ys, np.array([0, -np.inf, 0, 0, 0, 0]), estimator=Exact(),
            optimizer=optax.sgd(0.0), num_epochs=1, key=KEY)  # fmt: skip


def test_counts_with_many_zeros_are_all_read():
    """Negative binomial counts on four states: no row is refused."""
    p = having(
        prior=lambda self, u=None: dist.Normal(jnp.zeros(4), 0.5).to_event(1),
        transition=lambda self, x, u=None: dist.Normal(0.95 * x, 0.2).to_event(1),
        emission=lambda self, x, u=None: dist.NegativeBinomial2(jnp.exp(x), 2.0).to_event(1),
    )
    _, ys = p.simulate(50, key=jax.random.key(0))
    q = Guided.from_model(p)
    states = jax.jit(lambda ys: filter_states(p, q, ys, None))(ys)
    assert not np.asarray(states.failed).any() and np.isfinite(states.mean).all()
