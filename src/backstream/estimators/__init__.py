"""Estimators of the ELBO and of its gradient."""

from .autodiff import AutodiffThroughWeights
from .base import Estimate, OfflineEstimator, OnlineEstimate, OnlineEstimator, Scan
from .baselines import LeaveOneOut, NoBaseline, SameSample
from .corrected import MomentCorrected, Quadratic
from .exact import Exact
from .fixed_lag import FixedLag, WindowAverage, WindowIncrement
from .functionals import AdditiveFunctional, AdditiveSmoother, linear_gaussian_statistics, moments
from .log_score import LogScore
from .objectives import Increment, Renewal
from .pathwise import RecursivePathwise
from .regression import Regression
from .regressors import KernelRidge, Network
from .reverse import ReverseScore
from .score import RecursiveScore
from .sensitivity import Forward, Frozen, Truncated
from .trajectories import BackwardTrajectories
from .weights import AcceptReject, BackwardSampling, SelfNormalised

__all__ = [
    "AcceptReject",
    "AdditiveFunctional",
    "AdditiveSmoother",
    "AutodiffThroughWeights",
    "BackwardSampling",
    "BackwardTrajectories",
    "Estimate",
    "Exact",
    "FixedLag",
    "Forward",
    "Frozen",
    "Increment",
    "KernelRidge",
    "LeaveOneOut",
    "LogScore",
    "MomentCorrected",
    "Network",
    "NoBaseline",
    "OfflineEstimator",
    "OnlineEstimate",
    "OnlineEstimator",
    "Quadratic",
    "RecursivePathwise",
    "RecursiveScore",
    "Regression",
    "Renewal",
    "ReverseScore",
    "SameSample",
    "Scan",
    "SelfNormalised",
    "Truncated",
    "WindowAverage",
    "WindowIncrement",
    "linear_gaussian_statistics",
    "moments",
]
