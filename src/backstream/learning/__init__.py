"""Learning: λ and θ move here, and only here."""

from .averaging import Averaging
from .defaults import Settings, build, default_learner
from .fleet import Fleet, FleetSettings
from .monitor import Monitor, Report
from .offline import Fit, fit, fit_within_epochs
from .online import Info, LearnerState, OnlineLearner
from .panel import Panel, PanelState
from .per_step import PerStepLearner
from .watched import WatchedLearner, WatchedState

__all__ = [
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
    "WatchedState",
    "build",
    "default_learner",
    "fit",
    "fit_within_epochs",
]
