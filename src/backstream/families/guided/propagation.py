"""Expectation propagation: N(0, I) times several groups of columns, each of which reads a few directions of z.

Group j reads s_j = A_j z. It is replaced by a Gaussian site exp(ν·s − ½ s·τ s). A sweep takes each site out of the
posterior (the cavity), multiplies the group's own density back in, reads the moments of that product on a grid in the
group's few directions, and puts the site there that gives these moments. All groups at once, until nothing moves.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from . import small_matrices as small
from .closed_forms import LOG_2PI, Tilted
from .grids import MANY, Frame, fit

MAX_SWEEPS = 12
TOLERANCE = 0.02
"""Sweeps end when no mean and no log scale moves by more, in posterior standard deviations."""
QUICK_SWEEPS = 4
DAMPING = 0.7
"""After the quick sweeps a site goes so much of the way: what has not settled by then swings."""
LEAST_CAVITY = 1e-4
"""The least squared pivot of a cavity's precision, in units of the posterior's: a column may say so many times more
than all others together. Single precision has no digits for more."""
KEEP = 0.99
"""A site may take away at most so much of the prior's precision, shared among the sites that overlap with it."""

GroupDensity = Callable[[Float[Array, "j n r"], "Lift"], Float[Array, "j n"]]
"""log densities of the groups at n points s each. A pytree. The `Lift` says which z belongs to a point."""


class Sites(NamedTuple):
    precision: Float[Array, "j r r"]
    shift: Float[Array, "j r"]


class Lift(NamedTuple):
    """E[z | s_j = s] under the current posterior."""

    mean: Float[Array, " d"]
    gain: Float[Array, "j d r"]
    center: Float[Array, "j r"]

    def __call__(self, s: Float[Array, "j n r"]) -> Float[Array, "j n d"]:
        return self.mean + jnp.einsum("jnr,jdr->jnd", s - self.center[:, None], self.gain)


class _Posterior(NamedTuple):
    mean: Float[Array, " d"]
    root: Float[Array, "d d"]
    """K, lower: the precision is K Kᵀ."""
    factor: Float[Array, "d d"]
    """K⁻ᵀ: the covariance is its square."""


class _Sweep(NamedTuple):
    count: Array
    sites: Sites
    posterior: _Posterior
    frames: Frame
    """Means and factors of the tilted laws, where the next grids start."""
    log_mass: Float[Array, ""]
    moved: Float[Array, ""]


@eqx.filter_custom_jvp
def propagate(density: GroupDensity, directions: Float[Array, "j r d"]) -> Tilted:
    """The posterior of z, with the log mass that the sites give."""
    return _concluded(_converge(density, directions))


@propagate.def_jvp
def _propagate_jvp(primals, tangents):
    """The derivative of one more sweep, with the sites and grids that were found held where they are."""
    density, directions = primals
    found = _converge(density, directions)
    held = found._replace(count=jnp.zeros_like(found.count))

    def again(density, directions):
        start = held._replace(posterior=_posterior(held.sites, directions))
        return _concluded(_sweep(density, directions, _least_precision(directions), start))

    return eqx.filter_jvp(again, primals, tangents)


def _concluded(sweep: _Sweep) -> Tilted:
    return Tilted(sweep.posterior.mean, sweep.posterior.factor, sweep.log_mass)


def _converge(density: GroupDensity, directions: Float[Array, "j r d"]) -> _Sweep:
    groups, r, d = directions.shape
    dtype = directions.dtype
    one = jnp.broadcast_to(jnp.eye(r, dtype=dtype), (groups, r, r))
    zero, eye = jnp.zeros((groups, r), dtype), jnp.eye(d, dtype=dtype)
    start = _Sweep(
        jnp.zeros((), int),
        Sites(0 * one, zero),
        _Posterior(jnp.zeros(d, dtype), eye, eye),
        Frame(zero, one),
        jnp.zeros((), dtype),
        jnp.ones((), dtype),
    )
    floor = _least_precision(directions)
    return jax.lax.while_loop(
        lambda sweep: (sweep.count < MAX_SWEEPS) & (sweep.moved > TOLERANCE),
        lambda sweep: _sweep(density, directions, floor, sweep),
        start,
    )


class CavityDensity(eqx.Module):
    """A group's density times its cavity, in the coordinates w in which the cavity is standard normal."""

    density: GroupDensity
    lift: Lift
    center: Float[Array, "j r"]
    factor: Float[Array, "j r r"]

    def __call__(self, w: Float[Array, "j n r"]) -> Float[Array, "j n"]:
        s = self.center[:, None] + jnp.einsum("jik,jnk->jni", self.factor, w)
        return self.density(s, self.lift).astype(w.dtype) - 0.5 * (w**2).sum(-1) - 0.5 * w.shape[-1] * LOG_2PI


def _sweep(density: GroupDensity, A: Float[Array, "j r d"], floor: Float[Array, "j r r"], sweep: _Sweep) -> _Sweep:
    groups, r, d = A.shape
    rows, eye = A.reshape(groups * r, d), jnp.eye(r, dtype=A.dtype)
    (tau, nu), (mu, _, F) = sweep.sites, sweep.posterior[:3]

    # The marginal of s_j, and its cavity N(m_c, C_c C_cᵀ): V_c⁻¹ = V⁻¹ − τ, V_c⁻¹ m_c = V⁻¹ m − ν.
    AF = (rows @ F).reshape(groups, r, d)
    C = small.cholesky(AF @ small.transpose(AF), 1e-20)
    m = A @ mu
    Ci = small.inverse(C)
    Vi = small.transpose(Ci) @ Ci
    less = small.inverse(small.cholesky(eye - small.transpose(C) @ tau @ C, LEAST_CAVITY))
    Cc = small.cholesky(C @ small.transpose(less) @ less @ small.transpose(C), 1e-20)
    Cci = small.inverse(Cc)
    mc = small.apply(Cc @ small.transpose(Cc), small.apply(Vi, m) - nu)

    # The moments of group × cavity, on a grid that starts where the last one ended.
    lift = Lift(mu, jnp.einsum("de,jre->jdr", F, AF) @ Vi, m)
    start = Frame(small.apply(Cci, sweep.frames.center - mc), Cci @ sweep.frames.factor)
    found = fit(CavityDensity(density, lift, mc, Cc), start, MANY[r])
    tilted = Frame(mc + small.apply(Cc, found.mean), Cc @ found.factor)

    new = _new_sites(floor, Cci, mc, found.factor, tilted.center)
    rate = jnp.where(sweep.count < QUICK_SWEEPS, 1.0, DAMPING).astype(A.dtype)
    live = (A**2).sum((1, 2)) > 0.5
    good = live & jnp.isfinite(new.precision).all((1, 2)) & jnp.isfinite(new.shift).all(1)
    tau = tau + rate * (jnp.where(good[:, None, None], new.precision, 0.0) - tau)
    nu = nu + rate * (jnp.where(good[:, None], new.shift, 0.0) - nu)

    posterior = _posterior(Sites(tau, nu), A)
    # The energy of the sites that the sweep began with. Where sweeps converge its derivative in the sites is zero, so
    # that what is left to go matters in second order only.
    ratios = small.log_det(Cc) - small.log_det(C) + 0.5 * (small.apply(Cci, m - mc) ** 2).sum(1)
    log_mass = (found.log_mass + ratios).sum() + small.log_det(F) - 0.5 * (mu**2).sum()
    drift = jnp.abs(posterior.root.T @ (posterior.mean - mu)).max()
    scale = jnp.abs(jnp.log(jnp.diagonal(posterior.root) / jnp.diagonal(sweep.posterior.root))).max()
    return _Sweep(sweep.count + 1, Sites(tau, nu), posterior, tilted, log_mass, jnp.maximum(drift, scale))


def _new_sites(floor, Cci, mc, factor, hat) -> Sites:
    """τ = V̂⁻¹ − V_c⁻¹, as negative as the overlap with other groups allows, and ν = (V_c⁻¹ + τ) m̂ − V_c⁻¹ m_c."""
    eye = jnp.eye(Cci.shape[-1], dtype=Cci.dtype)
    inverse = small.inverse(factor)
    precision = small.transpose(Cci) @ (small.transpose(inverse) @ inverse - eye) @ Cci
    X = small.cholesky(precision + floor, 1e-12)
    tau = X @ small.transpose(X) - floor
    cavity = small.transpose(Cci) @ Cci
    return Sites(tau, small.apply(cavity + tau, hat) - small.apply(cavity, mc))


def _least_precision(A: Float[Array, "j r d"]) -> Float[Array, "j r r"]:
    """How much precision each site may take away, so that all of them together leave some. A guard: it has no
    derivative, and at an overlap of zero could have none."""
    A = jax.lax.stop_gradient(A)
    groups, r, d = A.shape
    inverse = small.inverse(small.cholesky(A @ small.transpose(A), 1e-12))
    unit = (inverse @ A).reshape(groups * r, d)
    overlap = jnp.sqrt(((unit @ unit.T).reshape(groups, r, groups, r) ** 2).sum((1, 3))).sum(1)
    share = KEEP / jnp.maximum(overlap - math.sqrt(r) + 1, 1.0)
    return share[:, None, None] * (small.transpose(inverse) @ inverse)


def _posterior(sites: Sites, A: Float[Array, "j r d"]) -> _Posterior:
    d = A.shape[-1]
    rows, eye = A.reshape(-1, d), jnp.eye(d, dtype=A.dtype)
    precision = eye + rows.T @ (sites.precision @ A).reshape(-1, d)
    root = jnp.linalg.cholesky(0.5 * (precision + precision.T))
    factor = solve_triangular(root, eye, lower=True).T
    return _Posterior(factor @ (factor.T @ (sites.shift.reshape(-1) @ rows)), root, factor)
