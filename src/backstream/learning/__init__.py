"""Learning: λ and θ move here, and only here."""

from backstream.settings import FleetSettings, Settings

from .averaging import Averaging
from .monitor import Monitor, Report
from .multistream.fleet import Fleet
from .multistream.panel import Panel, PanelState
from .offline import Fit, fit, fit_within_epochs
from .online import OnlineLearner
from .particle_reference import Reference
from .per_step import PerStepLearner
from .presets import build, default_learner
from .records import Info, LearnerState
from .starting_theta import ThetaGain
from .steps import Settling
from .theta import Evidence, Parameter, current_parameters, step_evidence
from .verdict import Reason, Verdict
from .watched_learner import WatchedLearner, WatchedState

__all__ = [
    "Averaging",
    "Evidence",
    "Fit",
    "Fleet",
    "FleetSettings",
    "Info",
    "LearnerState",
    "Monitor",
    "OnlineLearner",
    "Panel",
    "PanelState",
    "Parameter",
    "PerStepLearner",
    "Reason",
    "Reference",
    "Report",
    "Settings",
    "Settling",
    "ThetaGain",
    "Verdict",
    "WatchedLearner",
    "WatchedState",
    "build",
    "current_parameters",
    "default_learner",
    "fit",
    "fit_within_epochs",
    "step_evidence",
]
