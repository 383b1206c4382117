"""The stateful processor: Spark keeps one block of bytes for each bucket, and calls this with the bucket's rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # pyright: ignore[reportMissingImports]

from .tables import gathered, results_of, rows_of
from .worker import Job

STATE = "panel"


class BucketProcessor(StatefulProcessor):
    """Own λ, or one that is held. JAX is imported when the first rows come: `init` runs on the driver too."""

    def __init__(self, job: Job, kept: Sequence[str]):
        self.job, self.kept = job, list(kept)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState(STATE, "content binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        table = gathered(rows)
        now = timerValues.getCurrentProcessingTimeInMs() if self.job.forget_after else 0
        given = rows_of(table, self.job.observed, self.job.inputs)
        content, told = self.job.bucket().advance(self._content(), given, now, self.job.forget_after)
        self._keep(content)
        if self.job.forget_after:
            self._wake(now + self.job.forget_after + 1)
        yield results_of(table, self.kept, given, told)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Streams that have been silent for too long end, though no row of their bucket comes."""
        now, bucket = timerValues.getCurrentProcessingTimeInMs(), self.job.bucket()
        members, _ = bucket.open(self._content())
        members = members.kept(now - members.seen <= self.job.forget_after)
        self._keep(bucket.close(members))
        if members.names:
            self._wake(int(members.seen.min()) + self.job.forget_after + 1)
        yield from ()

    def close(self) -> None:
        pass

    def _content(self) -> bytes | None:
        found = self._state.get()
        return None if found is None else bytes(found[0])

    def _keep(self, content: bytes | None) -> None:
        if content is not None:
            self._state.update((content,))
        elif self._state.exists():
            self._state.clear()

    def _wake(self, at: int) -> None:
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(at)
