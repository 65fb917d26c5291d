"""Snapshots: the holder of the lease merges the last snapshot with the log, and erases from both."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Output, Tombstone, is_covered, split
from agentspec.corpus.batch_log import BatchLog, LoggedBatch, SeenNumbers
from agentspec.corpus.store import START, Cursor
from agentspec.errors import CorpusError, LostBatchesError
from agentspec.forest.file import MOST_USES

SNAPSHOT_BYTES = 64 << 20
MOST_AGE_S = 7 * 86400.0
LEASE_S = 60.0
_READ_BYTES = 1 << 20
_RETRY_S = 0.5
_MOST_TOMBSTONES = 256
_MINUTES_PER_DAY = 1440
_SESSION_MINUTES = 15  # the trees, too, drop a session after so long without a request
_ORIGIN = bytes(ORIGIN_BYTES)  # the outputs of a snapshot have no sequence numbers


class SnapshotContent:
    """A tenant's outputs and erasures. Equal outputs of the same person are merged.

    Batches are added in the order of the log. Holds at most about twice ``most_bytes`` of tokens.

    Args:
        most_bytes: limit of the bytes of tokens in the snapshot.
        now_minute: the present time, in minutes since 1970.
        most_age_minutes: older outputs are left out.
    """

    def __init__(self, most_bytes: float, now_minute: int, most_age_minutes: float) -> None:
        self._most_bytes = most_bytes
        self._now_minute = now_minute
        self._oldest_minute = now_minute - most_age_minutes
        self._outputs: dict[tuple[bytes, bytes], Output] = {}  # by digest and subject
        self._num_bytes = 0
        self._seen: dict[bytes, SeenNumbers] = {}
        self._tombstones: OrderedDict[tuple[bytes, int], Batch] = OrderedDict()

    def __iter__(self) -> Iterator[Output]:
        return iter(self._outputs.values())

    @property
    def num_tombstones(self) -> int:
        """Count the erasures of stages and persons."""
        return len(self._tombstones)

    def add(self, batch: Batch, *, is_snapshot: bool = False, is_merged: bool = False) -> None:
        """Apply the records of a batch that were not applied before.

        Args:
            batch: a batch of the last snapshot, or of the log.
            is_snapshot: True if the batch is from the snapshot.
            is_merged: True if the batch is from the log, and the snapshot has counted its outputs, of which
                it may have dropped some.
        """
        if is_snapshot:
            numbers = [range(batch.first, batch.first + len(batch.records))]
        else:
            numbers = self._seen.setdefault(batch.origin, SeenNumbers()).add(batch.first, len(batch.records))
        for number in (number for fresh in numbers for number in fresh):
            record = batch.records[number - batch.first]
            if isinstance(record, Output):
                self._add(record, is_counted=is_merged)
            elif isinstance(record, Tombstone):
                self._remember(Batch(batch.origin, number, (record,)))
                if not is_snapshot:
                    self._erase(record)

    def erase_by(self, batch: Batch) -> Tombstone:
        """Apply a batch that holds only a tombstone. Return the tombstone."""
        (tombstone,) = batch.records
        assert isinstance(tombstone, Tombstone)
        self._remember(batch)
        self._erase(tombstone)
        return tombstone

    def batches(self) -> Iterator[Batch]:
        """Yield the snapshot's batches: one per erasure, then outputs, the most used and newest first.

        Outputs of sessions that may continue are last, in their order.
        """
        yield from self._tombstones.values()
        self._trim()
        ranked = sorted(self, key=self._worth, reverse=True)
        ended = [replace(output, session=b"") for output in ranked if not self._goes_on(output)]
        going_on = sorted(filter(self._goes_on, self), key=lambda output: output.minute)
        for records in split([*ended, *going_on]):
            yield Batch(_ORIGIN, 0, records)

    def _erase(self, tombstone: Tombstone) -> None:
        for name in [name for name, output in self._outputs.items() if is_covered(output, tombstone)]:
            self._drop(name)

    def _add(self, output: Output, *, is_counted: bool) -> None:
        if output.minute < self._oldest_minute:
            return
        name = (output.digest, output.subject)
        before = self._outputs.get(name)
        if before is None:
            self._num_bytes += output.tokens.nbytes
        elif is_counted:
            return
        else:
            uses, minute = min(before.uses + output.uses, MOST_USES), max(before.minute, output.minute)
            output = replace(output, uses=uses, minute=minute)
        self._outputs[name] = output
        if self._num_bytes > 2 * self._most_bytes:
            self._trim()

    def _remember(self, batch: Batch) -> None:
        self._tombstones[batch.origin, batch.first] = batch
        while len(self._tombstones) > _MOST_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _trim(self) -> None:
        """Drop the lowest-ranked outputs beyond the limit of bytes."""
        if self._num_bytes <= self._most_bytes:
            return
        for name, _ in sorted(self._outputs.items(), key=lambda item: self._worth(item[1])):
            if self._num_bytes <= self._most_bytes:
                return
            self._drop(name)

    def _drop(self, name: tuple[bytes, bytes]) -> None:
        self._num_bytes -= self._outputs.pop(name).tokens.nbytes

    def _goes_on(self, output: Output) -> bool:
        """Return True if the output's session may continue."""
        return bool(output.session) and output.minute >= self._now_minute - _SESSION_MINUTES

    def _worth(self, output: Output) -> float:
        """Rank an output: each day of age counts like a halving of its uses."""
        return math.log2(output.uses) - (self._now_minute - output.minute) / _MINUTES_PER_DAY


class SnapshotWriter:
    """Writes snapshots without trees. Not thread-safe: each thread has its own writer with its own holder.

    Args:
        log: the logs to merge.
        holder: identifies the writer in the store's leases.
        most_bytes: limit of the bytes of tokens in a snapshot.
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
        """Write a snapshot. Return False if another writer holds the lease, or the tenant was erased.

        Raises:
            CorpusError: the store failed.
        """
        fence = self._lease(tenant, LEASE_S)
        if fence is None:
            return False
        with self._releasing(tenant):
            if self._log.keys is not None:
                self._log.keys.refresh(self._log.scope(tenant))
            content, cursor = self._last_snapshot(tenant)
            cursor = self._merge_log(tenant, content, cursor)
            return self._put(tenant, fence, cursor, content)

    def erase(self, tenant: str, batch: Batch, timeout_s: float = LEASE_S) -> None:
        """Publish a tombstone for the trees of all engines, and remove what it covers from log and snapshot.

        The new snapshot keeps the tombstone for engines that did not read it in the log. Every batch is
        encrypted with a new key. A batch that can't be read is removed as well, since it may hold erased
        outputs. Engines that can read it still learn the tombstone.

        Args:
            tenant: owner of the outputs.
            batch: a batch that holds only the tombstone.
            timeout_s: longest wait for another writer.

        Raises:
            CorpusError: the store failed, or another writer held the lease for too long. Some outputs may be
                erased already: call again.
            LostBatchesError: the erasure is complete, but also removed batches that can't be read.
        """
        fence = self._await_lease(tenant, timeout_s)
        scope, keys = self._log.scope(tenant), self._log.keys
        with self._releasing(tenant):
            epoch = self._log.marks(tenant).epoch
            if keys is not None:
                keys.change(scope)
            if self._log.publish(tenant, batch, epoch, is_erasure=True) is None:
                return  # another process has erased the tenant meanwhile
            content, cursor = self._last_snapshot(tenant)
            cursor = self._merge_log(tenant, content, cursor, until=batch)
            tombstone = content.erase_by(batch)
            fence = self._renewed(tenant, fence)
            lost: list[Cursor] = []
            self._log.store.rewrite(scope, self._rewritten(tenant, batch, tombstone, lost), fence)
            cursor = self._merge_log(tenant, content, cursor)
            fence = self._renewed(tenant, fence)
            if not self._put(tenant, fence, cursor, content):
                raise CorpusError(f"tenant {tenant!r} was changed while it was erased from: repeat it")
            self._log.store.drop_previous(scope)
            if keys is not None:
                keys.drop_former(scope)
        if lost:
            raise LostBatchesError(
                f"{len(lost)} batches of tenant {tenant!r} could not be read, and were removed with what was "
                "erased, since they might hold it. To repeat the erasure finds nothing more to remove"
            )

    def _put(self, tenant: str, fence: int, cursor: Cursor, content: SnapshotContent) -> bool:
        parts = (self._log.encode(tenant, batch) for batch in content.batches())
        return self._log.store.put_snapshot(self._log.scope(tenant), fence, cursor, parts)

    # ---- the lease ----

    def _lease(self, tenant: str, ttl_s: float) -> int | None:
        return self._log.store.lease(self._log.scope(tenant), self._holder, ttl_s)

    @contextlib.contextmanager
    def _releasing(self, tenant: str) -> Iterator[None]:
        """Release the lease at the end of the block, so that other writers need not wait until it expires."""
        try:
            yield
        finally:
            with contextlib.suppress(CorpusError):
                self._lease(tenant, 0.0)

    def _renewed(self, tenant: str, fence: int) -> int:
        """Renew the lease, and return its fence. Raises CorpusError if another holder had it meanwhile."""
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
        """Return the content of the last snapshot, and the cursor at which the log continues."""
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
        """Merge the log up to a batch, or to its present end. Return the cursor behind the last entry."""
        end = self._log.end(tenant)
        for logged in self._entries(tenant, cursor):
            if until is not None and _is_same(logged.batch, until):
                break
            if logged.batch is not None:
                content.add(logged.batch)
            cursor = logged.cursor
            if cursor == end:  # later entries are for the next snapshot
                break
        return cursor

    def _entries(self, tenant: str, cursor: Cursor) -> Iterator[LoggedBatch]:
        for logged in entries(self._log, tenant, cursor):
            yield logged
            self._pause()

    # ---- rewriting ----

    def _rewritten(
        self, tenant: str, batch: Batch, tombstone: Tombstone, lost: list[Cursor]
    ) -> Iterator[tuple[Cursor, bytes | None]]:
        """Yield the entries that change, up to the tombstone; with encryption, all entries up to it.

        Adds the cursors of batches that are removed because they can't be read to ``lost``.
        """
        for logged in self._entries(tenant, START):
            if _is_same(logged.batch, batch):
                return
            if logged.batch is None:
                if logged.is_lost:
                    lost.append(logged.cursor)
                yield logged.cursor, None
                continue
            remaining = logged.batch.without(tombstone)
            if remaining is not logged.batch or self._log.keys is not None:
                yield logged.cursor, self._log.encode(tenant, remaining)


def entries(log: BatchLog, tenant: str, cursor: Cursor = START) -> Iterator[LoggedBatch]:
    """Yield the entries of a log after a cursor, up to its end."""
    has_more = True
    while has_more:
        has_more = False
        for logged in log.read(tenant, cursor, _READ_BYTES):
            has_more, cursor = True, logged.cursor
            yield logged


def _is_same(batch: Batch | None, other: Batch) -> bool:
    return batch is not None and (batch.origin, batch.first) == (other.origin, other.first)
