"""Snapshots: who holds the lease merges the last one and the log, and erases from both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from agentspec.corpus.batch import Batch
from agentspec.corpus.batch_log import BatchLog, LoggedBatch
from agentspec.corpus.erasure import Erasure
from agentspec.corpus.outbox import erased
from agentspec.corpus.snapshot_content import SnapshotContent
from agentspec.corpus.store import START, Cursor
from agentspec.errors import CorpusError

SNAPSHOT_BYTES = 64 << 20
MOST_AGE_S = 7 * 86400.0
LEASE_S = 60.0
_READ_BYTES = 1 << 20
_RETRY_S = 0.5


class SnapshotWriter:
    """Writes snapshots, which need no trees. Not thread-safe: one writer per thread, each with its holder.

    Args:
        log: what to merge.
        holder: names the writer in the store.
        most_bytes: of tokens in a snapshot.
        most_age_s: older outputs are left out.
        pause: called after each batch, to limit the CPU time.
        clock: seconds since 1970.
        wait: sleeps while another writer holds the lease.
    """

    def __init__(
        self,
        log: BatchLog,
        holder: str,
        *,
        most_bytes: int = SNAPSHOT_BYTES,
        most_age_s: float = MOST_AGE_S,
        pause: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._log = log
        self._holder = holder
        self._most_bytes = most_bytes
        self._most_age_s = most_age_s
        self._pause = pause
        self._clock = clock
        self._wait = wait

    def write(self, tenant: str) -> bool:
        """Write a snapshot. Return False if another writer does, or the tenant was erased meanwhile.

        Raises:
            CorpusError: the store can't be used.
        """
        fence = self._lease(tenant, LEASE_S)
        if fence is None:
            return False
        with self._releasing(tenant):
            content, cursor = self._last_snapshot(tenant)
            cursor = self._merge_log(tenant, content, cursor)
            return self._put(tenant, fence, cursor, content)

    def erase(
        self, tenant: str, batch: Batch, digests: Iterable[bytes] = (), timeout_s: float = LEASE_S
    ) -> None:
        """Publish a tombstone for the trees of all engines, and remove what it covers from log and snapshot.

        The new snapshot keeps the tombstone for engines that did not read it in the log.

        Args:
            tenant: owner of the outputs.
            batch: the tombstone as its only record.
            digests: of outputs covered that the store may not hold any more. Their counts are removed.
            timeout_s: how long to wait for another writer.

        Raises:
            CorpusError: the store can't be used, or others write for too long. Part may be erased: repeat it.
        """
        fence = self._await_lease(tenant, timeout_s)
        scope = self._log.scope(tenant)
        with self._releasing(tenant):
            epoch = self._log.epoch(tenant)
            if not self._log.store.publish(scope, self._log.encode(tenant, batch), epoch):
                return  # all was erased meanwhile
            content, cursor = self._last_snapshot(tenant)
            cursor = self._merge_log(tenant, content, cursor, until=batch)
            erasure = content.erase_by(batch, digests)
            self._rewrite(tenant, batch, erasure, content)
            cursor = self._merge_log(tenant, content, cursor)
            if not self._put(tenant, fence, cursor, content):
                raise CorpusError(f"tenant {tenant!r} was changed while it was erased from: repeat it")
            self._log.store.rewrite(scope, ())  # removes the replaced snapshot

    # ---- the lease ----

    def _lease(self, tenant: str, ttl_s: float) -> int | None:
        return self._log.store.lease(self._log.scope(tenant), self._holder, ttl_s)

    @contextlib.contextmanager
    def _releasing(self, tenant: str) -> Iterator[None]:
        """End the lease with the block, so that other writers need not wait for it to run out."""
        try:
            yield
        finally:
            with contextlib.suppress(CorpusError):
                self._lease(tenant, 0.0)

    def _await_lease(self, tenant: str, timeout_s: float) -> int:
        deadline_s = self._clock() + timeout_s
        while (fence := self._lease(tenant, LEASE_S)) is None:
            if self._clock() >= deadline_s:
                raise CorpusError(
                    f"another process has been writing the snapshot of tenant {tenant!r} for {timeout_s} s: "
                    "repeat it"
                )
            self._wait(_RETRY_S)
        return fence

    # ---- merging ----

    def _last_snapshot(self, tenant: str) -> tuple[SnapshotContent, Cursor]:
        """Return the content of the last snapshot, and where the log continues."""
        now_minute = int(self._clock() // 60)
        content = SnapshotContent(self._most_bytes, now_minute, int(self._most_age_s // 60))
        snapshot = self._log.snapshot(tenant)
        for batch in snapshot.batches if snapshot else ():
            if batch is not None:
                content.add(batch, is_snapshot=True)
            self._pause()
        return content, snapshot.cursor if snapshot else START

    def _merge_log(
        self, tenant: str, content: SnapshotContent, cursor: Cursor, until: Batch | None = None
    ) -> Cursor:
        """Merge the log up to a batch, or up to its present end. Return the cursor behind what was merged."""
        end = self._log.end(tenant)
        for logged in self._entries(tenant, cursor):
            if until is not None and _is_same(logged.batch, until):
                break
            if logged.batch is not None:
                content.add(logged.batch)
            cursor = logged.cursor
            if cursor == end:  # what comes later is for the next snapshot
                break
        return cursor

    def _entries(self, tenant: str, cursor: Cursor) -> Iterator[LoggedBatch]:
        has_more = True
        while has_more:
            has_more = False
            for logged in self._log.read(tenant, cursor, _READ_BYTES):
                has_more, cursor = True, logged.cursor
                yield logged
                self._pause()

    def _put(self, tenant: str, fence: int, cursor: Cursor, content: SnapshotContent) -> bool:
        parts = (self._log.encode(tenant, batch) for batch in content.batches())
        return self._log.store.put_snapshot(self._log.scope(tenant), fence, cursor, parts)

    # ---- rewriting ----

    def _rewrite(self, tenant: str, tombstone: Batch, erasure: Erasure, content: SnapshotContent) -> None:
        """Put placeholders for all that is covered in the log before the tombstone.

        What is rewritten stands behind the tombstone then: the content must not merge it again.
        """
        for _, batch in self._before(tenant, tombstone):
            content.note(batch)
            for record in batch.records:
                erasure.covers(record)  # notes the digests, for counts
        replaced = (
            (cursor, self._log.encode(tenant, remaining))
            for cursor, batch in self._before(tenant, tombstone)
            if (remaining := erased(batch, erasure)) is not None
        )
        self._log.store.rewrite(self._log.scope(tenant), replaced)

    def _before(self, tenant: str, tombstone: Batch) -> Iterator[tuple[Cursor, Batch]]:
        for logged in self._entries(tenant, START):
            if _is_same(logged.batch, tombstone):
                return
            if logged.batch is not None:
                yield logged.cursor, logged.batch


def _is_same(batch: Batch | None, other: Batch) -> bool:
    return batch is not None and (batch.origin, batch.first) == (other.origin, other.first)
