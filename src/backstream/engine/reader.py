"""What the driver needs to know of a stream, or of many: how rows are grouped, learned from, saved and restored."""

from abc import ABC, abstractmethod
from typing import Any

from backstream.data.rows import Batch
from backstream.learning import Verdict

from .results import Progress


class Reader(ABC):
    """Learns from the rows of one source. The driver calls `restore` first, if the run is continued; then `arrive` and
    `read` as rows come."""

    most_rows: int
    """In a piece, at most: between two of them the driver can stop."""

    @abstractmethod
    def blank(self, record: dict[str, Any]) -> Any:
        """The structure and the shapes of `tree` when it had that record: what a checkpoint is read into."""

    @abstractmethod
    def restore(self, tree: Any, record: dict[str, Any]) -> None:
        """Goes back to where `tree` and `record` were taken."""

    @abstractmethod
    def arrive(self, batch: Batch) -> None:
        """Rows have come. They will be read later, in this order."""

    @abstractmethod
    def ready(self, waiting: int, ended: bool) -> int:
        """How many of the rows that have come and are not read yet can be read now; all, if their file has ended."""

    @abstractmethod
    def read(self, batch: Batch) -> Progress:
        """Learns from the next rows. Where this raises, the reader is of no use any more."""

    @abstractmethod
    def verdict(self, ended: bool = False) -> Verdict | None:
        """Whether what has been learned so far can be used. None before any row has been read. `ended` says that no
        more rows are to come for now, and that the latest ones are looked at once more."""

    @abstractmethod
    def tree(self) -> Any:
        """All arrays that the state consists of."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What else it consists of, as plain JSON."""
