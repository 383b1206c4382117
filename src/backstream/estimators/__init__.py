"""Estimators of the ELBO and of its gradient."""

from .base import Estimate, OfflineEstimator, OnlineEstimate, OnlineEstimator, Scan
from .baselines import LeaveOneOut, NoBaseline, SameSample
from .corrected import MomentCorrected, Quadratic
from .functionals import AdditiveFunctional, AdditiveSmoother, linear_gaussian_statistics, moments
from .objectives import Increment, Renewal
from .score import RecursiveScore
from .sensitivity import Forward, Frozen, Truncated
from .weights import AcceptReject, BackwardSampling, SelfNormalised

__all__ = [
    "AcceptReject",
    "AdditiveFunctional",
    "AdditiveSmoother",
    "BackwardSampling",
    "Estimate",
    "Forward",
    "Frozen",
    "Increment",
    "LeaveOneOut",
    "MomentCorrected",
    "NoBaseline",
    "OfflineEstimator",
    "OnlineEstimate",
    "OnlineEstimator",
    "Quadratic",
    "RecursiveScore",
    "Renewal",
    "SameSample",
    "Scan",
    "SelfNormalised",
    "Truncated",
    "linear_gaussian_statistics",
    "moments",
]
