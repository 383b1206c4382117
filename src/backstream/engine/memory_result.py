"""A result that is in memory."""

from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from backstream.learning import Report, Verdict
from backstream.models import StateSpaceModel
from backstream.runs.config import Config
from backstream.runs.logs import Rejected
from backstream.runs.memory import MemoryRun
from backstream.runs.store import check_directory, write_run

from .advance import Warn, advance, continued
from .filtered_rows import FilteredRows
from .preparation import require_writable
from .result import Learned, Result
from .run import Run, restore


class MemoryResult(Result):
    """A result in memory. `save` writes it to a directory."""

    def __init__(self, model: StateSpaceModel, config: Config, kept: MemoryRun, given: tuple[tuple[Any, Any], ...]):
        self.config, self.warnings, self._name = config, [], "The result"
        self._start, self._kept, self._given = model, kept, given

    def learn(self, source: Any, inputs: Any = None, *, progress: bool = True, warn: Warn = print) -> "MemoryResult":
        """Learns from more rows and returns a new result. This result does not change."""
        kept = self._kept.copy()
        advance(self._start, continued(self.config, source, inputs), self.config, kept, progress, warn, "rest")
        return MemoryResult(self._start, self.config, kept, (*self._given, (source, inputs)))

    def save(self, path: str | Path) -> Run:
        """Writes a run directory, for `bs.load`."""
        require_writable(self.config)
        check_directory(Path(path), resume=False)
        assert self._kept.checkpoint is not None
        write_run(
            Path(path), self.config, self._table(), self._kept.reports, self._kept.rejected, self._kept.checkpoint
        )
        return Run(path, self._start, self._given)

    @property
    def filtered(self) -> FilteredRows:
        return FilteredRows(self._table())

    def _table(self) -> pa.Table:
        return pa.concat_tables(self._kept.tables).combine_chunks()

    @property
    def reports(self) -> list[Report]:
        return self._kept.reports

    @property
    def rejected(self) -> list[Rejected]:
        return self._kept.rejected

    @property
    def health(self) -> Verdict:
        assert self._kept.checkpoint is not None
        return Verdict.restored(self._kept.checkpoint.record["verdict"])

    def _position(self) -> int:
        assert self._kept.checkpoint is not None
        return self._kept.checkpoint.position

    @cached_property
    def learned(self) -> Learned:
        checkpoint = self._kept.checkpoint
        assert checkpoint is not None
        return restore(self._start, self.config, checkpoint)
