"""Backstream: online variational smoothing for state-space models.

Names are imported when they are first used, so that the command line's help does not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from backstream._version import __version__

if TYPE_CHECKING:
    from backstream.data.columns import (
        Columns,
    )
    from backstream.engine.learn import (
        learn,
        load,
    )
    from backstream.engine.result import (
        Result,
    )
    from backstream.engine.run import (
        Run,
    )
    from backstream.engine.tracker import (
        Tracker,
    )
    from backstream.errors import (
        InputError,
        RunError,
    )
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
        FreePotentials,
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
        OwnKernels,
        Quadratic,
        RatioScore,
        RecursivePathwise,
        RecursiveScore,
        Regression,
        Renewal,
        ReverseScore,
        SameSample,
        Scan,
        SelfNormalised,
        TrueDynamics,
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
        GuidedMixture,
        Kalman,
        PerStep,
        Recurrent,
        Tilted,
    )
    from backstream.gaussian import (
        Gaussian,
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
        Settling,
        WatchedLearner,
        default_learner,
        fit,
        fit_within_epochs,
    )
    from backstream.marginals import (
        Marginals,
        MixtureMarginals,
    )
    from backstream.metrics import (
        calibration,
        coverage,
        one_step_rmse,
        particle_limit,
        rmse,
    )
    from backstream.mixture import (
        Mixture,
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
        filter,
        forecast,
        one_step_smooth,
        sample_trajectories,
        smooth,
    )
    from backstream.runs.config import (
        Saving,
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
        "GuidedMixture",
        "Kalman",
        "PerStep",
        "Recurrent",
        "Tilted",
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
        "SelfNormalised",
        "TrueDynamics",
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
        "Settling",
        "WatchedLearner",
        "default_learner",
        "fit",
        "fit_within_epochs",
    ),
    "posterior": (
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
    "marginals": (
        "Marginals",
        "MixtureMarginals",
    ),
    "mixture": ("Mixture",),
    "gaussian": ("Gaussian",),
    "errors": ("InputError", "RunError"),
    "engine.learn": ("learn", "load"),
    "engine.tracker": ("Tracker",),
    "engine.result": ("Result",),
    "data.columns": ("Columns",),
    "runs.config": ("Saving",),
    "engine.run": ("Run",),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"backstream.{room}"), name)
    raise AttributeError(f"module 'backstream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *(name for names in _ROOMS.values() for name in names)]
