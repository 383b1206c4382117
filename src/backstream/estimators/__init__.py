"""Estimators of the ELBO and of its gradient."""

from .backward_trajectories import BackwardTrajectories
from .base import Estimate, OfflineEstimator, OnlineEstimate, OnlineEstimator, Scan
from .fixed_lag import FixedLag, WindowAverage, WindowIncrement
from .log_score import LogScore
from .recursive.baselines import LeaveOneOut, NoBaseline, SameSample
from .recursive.functionals import AdditiveFunctional, AdditiveSmoother, linear_gaussian_statistics, moments
from .recursive.moment_corrected import MomentCorrected, Quadratic
from .recursive.objectives import Increment, Renewal
from .recursive.pathwise import RecursivePathwise
from .recursive.ratio import FreePotentials, OwnKernels, RatioScore, TrueDynamics
from .recursive.score import RecursiveScore
from .recursive.sensitivity import Forward, Frozen, Truncated
from .recursive.weights import AcceptReject, BackwardSampling, SelfNormalized
from .reference.autodiff import AutodiffThroughWeights
from .reference.exact import Exact
from .reference.regression import Regression
from .reference.regressors import KernelRidge, Network
from .reference.reverse import ReverseScore

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
    "FreePotentials",
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
    "OwnKernels",
    "Quadratic",
    "RatioScore",
    "RecursivePathwise",
    "RecursiveScore",
    "Regression",
    "Renewal",
    "ReverseScore",
    "SameSample",
    "Scan",
    "SelfNormalized",
    "TrueDynamics",
    "Truncated",
    "WindowAverage",
    "WindowIncrement",
    "linear_gaussian_statistics",
    "moments",
]
