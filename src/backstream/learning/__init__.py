"""Learning: λ and θ move here, and only here."""

from .averaging import Averaging
from .defaults import default_learner
from .monitor import Monitor, Report
from .offline import Fit, fit, fit_within_epochs
from .online import Info, LearnerState, OnlineLearner
from .per_step import PerStepLearner

__all__ = [
    "Averaging",
    "Fit",
    "Info",
    "LearnerState",
    "Monitor",
    "OnlineLearner",
    "PerStepLearner",
    "Report",
    "default_learner",
    "fit",
    "fit_within_epochs",
]
