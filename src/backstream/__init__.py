"""Backstream: online variational smoothing for state-space models.

Names are imported when they are first used, so that the command line's help does not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from backstream.estimators import (
        AcceptReject,
        AdditiveFunctional,
        AdditiveSmoother,
        AutodiffThroughWeights,
        BackwardSampling,
        BackwardTrajectories,
        Estimate,
        Exact,
        FixedLag,
        Forward,
        Frozen,
        Increment,
        KernelRidge,
        LeaveOneOut,
        LogScore,
        MomentCorrected,
        Network,
        NoBaseline,
        OfflineEstimator,
        OnlineEstimate,
        OnlineEstimator,
        Quadratic,
        RecursivePathwise,
        RecursiveScore,
        Regression,
        Renewal,
        ReverseScore,
        SameSample,
        Scan,
        SelfNormalised,
        Truncated,
        WindowAverage,
        WindowIncrement,
        linear_gaussian_statistics,
        moments,
    )
    from backstream.families import (
        BackwardFamily,
        Conjugate,
        Guided,
        Innovation,
        Kalman,
        PerStep,
        Recurrent,
    )
    from backstream.gaussian import (
        Gaussian,
    )
    from backstream.io.api import (
        stream,
    )
    from backstream.io.config import (
        Columns,
        Saving,
    )
    from backstream.io.results import (
        Run,
    )
    from backstream.learning import (
        Averaging,
        Fit,
        Fleet,
        FleetSettings,
        Info,
        LearnerState,
        Monitor,
        OnlineLearner,
        Panel,
        PanelState,
        PerStepLearner,
        Report,
        Settings,
        WatchedLearner,
        default_learner,
        fit,
        fit_within_epochs,
    )
    from backstream.metrics import (
        calibration,
        coverage,
        one_step_rmse,
        particle_limit,
        rmse,
    )
    from backstream.models import (
        ChaoticRNN,
        Growth,
        LinearGaussian,
        StateSpaceModel,
        StochasticVolatility,
        Structural,
        structural,
    )
    from backstream.posterior import (
        Marginals,
        filter,
        forecast,
        one_step_smooth,
        sample_trajectories,
        smooth,
    )

_ROOMS = {
    "models": (
        "ChaoticRNN",
        "Growth",
        "LinearGaussian",
        "StateSpaceModel",
        "StochasticVolatility",
        "Structural",
        "structural",
    ),
    "families": (
        "BackwardFamily",
        "Conjugate",
        "Guided",
        "Innovation",
        "Kalman",
        "PerStep",
        "Recurrent",
    ),
    "estimators": (
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
    ),
    "learning": (
        "Averaging",
        "Fit",
        "Fleet",
        "FleetSettings",
        "Info",
        "LearnerState",
        "Monitor",
        "OnlineLearner",
        "Panel",
        "PanelState",
        "PerStepLearner",
        "Report",
        "Settings",
        "WatchedLearner",
        "default_learner",
        "fit",
        "fit_within_epochs",
    ),
    "posterior": (
        "Marginals",
        "filter",
        "forecast",
        "one_step_smooth",
        "sample_trajectories",
        "smooth",
    ),
    "metrics": (
        "calibration",
        "coverage",
        "one_step_rmse",
        "particle_limit",
        "rmse",
    ),
    "gaussian": ("Gaussian",),
    "io.api": ("stream",),
    "io.config": ("Columns", "Saving"),
    "io.results": ("Run",),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"backstream.{room}"), name)
    raise AttributeError(f"module 'backstream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *(name for names in _ROOMS.values() for name in names)]
