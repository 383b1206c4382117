"""Laws of the state: sample, log density, moments and intervals."""

from .gaussian import Gaussian
from .marginals import Marginals, MixtureMarginals
from .mixture import Mixture

__all__ = ["Gaussian", "Marginals", "Mixture", "MixtureMarginals"]
