"""Variational families q^λ, all behind the methods of `BackwardFamily`."""

from backstream.families.base import BackwardFamily, ScoringFamily
from backstream.families.conjugate import Conjugate
from backstream.families.guided import Guided
from backstream.families.innovation import Innovation
from backstream.families.kalman import Kalman
from backstream.families.kernels import AffineKernel, AffinePotential, FreePotential, Kernel
from backstream.families.linear import LinearDynamics
from backstream.families.linearise import Tangent
from backstream.families.per_step import PerStep
from backstream.families.recurrent import Recurrent, TanhCell

__all__ = [
    "AffineKernel",
    "AffinePotential",
    "BackwardFamily",
    "Conjugate",
    "FreePotential",
    "Guided",
    "Innovation",
    "Kalman",
    "Kernel",
    "LinearDynamics",
    "PerStep",
    "Recurrent",
    "ScoringFamily",
    "Tangent",
    "TanhCell",
]
