"""Which columns of a source are what."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """Which columns of the source are what. Empty `observed` stands for all numeric ones that are nothing else."""

    observed: tuple[str, ...] = ()
    time: str | None = None
    """Kept beside the results."""
    inputs: tuple[str, ...] = ()
    """Known inputs u of the model."""
    elapsed: bool = False
    """Whether the time since the last observation is a further input, the last one."""
    key: str | None = None
    """Names the stream of each row, where there are many."""

    def __post_init__(self):
        if self.elapsed and self.time is None:
            raise ValueError("elapsed needs the name of the time column: set time too.")
        named = [*self.observed, *self.inputs, *(name for name in (self.time, self.key) if name is not None)]
        twice = [name for name, count in Counter(named).items() if count > 1]
        if twice:
            raise ValueError(f"The column {min(twice)!r} is named twice.")

    def has_inputs(self) -> bool:
        return bool(self.inputs) or self.elapsed
