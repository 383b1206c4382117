"""The roles of the columns of a source."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a file or a table.

    Example:
        ```python
        bs.Columns(observed=("x", "y"), time="at", elapsed=True)
        ```
    """

    observed: tuple[str, ...] = ()
    """The observed columns. Default: all numeric columns that have no other role."""
    time: str | None = None
    """The time column. It is copied to the results."""
    inputs: tuple[str, ...] = ()
    """The known inputs u of the model."""
    elapsed: bool = False
    """Add the time since the previous row as the last input. Needs `time`."""
    key: str | None = None
    """The column with the name of the stream, if there are many streams."""

    def __post_init__(self):
        if self.elapsed and self.time is None:
            raise ValueError("elapsed needs the name of the time column: set time too.")
        named = [*self.observed, *self.inputs, *(name for name in (self.time, self.key) if name is not None)]
        twice = [name for name, count in Counter(named).items() if count > 1]
        if twice:
            raise ValueError(f"The column {min(twice)!r} is named twice.")

    def has_inputs(self) -> bool:
        return bool(self.inputs) or self.elapsed
