"""What the steps of θ sum up of the scores of rows: the information of a row, and blocks of rows."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

WIDE, MOST_BEYOND = 32.0, 0.02
"""A score is huge if it is larger than so many times its typical size. More of them than this share hide the others."""
LEAST_INFORMATION = 1e-6
"""Of a row about a parameter, in its unit. Below, as for those of the prior, the parameter stays as it is."""
LEAST_UNIT, LARGEST_UNIT, LARGEST_FREE_UNIT = 0.3, 1.0, 5.0
"""A parameter's unit lies between the first two where it is a logarithm or log odds: a noise that the search takes to
be far too small says nothing about itself any more, and must not run away. That of others goes up to the third, or
their value."""
DAMPING, LONGEST = 0.1, 3.0
"""Added to the correlations that the search takes out; and the largest factor by which that may lengthen a step."""


class Block(NamedTuple):
    """Sums over the rows of a block."""

    rows: Float[Array, ""]
    scores: Float[Array, ""]
    """How many there were: as many as rows, unless several rows come together."""
    score: Float[Array, " p"]
    theta: Float[Array, " p"]
    outer: Float[Array, "p p"]
    """Of the scores' outer products."""
    beyond: Float[Array, ""]
    """Of the shares of scores that were beyond the wide bound."""

    @classmethod
    def empty(cls, size: int, dtype) -> "Block":
        zero, zeros = jnp.zeros((), dtype), jnp.zeros(size, dtype)
        return cls(zero, zero, zeros, zeros, jnp.zeros((size, size), dtype), zero)

    def add(self, rows: Array, score: Array, theta: Array, beyond: Array) -> "Block":
        return Block(
            self.rows + rows,
            self.scores + 1,
            self.score + rows * score,
            self.theta + rows * theta,
            self.outer + rows**2 * jnp.outer(score, score),
            self.beyond + beyond,
        )

    def clear_if(self, over: Bool[Array, ""]) -> "Block":
        return Block(*(jnp.where(over, 0.0, leaf) for leaf in self))

    def heavy(self) -> Array:
        """Whether so many scores were beyond the wide bound that they hide the others."""
        return self.beyond > MOST_BEYOND * self.scores

    def count(self) -> Array:
        return jnp.maximum(self.rows, 1.0)


class Information(NamedTuple):
    """J as factors on the scale of correlations, drawn a little to its diagonal as long as it is of few rows."""

    scale: Float[Array, " p"]
    factor: Float[Array, "p p"]
    unit: Float[Array, " p"]
    active: Bool[Array, " p"]
    """Whether rows say anything about the parameter."""

    @classmethod
    def of(
        cls, J: Float[Array, "p p"], rows: Array, theta: Float[Array, " p"], bounded: Bool[Array, " p"] | None = None
    ) -> "Information":
        """`bounded` says which parameters are logarithms or log odds: None for none."""
        size, eye = theta.size, jnp.eye(theta.size, dtype=J.dtype)
        free = jnp.maximum(LARGEST_FREE_UNIT, jnp.abs(theta))
        largest = free if bounded is None else jnp.where(bounded, LARGEST_UNIT, free)
        active = jnp.diag(J) * free**2 > LEAST_INFORMATION
        scale = jnp.sqrt(jnp.where(active, jnp.diag(J), 1.0))
        shrunk = size / (size + rows)
        correlation = jnp.where(jnp.outer(active, active), J / jnp.outer(scale, scale), eye)
        factor = jnp.linalg.cholesky((1 - shrunk) * correlation + (shrunk + 1e-5) * eye)
        return cls(scale, factor, jnp.clip(1 / scale, LEAST_UNIT, largest), active)

    def whitened(self, score: Array) -> Array:
        return solve_triangular(self.factor, jnp.where(self.active, score / self.scale, 0.0), lower=True)

    def solve(self, score: Array) -> Array:
        """J⁻¹ s, and no step where nothing is known."""
        step = solve_triangular(self.factor.T, self.whitened(score), lower=False) / self.scale
        return jnp.where(self.active, step, 0.0)

    def inverse(self) -> Float[Array, "p p"]:
        """J⁻¹, infinite for parameters that rows say nothing about."""
        half = solve_triangular(self.factor, jnp.diag(1 / self.scale), lower=True)
        return half.T @ half + jnp.diag(jnp.where(self.active, 0.0, jnp.inf))

    def size(self, score: Array) -> Array:
        """sᵀJ⁻¹s / p: about 1 for the score of a row."""
        return (self.whitened(score) ** 2).sum() / jnp.maximum(self.active.sum(), 1)

    def misfit(self, score: Array, block: Block) -> Array:
        """n s̄ᵀJ⁻¹s̄ / p of the sum of scores of a block: about 1 by chance."""
        return self.size(score) / block.count()

    def uncorrelated(self, direction: Array) -> Array:
        """A direction of the scores with their correlations taken out, which are poorly known: damped."""
        correlation = self.factor @ self.factor.T
        damped = (correlation + DAMPING * jnp.eye(len(direction), dtype=direction.dtype)) / (1 + DAMPING)
        turned = cho_solve((jnp.linalg.cholesky(damped), True), direction)
        before, after = jnp.max(jnp.abs(direction)), jnp.max(jnp.abs(turned))
        return turned * jnp.clip(after, before, LONGEST * before) / jnp.maximum(after, 1e-30)

    def widest(self, rows: Array) -> Array:
        """The largest standard error after so many rows, in units."""
        half = solve_triangular(self.factor, jnp.diag(1 / self.scale), lower=True)
        errors = jnp.sqrt((half**2).sum(0) / rows) / self.unit
        return jnp.max(jnp.where(self.active, errors, 0.0))

    def within(self, step: Array, most: float) -> Array:
        """A step of at most so many units."""
        return step * jnp.minimum(1.0, most / jnp.maximum(jnp.max(jnp.abs(step) / self.unit), 1e-30))
