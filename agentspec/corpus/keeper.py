"""The keeper: writes the snapshots at intervals, and publishes erasures again where that is needed."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from agentspec.corpus.batch import Tombstone, repeated
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.publisher import Publisher
from agentspec.corpus.snapshots import MOST_AGE_S, SNAPSHOT_BYTES, SnapshotWriter
from agentspec.corpus.store import START, Cursor
from agentspec.corpus.threads import CpuShare, Worker
from agentspec.errors import CorpusError

logger = logging.getLogger("agentspec")

EVERY_S = 300.0
CPU_SHARE = 0.1
_PAUSE_S = 1.0
LISTINGS = 20  # listings of the tenants between two snapshots


class SnapshotKeeper:
    """Writes each tenant's snapshot about every ``every_s`` seconds, unless another process has done so.

    Args:
        log: the logs to merge.
        publisher: assigns sequence numbers to tombstones.
        holder: identifies this process in the store's leases.
        every_s: seconds between two snapshots of a tenant.
        most_bytes: limit of the bytes of tokens in a snapshot.
        most_age_s: a snapshot leaves out older outputs.
        cpu_share: share of one core.
        clock: monotonic seconds.
        spread: returns a random factor of ``every_s``, so that processes write at different times.
    """

    def __init__(
        self,
        log: BatchLog,
        publisher: Publisher,
        holder: str,
        *,
        every_s: float = EVERY_S,
        most_bytes: int = SNAPSHOT_BYTES,
        most_age_s: float = MOST_AGE_S,
        cpu_share: float = CPU_SHARE,
        clock: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = lambda: random.uniform(0.7, 1.3),
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._every_s = every_s
        self._clock = clock
        self._spread = spread
        self._worker = Worker(
            "snapshots", self._wait_and_step, begin=lambda: self._share.begin(), end=self._finish
        )
        self._share = CpuShare(cpu_share, self._worker.closing.wait, clock)
        writer = partial(SnapshotWriter, log, most_bytes=most_bytes, most_age_s=most_age_s)
        self._writer = writer(f"{holder}:snapshots", pause=self._share.pause)
        self._eraser = writer(f"{holder}:erasures")
        self._erasing = threading.Lock()
        self._repeated: dict[tuple[str, Tombstone], None] = {}  # an ordered set
        self._restored: dict[str, int] = {}  # by tenant: erasure numbers that the store has lost
        self._due: dict[str, tuple[float, Cursor | None]] = {}  # time, and the present snapshot
        self._listing_s = -math.inf  # time at which to list the tenants again
        self.num_written = 0
        self.num_failures = 0

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Publish the erasures that wait, within the time-out, and end the thread."""
        if not self._worker.is_alive:
            self._finish()
        self._worker.close(timeout_s)

    def erase(self, tenant: str, tombstone: Tombstone) -> None:
        """Erase now. Raises CorpusError if the store fails; part may be erased, so call again."""
        with self._erasing:
            self._publisher.withdraw(tenant, tombstone)
            self._eraser.erase(tenant, self._publisher.numbered(tenant, tombstone))

    def repeat(self, tenant: str, tombstones: Iterable[Tombstone], erasure: int) -> None:
        """Schedule erasures for the next step.

        Args:
            tenant: owner of the outputs.
            tombstones: erasures that the store has lost, or that older records follow in the log.
            erasure: number of the last erasure, to be written back to the store; 0 if it is there.
        """
        for tombstone in tombstones:
            self._repeated[tenant, repeated(tombstone)] = None
        if erasure:
            self._restored[tenant] = erasure

    def step(self) -> None:
        """Publish the scheduled erasures, and write the snapshots that are due."""
        try:
            self._repeat_erasures()
            if self._clock() < self._listing_s:
                return
            tenants = self._log.tenants()
            self._listing_s = self._clock() + self._every_s / LISTINGS
            for tenant in tenants:
                if not self._worker.closing.is_set() and self._is_due(tenant):
                    self.num_written += self._writer.write(tenant)
        except CorpusError as error:
            self.num_failures += 1
            logger.debug("no snapshot was written: %s", error)

    def _finish(self) -> None:
        """Publish the erasures that still wait. No other process knows about them."""
        try:
            self._repeat_erasures()
        except CorpusError as error:
            logger.warning("an erasure was not repeated for outputs that were sent too late: %s", error)

    def _repeat_erasures(self) -> None:
        while self._repeated:
            name, _ = self._repeated.popitem()
            try:
                self.erase(*name)
            except CorpusError:
                self._repeated[name] = None
                raise
        while self._restored:
            tenant, erasure = self._restored.popitem()
            self._log.store.mark(self._log.scope(tenant), erasure)

    def _is_due(self, tenant: str) -> bool:
        """Return True if the interval is over, the log has grown, and no other process wrote a snapshot."""
        now_s = self._clock()
        due_s, before = self._due.get(tenant, (None, None))
        if due_s is not None and now_s < due_s:
            return False
        snapshot = self._log.snapshot(tenant)
        cursor = snapshot.cursor if snapshot else START
        self._due[tenant] = (now_s + self._every_s * self._spread(), cursor)
        return due_s is not None and cursor == before and cursor != self._log.end(tenant)

    def _wait_and_step(self) -> None:
        if not self._worker.closing.wait(_PAUSE_S):
            self.step()
