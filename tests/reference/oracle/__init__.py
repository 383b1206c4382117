"""A second, slow reading of the paper's equations: plain NumPy, float64, one particle at a time.

Nothing here is shared with the library and nothing is vectorized over particles. Wherever the text of the
paper is wrong the corrected equation is used, with a comment.

The model p is any object with `log_prior(x)`, `log_transition(x_prev, x)` and `log_emission(x, y)`: a `Model`
of three callables, or a `LinearGaussian`. The family q is any object with the four callables of `Family`,
functions of a flat parameter vector λ; `kalman_family` is a concrete one. Gaussians are pairs (η1, Λ) that
stand for exp(η1·x − ½ xᵀΛx).

Derivatives with respect to λ are five-point central differences of (η1, Λ), of expectations, or of the dense
ELBO; the score ∇log q follows from those of (η1, Λ) by hand (`score`). With a step of 1e-3 they are good to
about 1e-11.
"""

from .dense import dense_elbo, dense_law, dense_log_likelihood, dense_renewal, dense_value
from .functionals import additive_functional, model_gradient
from .parts import (
    BASELINES,
    LinearGaussian,
    Normal,
    backward_kernel,
    derivative,
    forward,
    kalman_family,
    kalman_parameters,
    kernel_slopes,
    marginal_slopes,
    pairwise_factor,
    score,
    score_term,
    sensitivities,
)
from .recursion import Moments, correct_row, features, moment_corrected, recursive_score

__all__ = [
    "BASELINES",
    "LinearGaussian",
    "Moments",
    "Normal",
    "additive_functional",
    "backward_kernel",
    "correct_row",
    "dense_elbo",
    "dense_law",
    "dense_log_likelihood",
    "dense_renewal",
    "dense_value",
    "derivative",
    "features",
    "forward",
    "kalman_family",
    "kalman_parameters",
    "kernel_slopes",
    "marginal_slopes",
    "model_gradient",
    "moment_corrected",
    "pairwise_factor",
    "recursive_score",
    "score",
    "score_term",
    "sensitivities",
]
