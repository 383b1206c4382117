"""Variational families q^λ, all behind the methods of `BackwardFamily`."""

from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.families.conjugate import Conjugate
from backstream.families.guided import Guided, GuidedMixture
from backstream.families.kalman import Kalman
from backstream.families.kernels import AffineKernel, AffinePotential, FreePotential, Kernel
from backstream.families.linear import LinearDynamics
from backstream.families.per_step import PerStep
from backstream.families.recurrent import Recurrent, TanhCell
from backstream.families.tilted import Tilted

__all__ = [
    "AffineKernel",
    "AffinePotential",
    "BackwardFamily",
    "Conjugate",
    "FreePotential",
    "Guided",
    "GuidedMixture",
    "Kalman",
    "Kernel",
    "LinearDynamics",
    "PerStep",
    "Recurrent",
    "ScoringFamily",
    "TanhCell",
    "Tilted",
]
