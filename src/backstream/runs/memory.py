"""A run that is kept in memory: what a run directory would hold, for as long as the process lives."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import pyarrow as pa

from backstream.learning import Report

from .checkpoints import Checkpoint
from .logs import Rejected


class MemoryRun:
    """Takes what a `RunWriter` takes. The newest state is kept, with all results."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.reports: list[Report] = []
        self.rejected: list[Rejected] = []
        self.checkpoint: Checkpoint | None = None

    def resume(
        self, like: Callable[[dict[str, Any]], Any], warn: Callable[[str], None], may_go_back: bool = True
    ) -> Checkpoint | None:
        """The newest state, as a copy: a learner uses up what it is given."""
        if self.checkpoint is None:
            return None
        like(self.checkpoint.record)
        copied = jax.tree.map(lambda leaf: leaf.copy() if eqx.is_array(leaf) else leaf, self.checkpoint.tree)
        return self.checkpoint._replace(tree=copied)

    def copy(self) -> "MemoryRun":
        """For a learner to go on with, while this one stays as it is."""
        other = MemoryRun()
        other.tables, other.reports, other.checkpoint = list(self.tables), list(self.reports), self.checkpoint
        other.rejected = list(self.rejected)
        return other

    def add(self, rows: pa.Table, reports: list[Report], rejected: Sequence[Rejected] = ()) -> None:
        self.tables.append(rows)
        self.reports += reports
        self.rejected += rejected

    def commit(self, position: int, tree: Any, record: dict[str, Any]) -> None:
        self.checkpoint = Checkpoint(position, tree, record)

    def close(self) -> None:
        """There is nothing to close."""
