"""The default family, which reads the model at every row."""

from .family import Guided, GuidedState

__all__ = ["Guided", "GuidedState"]
