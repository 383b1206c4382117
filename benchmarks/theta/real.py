"""Models of real streams: their log scores one row ahead, learned on the way, against refits to all rows before.

Each model starts from a plain guess. In the second half of the rows the same model is fitted by maximum likelihood to
all rows before, at REFITS points, and predicts the rows up to the next. The learner has read each row once.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

import backstream as bs
from backstream.families import Guided
from backstream.learning import build
from backstream.learning.parameters import ModelParameters, free_parameters

REFITS = 10


class Real(NamedTuple):
    """A stream with its model at the guess, the parameters that are learned (none for all), and rivals: functions from
    the rows and the points of refitting to log scores of the second half."""

    rows: Callable[[], np.ndarray]
    start: Callable[[], bs.StateSpaceModel]
    learned: tuple[str, ...] = ()
    rivals: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}  # noqa: RUF012


# ---- rows ------------------------------------------------------------------------------------------------------------
def returns() -> np.ndarray:
    """Of the S&P 500, in per cent a day, 1999 to 2018."""
    from arch.data import sp500

    return 100 * sp500.load()["Adj Close"].pct_change().dropna().to_numpy()[:, None]


def carbon_dioxide() -> np.ndarray:
    """At Mauna Loa, weekly, with gaps, less its first value."""
    from statsmodels.datasets import co2

    values = co2.load().data["co2"].to_numpy()[:, None]
    return values - values[0]


def sunspots() -> np.ndarray:
    """The square roots of the yearly numbers, 1700 to 2008, less their mean over the first fifty years."""
    from statsmodels.datasets import sunspots

    values = np.sqrt(sunspots.load().data["SUNACTIVITY"].to_numpy()[:, None])
    return values - values[:50].mean()


def bond_yields() -> np.ndarray:
    """Of American companies rated AAA and BAA, monthly, 1919 to 2018, as logarithms in per cent less the first."""
    from arch.data import default

    values = 100 * np.log(default.load()[["AAA", "BAA"]].to_numpy())
    return values - values[0]


# ---- rivals ----------------------------------------------------------------------------------------------------------
def garch(ys: np.ndarray, points: np.ndarray) -> np.ndarray:
    """GARCH(1,1) of arch, with normal returns of mean zero."""
    from arch import arch_model
    from scipy.stats import norm

    model, scores = arch_model(ys[:, 0], mean="Zero"), []
    for begin, end in zip(points, [*points[1:], len(ys)], strict=True):
        spread = model.fix(model.fit(last_obs=begin, disp="off").params).conditional_volatility
        scores.append(norm.logpdf(ys[begin:end, 0], scale=spread[begin:end]))
    return np.concatenate(scores)


def unobserved_components(**components: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """statsmodels' model of the same components, refitted from where the fit before ended."""

    def scores(ys: np.ndarray, points: np.ndarray) -> np.ndarray:
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        whole, found, start = UnobservedComponents(ys[:, 0], **components), [], None
        for begin, end in zip(points, [*points[1:], len(ys)], strict=True):
            before = UnobservedComponents(ys[:begin, 0], **components)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = before.fit(start, disp=False, maxiter=300).params
            found.append(whole.filter(start).llf_obs[begin:end])
        return np.concatenate(found)

    return scores


# ---- the streams -----------------------------------------------------------------------------------------------------
YEAR = 365.25 / 7
STREAMS = {
    "S&P 500, stochastic volatility": Real(
        returns,
        lambda: bs.StochasticVolatility(jnp.zeros(1), phi=jnp.array([0.9]), sigma=jnp.array([0.3])),
        rivals={"GARCH(1,1), arch": garch},
    ),
    "CO₂, trend and season": Real(
        carbon_dioxide,
        lambda: bs.structural(
            level=0.3, trend=0.01, seasonal=YEAR, harmonics=3, seasonal_scale=0.03, noise=0.5, initial_scale=10.0
        ),
        rivals={
            "UnobservedComponents": unobserved_components(
                level="local linear trend", freq_seasonal=[{"period": YEAR, "harmonics": 3}]
            )
        },
    ),
    "sunspots, AR(2) and noise": Real(
        sunspots,
        lambda: bs.structural(level=None, ar=[0.5, 0.0], ar_scale=2.0, noise=1.0),
        rivals={"UnobservedComponents": unobserved_components(irregular=True, autoregressive=2)},
    ),
    "bond yields, two levels": Real(
        bond_yields,
        lambda: bs.LinearGaussian(jnp.zeros(2), jnp.full(2, 10.0), jnp.ones(2), jnp.ones(2), jnp.eye(2), jnp.ones(2)),
        ("transition_scale", "emission_scale"),
    ),
}


@eqx.filter_jit
def _log_scores(raw, rebuild, parameters, q, ys):
    p = parameters.model(rebuild(raw))

    def step(state, y):
        state = q.update(p, state, y)
        return state, q.log_score(state)

    return jax.lax.scan(step, q.init(p), ys)[1]


@eqx.filter_jit
def _loss(raw, rebuild, parameters, q, ys, rows):
    def loss(raw):
        scores = _log_scores(raw, rebuild, parameters, q, ys)
        return -jnp.where(jnp.arange(len(ys)) < rows, scores, 0.0).sum() / rows

    value, push = jax.linearize(loss, raw)
    return value, jax.vmap(push)(jnp.eye(len(raw)))


def refitted(start: bs.StateSpaceModel, learned: tuple[str, ...], ys: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Log scores of the second half by the model refitted to all rows before. Each fit starts where the one before
    ended, the first at the guess."""
    parameters = ModelParameters(start, free_parameters(start, learned))
    raw, rebuild = ravel_pytree(parameters.unconstrained())
    q, rebuild, found = Guided.from_model(start), jax.tree_util.Partial(rebuild), []
    for begin, end in zip(points, [*points[1:], len(ys)], strict=True):

        def loss(x, begin=begin):
            value, gradient = _loss(jnp.asarray(x), rebuild, parameters, q, jnp.asarray(ys), jnp.asarray(float(begin)))
            return float(value), np.asarray(gradient, float)

        raw = scipy.optimize.minimize(loss, np.asarray(raw), jac=True, method="L-BFGS-B").x
        found.append(np.asarray(_log_scores(jnp.asarray(raw), rebuild, parameters, q, jnp.asarray(ys)))[begin:end])
    return np.concatenate(found)


def learned_on_the_way(start: bs.StateSpaceModel, learned: tuple[str, ...], ys: np.ndarray) -> dict[str, Any]:
    """The log score of each row under what was learned before it, and what the steps say at the end."""
    settings = bs.Settings(learn_parameters=learned) if learned else bs.Settings(learn_model=True)
    watched, q, key = build(start, settings)
    state, infos = watched.learner.scan(watched.learner.init(q, key=key), ys)
    steps = state.model_optimiser
    told = {"settled": bool(steps.settled), "restarts": int(steps.restarts), "age": int(steps.age)}
    return {"scores": np.asarray(infos.log_score, float), **told}


def compare(name: str) -> dict[str, Any]:
    """Mean log scores of the second half, nats per row."""
    case = STREAMS[name]
    ys = case.rows()
    points = np.linspace(len(ys) // 2, len(ys), REFITS + 1).astype(int)[:-1]
    seen = np.isfinite(ys[points[0] :]).any(1)
    online = learned_on_the_way(case.start(), case.learned, ys.astype("f"))
    scores = online.pop("scores")[points[0] :]
    with jax.enable_x64(True):
        offline = refitted(case.start(), case.learned, ys, points)
    rivals = {rival: float(run(ys, points)[seen].mean()) for rival, run in case.rivals.items()}
    gap = (offline - scores)[seen]
    return {
        "rows": len(ys),
        "online": float(scores[seen].mean()),
        "refitted": float(offline[seen].mean()),
        "gap": float(gap.mean()),
        "gap_error": float(gap.std() / np.sqrt(len(gap))),
        "rivals": rivals,
        **online,
    }
