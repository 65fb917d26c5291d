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
from agentspec.errors import CorpusError, LostBatchesError

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
            self._log.refresh_key(tenant)
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

        Every batch is encrypted with a new key. One that can't be read may hold what is erased, so it is
        removed as well. The tombstone reaches the engines that could read it.

        Raises:
            CorpusError: the store can't be used, or others write for too long. Part may be erased: repeat it.
            LostBatchesError: all is erased, but batches that can't be read were removed with it.
        """
        fence = self._await_lease(tenant, timeout_s)
        with self._releasing(tenant):
            epoch = self._log.epoch(tenant)
            self._log.change_key(tenant)
            if self._log.publish(tenant, batch, epoch, is_erasure=True) is None:
                return  # all was erased meanwhile
            content, cursor = self._last_snapshot(tenant)
            cursor = self._merge_log(tenant, content, cursor, until=batch)
            erasure = content.erase_by(batch, digests)
            fence = self._renewed(tenant, fence)
            num_lost = self._rewrite(tenant, batch, erasure, content, fence)
            cursor = self._merge_log(tenant, content, cursor)
            fence = self._renewed(tenant, fence)
            if not self._put(tenant, fence, cursor, content):
                raise CorpusError(f"tenant {tenant!r} was changed while it was erased from: repeat it")
            self._log.store.drop_previous(self._log.scope(tenant))
            self._log.drop_former_keys(tenant)
        if num_lost:
            raise LostBatchesError(
                f"{num_lost} batches of tenant {tenant!r} could not be read, and were removed with what was "
                "erased, since they might hold it. To repeat the erasure finds nothing more to remove"
            )

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

    def _renewed(self, tenant: str, fence: int) -> int:
        """Renew the lease, and return its fence. Raises CorpusError if others were there meanwhile."""
        renewed = self._lease(tenant, LEASE_S)
        if renewed != fence + 1:
            raise CorpusError(f"tenant {tenant!r} was changed while it was erased from: repeat it")
        return renewed

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

    def _rewrite(
        self, tenant: str, tombstone: Batch, erasure: Erasure, content: SnapshotContent, fence: int
    ) -> int:
        """Put placeholders for all that is covered in the log before the tombstone.

        Returns:
            The number of batches removed since they can't be read.
        """
        for logged in self._before(tenant, tombstone):
            for record in logged.batch.records if logged.batch else ():
                erasure.covers(record)  # notes the digests, for counts
        lost: list[Cursor] = []
        rewritten = self._rewritten(tenant, tombstone, erasure, lost)
        self._log.store.rewrite(self._log.scope(tenant), rewritten, fence)
        return len(lost)

    def _rewritten(
        self, tenant: str, tombstone: Batch, erasure: Erasure, lost: list[Cursor]
    ) -> Iterator[tuple[Cursor, bytes | None]]:
        """Yield what takes the place of entries: of all up to the tombstone if they are encrypted."""
        for logged in self._before(tenant, tombstone):
            if logged.batch is None:
                if logged.is_lost:
                    lost.append(logged.cursor)
                yield logged.cursor, None
                continue
            remaining = erased(logged.batch, erasure)
            if remaining is not None or self._log.is_encrypted:
                yield logged.cursor, self._log.encode(tenant, remaining or logged.batch)

    def _before(self, tenant: str, tombstone: Batch) -> Iterator[LoggedBatch]:
        for logged in self._entries(tenant, START):
            if _is_same(logged.batch, tombstone):
                return
            yield logged


def _is_same(batch: Batch | None, other: Batch) -> bool:
    return batch is not None and (batch.origin, batch.first) == (other.origin, other.first)
