"""Structural time-series models: one observed column as a sum of components, each a few hidden states."""

from backstream.models.structural.builder import structural
from backstream.models.structural.components import Component
from backstream.models.structural.model import Structural

__all__ = ["Component", "Structural", "structural"]
