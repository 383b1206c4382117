"""The state of a panel: what each stream has of its own, and what all streams have in common."""

import math
from typing import NamedTuple

import jax

from backstream.learning.records import LearnerState

COMMON = ("q", "average", "theta", "theta_average", "optimizer", "model_optimizer")
"""What of a learner's state streams can have in common."""


class PanelState(NamedTuple):
    """Everything: one pytree, one checkpoint. The leaves of `slots` have the leading axes [shard, slot of it]."""

    slots: LearnerState
    """With keys as raw data; what is common is None."""
    common: LearnerState | None
    """λ, θ, their optimizers and means, where they are common: `t` counts the ticks that moved them, `refused` those
    that were refused."""

    @property
    def capacity(self) -> int:
        return math.prod(self.slots.t.shape)


def whole(slot: LearnerState, common: LearnerState | None) -> LearnerState:
    """A slot with what it has in common with others, as the state of a learner."""
    slot = slot._replace(key=jax.random.wrap_key_data(slot.key))
    return slot if common is None else slot._replace(**{name: getattr(common, name) for name in COMMON})
