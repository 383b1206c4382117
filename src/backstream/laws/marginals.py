"""Laws of the states for each time, as `filter`, `smooth` and `forecast` return them."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from backstream.laws.gaussian import scaled_cholesky
from backstream.laws.mixture import Mixture


class Marginals(NamedTuple):
    """A Gaussian for each time."""

    mean: Float[Array, "t d"]
    cov: Float[Array, "t d d"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_shape(self.mean)}: mean, cov, std, interval(0.9), to_pandas())"

    @property
    def std(self) -> Float[Array, "t d"]:
        return jnp.sqrt(jnp.diagonal(self.cov, axis1=1, axis2=2))

    def interval(self, level: float = 0.9) -> tuple[Float[Array, "t d"], Float[Array, "t d"]]:
        """Lower and upper ends of central intervals that hold each coordinate with probability `level`."""
        half = ndtri(0.5 + checked_level(level) / 2).astype(self.mean.dtype) * self.std
        return self.mean - half, self.mean + half

    def regions(self, level: float = 0.9) -> Float[Array, "t d 1 2"]:
        """The regions of highest density that hold each coordinate with probability `level`: one interval each."""
        return jnp.stack(self.interval(level), -1)[:, :, None]

    def sample(self, number: int, *, key: Array) -> Float[Array, "n t d"]:
        """Independent draws for each time."""
        roots = jax.vmap(scaled_cholesky)(jnp.asarray(self.cov))
        z = jax.random.normal(key, (number, *self.mean.shape), roots.dtype)
        return self.mean + jnp.einsum("tij,ntj->nti", roots, z)

    def to_arrow(self) -> pa.Table:
        """One row for each time: `row`, and `mean_0`, …, `std_0`, … for the states."""
        return arrow_table({"mean": self.mean, "std": self.std})

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas DataFrame, where pandas is installed."""
        return self.to_arrow().to_pandas()


class MixtureMarginals(eqx.Module):
    """A mixture of normal laws for each time."""

    laws: Mixture
    """With a leading axis of time."""

    def __repr__(self) -> str:
        count = self.weight.shape[-1]
        return f"{type(self).__name__}({_shape(self.mean)}, {count} components: mean, std, regions(0.9), to_pandas())"

    @property
    def weight(self) -> Float[Array, "t k"]:
        return jnp.exp(self.laws.log_weight)

    @property
    def mean(self) -> Float[Array, "t d"]:
        return jax.vmap(lambda law: law.moments()[0])(self.laws)

    @property
    def cov(self) -> Float[Array, "t d d"]:
        return jax.vmap(lambda law: law.moments()[1])(self.laws)

    @property
    def std(self) -> Float[Array, "t d"]:
        return jnp.sqrt(jnp.diagonal(self.cov, axis1=1, axis2=2))

    def interval(self, level: float = 0.9) -> tuple[Float[Array, "t d"], Float[Array, "t d"]]:
        """Lower and upper ends of central intervals that hold each coordinate with probability `level`."""
        tail = (1 - checked_level(level)) / 2
        return _quantiles(self.laws, tail), _quantiles(self.laws, 1 - tail)

    def regions(self, level: float = 0.9) -> Float[Array, "t d k 2"]:
        """The regions of highest density that hold each coordinate with probability `level`, as intervals: one for each
        mode that stands apart. NaN where there are fewer than components."""
        return _regions(self.laws, checked_level(level))

    def sample(self, number: int, *, key: Array) -> Float[Array, "n t d"]:
        """Independent draws for each time."""
        keys = jax.random.split(key, len(self.laws.mean))
        return jax.vmap(lambda law, key: law.sample((number,), key=key), out_axes=1)(self.laws, keys)

    def to_arrow(self) -> pa.Table:
        """One row for each time: `row`, `mean_0`, …, `std_0`, … for the states, `weight_0`, … for the components, and
        `mean_0_0`, …, `std_0_0`, … for the states of each component."""
        scales = jax.vmap(lambda law: law.scales())(self.laws)
        parts = {"mean": self.mean, "std": self.std, "weight": self.weight}
        for k in range(self.laws.mean.shape[1]):
            parts |= {f"mean_{k}": self.laws.mean[:, k], f"std_{k}": scales[:, k]}
        return arrow_table(parts)

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas DataFrame, where pandas is installed."""
        return self.to_arrow().to_pandas()


@eqx.filter_jit
def _quantiles(laws: Mixture, probability: float) -> Float[Array, "t d"]:
    return jax.vmap(lambda law: law.quantile(probability))(laws)


@eqx.filter_jit
def _regions(laws: Mixture, level: float) -> Float[Array, "t d k 2"]:
    return jax.vmap(lambda law: law.regions(level))(laws)


class Draws(NamedTuple):
    """Samples of a sequence of vectors, with their averages over the samples."""

    values: Float[Array, "n t d"]

    def __repr__(self) -> str:
        count, *rest = self.values.shape
        return f"{type(self).__name__}({count:,} paths of {rest[0]:,} rows: values, mean, std, interval(0.9))"

    @property
    def mean(self) -> Float[Array, "t d"]:
        return self.values.mean(0)

    @property
    def std(self) -> Float[Array, "t d"]:
        return self.values.std(0)

    def interval(self, level: float = 0.9) -> tuple[Float[Array, "t d"], Float[Array, "t d"]]:
        """Lower and upper quantiles between which lies the fraction `level` of the samples."""
        tail = (1 - checked_level(level)) / 2
        lower, upper = jnp.quantile(self.values, jnp.asarray([tail, 1 - tail], self.values.dtype), axis=0)
        return lower, upper

    def to_arrow(self, level: float = 0.9) -> pa.Table:
        """One row for each time: `row`, and `mean_0`, …, `std_0`, …, `lower_0`, …, `upper_0`, … for the entries."""
        lower, upper = self.interval(level)
        return arrow_table({"mean": self.mean, "std": self.std, "lower": lower, "upper": upper})

    def to_pandas(self, level: float = 0.9) -> Any:
        """`to_arrow` as a pandas DataFrame, where pandas is installed."""
        return self.to_arrow(level).to_pandas()


def arrow_table(parts: dict[str, Array]) -> pa.Table:
    columns = {
        f"{name}_{i}": np.ascontiguousarray(column)
        for name, values in parts.items()
        for i, column in enumerate(np.asarray(values).T)
    }
    return pa.table({"row": np.arange(len(next(iter(columns.values())))), **columns})


def checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, not at {level}.")
    return level


def _shape(mean: Array) -> str:
    rows, states = mean.shape
    return f"{rows:,} rows, {states} state{'' if states == 1 else 's'}"
