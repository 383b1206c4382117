"""The stateful processor: Spark keeps one block of bytes for each bucket, and calls this with the bucket's rows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark import TaskContext  # pyright: ignore[reportMissingImports]
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # pyright: ignore[reportMissingImports]

from .tables import BUCKET, PACKED, SUMS, as_pandas, in_order, results_of, rows_of, unpacked
from .worker import Job, spare_the_collector

if TYPE_CHECKING:
    from .bucket import Advanced, Bucket

STATE = "panel"
BATCH = "streaming.sql.batchId"
"""Spark's name for the number of the micro-batch that a task belongs to."""


class BucketProcessor(StatefulProcessor):
    """Own λ, or one that is held. JAX is imported when the first rows come: `init` runs on the driver too."""

    def __init__(self, job: Job, kept: Sequence[str]):
        self.job, self.kept = job, list(kept)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState(STATE, "content binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        table = in_order(unpacked(block for part in rows for block in part[PACKED]))
        now = timerValues.getCurrentProcessingTimeInMs() if self.job.forget_after else 0
        given = rows_of(table, self.job.observed, self.job.inputs)
        bucket = self.job.bucket()
        advanced = bucket.advance(self._content(), given, now, self.job.forget_after, self._common(bucket))
        spare_the_collector()
        self._keep(advanced.content)
        if self.job.forget_after:
            self._wake(now + self.job.forget_after + 1)
        yield self._results(key, as_pandas(results_of(table, self.kept, given, advanced.told)), advanced)

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

    def _common(self, bucket: "Bucket") -> Any:
        """The λ of this micro-batch, where it is not the one that the job began with."""
        return None

    def _results(self, key: Any, results: pd.DataFrame, advanced: "Advanced") -> pd.DataFrame:
        return results

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


class CommonProcessor(BucketProcessor):
    """One λ for all: that of the micro-batch is read from a directory that all machines see, and the sums of its
    gradients go back with the results, in one more row for each bucket."""

    def __init__(self, job: Job, kept: Sequence[str], directory: str):
        super().__init__(job, kept)
        self.directory = directory

    def _common(self, bucket: "Bucket") -> Any:
        from .common import load

        return load(self.directory, int(TaskContext.get().getLocalProperty(BATCH)), bucket.common)

    def _results(self, key: Any, results: pd.DataFrame, advanced: "Advanced") -> pd.DataFrame:
        from .common import packed_sums

        sums = pd.DataFrame({BUCKET: [int(key[0])], SUMS: [packed_sums(advanced.sums)]})
        return pd.concat([results, sums], ignore_index=True).reindex(columns=[*results.columns, BUCKET, SUMS])
