"""The default family, which reads the model at every row."""

from .family import Guided, GuidedState
from .mixture import GuidedMixture, MixtureState
from .places import Place

__all__ = ["Guided", "GuidedMixture", "GuidedState", "MixtureState", "Place"]
