"""The publisher: a thread that sends finished outputs to the store, where other engines read them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from agentspec.corpus.batch import Batch, Output, Tombstone, covers
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.outbox import FinishedOutput, Outbox, OutputQueue
from agentspec.corpus.threads import CircuitBreaker, Worker
from agentspec.errors import AgentSpecError, BatchError, CorpusError, DataKeyError

logger = logging.getLogger("agentspec")

BATCH_BYTES = 256 << 10
QUEUE_BYTES = 16 << 20
_ACTIVE_S = 10.0  # a tenant without a batch for so long needs no window
_TENANTS_PER_WINDOW = 8
_PAUSE_S = 0.02  # between two checks of the queue
_IDLE_S = 1.0  # after so long without outputs, the next output has to wake the thread


@dataclass(frozen=True, slots=True)
class PublisherFigures:
    """Counters of finished outputs.

    Attributes:
        num_published: number of outputs sent.
        num_skipped: number of outputs of stages that are not shared.
        num_dropped: number of outputs dropped because the queue was full or because they could not be sent.
        num_bytes: number of bytes sent.
        num_failures: number of failed calls of the store.
        since_success_s: seconds since the last successful call; None before the first.
    """

    num_published: int
    num_skipped: int
    num_dropped: int
    num_bytes: int
    num_failures: int
    since_success_s: float | None


class Publisher:
    """Publishes finished outputs, in batches per tenant. Thread-safe.

    Outputs wait in a bounded queue. A thread encodes them and calls the store. While calls fail, the thread
    makes pauses between them, and the queue drops its oldest outputs.

    Args:
        log: the log to publish to.
        origin: 16 random bytes that identify this process.
        memory: the outputs that the trees hold; shared with the learner, which adds other engines' outputs.
        window_s: seconds between two batches of a tenant; None = the store's. The window grows if more than
            eight tenants were active recently.
        batch_bytes: size at which a batch is sent before the window ends.
        queue_bytes: limit of the bytes of waiting outputs.
        is_shared: returns True if other engines get the outputs of the stage with this path.
        clock: monotonic seconds.

    Attributes:
        queue: takes finished outputs without checks, on the path of an answer. Their tokens must be valid.
    """

    def __init__(
        self,
        log: BatchLog,
        origin: bytes,
        memory: OutputMemory,
        *,
        window_s: float | None = None,
        batch_bytes: int = BATCH_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        is_shared: Callable[[tuple[str, ...]], bool] = lambda path: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._origin = origin
        self._memory = memory
        self._clock = clock
        self._is_shared = is_shared
        self._queue_bytes = queue_bytes
        self.queue = OutputQueue(queue_bytes)
        self._breaker = CircuitBreaker("publishing of outputs to other engines", clock)
        self._working = threading.Lock()  # guards the fields below; never held on the path of an answer
        self._window_s = log.store.window_s if window_s is None else window_s
        self._outboxes = defaultdict[str, Outbox](lambda: Outbox(self._window_s, batch_bytes))
        self._erased: set[str] = set()
        self._num_sent = self._num_skipped = self._num_lost = self._num_bytes = 0
        self._success_s: float | None = None
        self._busy_s = -math.inf  # time at which outputs were last taken from the queue
        self._deadline_s = math.inf  # deadline of close()
        self._worker = Worker("publisher", self._step, end=lambda: self.pump(is_last=True))

    # ---- outputs ----

    def publish(self, output: Output) -> None:
        """Queue a finished output within microseconds. Never blocks and never raises.

        Args:
            output: the caller must not change its tokens later.
        """
        ended_s = output.minute * 60.0
        self.queue.put((output.stage, output.tokens, output.subject, ended_s, output.session))

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send the waiting outputs, within the time-out."""
        self._deadline_s = self._clock() + timeout_s
        if not self._worker.is_alive:
            self.pump(is_last=True)
        self._worker.closing.set()
        self.queue.wake()
        self._worker.close(timeout_s)

    def pump(self, *, is_last: bool = False) -> float:
        """Send the batches that are due; all batches if ``is_last``.

        Returns:
            Seconds until the next batch is due, if no output arrives before.
        """
        with self._working:
            if (wait_s := self._breaker.wait_s) > 0 and not is_last:
                return wait_s
            try:
                self._send_unsent()
                self._take_finished()
                if is_last:
                    self._enter_epochs()
                self._send_due(is_last)
            except CorpusError as error:
                self._breaker.fail(error)
                return self._breaker.wait_s
            due_s = min((outbox.due_s for outbox in self._outboxes.values()), default=math.inf)
            return max(0.0, due_s - self._clock())

    def figures(self) -> PublisherFigures:
        """Return the present figures."""
        since_s = None if self._success_s is None else self._clock() - self._success_s
        num_dropped = self._num_lost + self.queue.num_dropped
        return PublisherFigures(
            *(self._num_sent, self._num_skipped, num_dropped, self._num_bytes),
            *(self._breaker.num_failures, since_s),
        )

    # ---- erasure ----

    def tenants(self) -> list[str]:
        """Return the tenants of all outputs so far, including outputs that were skipped or dropped.

        Nothing is sent for a tenant before :meth:`enter_epoch`.
        """
        return list(dict.fromkeys([*self._outboxes, *self._memory.noted_tenants()]))

    def next_number(self, tenant: str) -> int:
        """Return the sequence number of the tenant's next record."""
        with self._working:
            return self._outboxes[tenant].next_number

    def numbered(self, tenant: str, tombstone: Tombstone) -> Batch:
        """Return a batch that holds only this tombstone, with the next sequence number."""
        with self._working:
            return self._outboxes[tenant].number(self._origin, (tombstone,))

    def withdraw(self, tenant: str, tombstone: Tombstone) -> int:
        """Remove unsent outputs that an erasure covers. The memory keeps them, since the trees hold them.

        Returns:
            A sequence number: all records with lower numbers were sent before this call, or are withdrawn.
        """
        with self._working:
            for output in self.queue.withdraw(
                lambda stage, subject: stage.tenant == tenant and covers(tombstone, stage.path, subject)
            ):
                self._memory.add(output)
            self._note_dropped()
            outbox = self._outboxes[tenant]
            outbox.withdraw(tombstone)
            return outbox.next_number

    def enter_epoch(self, tenant: str, epoch: int) -> None:
        """Withdraw a tenant's outputs from before this epoch. Later outputs belong to it.

        The learner calls this before it reads the tenant's log, and therefore reads every later tombstone. If
        the tenant was ever erased, the erasure may be newer than the first outputs of this process.
        """
        with self._working:
            self._enter_epoch(tenant, epoch)

    def take_erased(self) -> set[str]:
        """Return the tenants erased since the last call. Their trees may hold older outputs."""
        with self._working:
            erased, self._erased = self._erased, set()
        return erased

    # ---- the caller holds the lock ----

    def _enter_epoch(self, tenant: str, epoch: int) -> None:
        if epoch > (self._outboxes[tenant].epoch or 0):
            self._clear(tenant)
        self._outboxes[tenant].epoch = epoch

    def _enter_epochs(self) -> None:
        """Read the epochs of newly active tenants, which the learner does not follow yet."""
        for tenant, outbox in list(self._outboxes.items()):
            if outbox.epoch is None:
                self._enter_epoch(tenant, self._log.marks(tenant).epoch)

    def _take_finished(self) -> None:
        self._note_dropped()
        now_s = self._clock()
        for finished in self.queue.take():
            self._busy_s = now_s
            try:
                self._add(finished)
            except AgentSpecError:  # e.g. invalid tokens; noted, so that an erasure empties the trees
                logger.exception("an output of %s can't be shared", finished.stage)
                self._memory.note(finished.stage, finished.subject)
            time.sleep(0)  # release the GIL between outputs, for a waiting decode step

    def _add(self, finished: FinishedOutput) -> None:
        outbox, output = self._outboxes[finished.stage.tenant], finished.output
        self._memory.add(output)
        if not self._is_shared(output.stage.path):
            self._num_skipped += 1
            return
        outbox.add(output)
        if outbox.epoch is None:
            self._limit_unentered()

    def _note_dropped(self) -> None:
        for stage, subject in self.queue.take_dropped():
            self._memory.note(stage, subject)

    def _limit_unentered(self) -> None:
        """Drop the oldest outputs of tenants without a known epoch, beyond the queue's limit of bytes.

        These outputs wait outside the queue until the store can be reached for the first time.
        """
        waiting = [outbox for outbox in self._outboxes.values() if outbox.epoch is None]
        while sum(outbox.num_bytes for outbox in waiting) > self._queue_bytes:
            max(waiting, key=lambda outbox: outbox.num_bytes).drop_oldest()
            self._num_lost += 1

    def _send_unsent(self) -> None:
        """Send the batches that failed before. Until that succeeds, outputs wait in the bounded queue."""
        for tenant, outbox in list(self._outboxes.items()):
            if outbox.unsent is not None:
                self._send(tenant, outbox.unsent)

    def _widen_windows(self) -> None:
        """Lengthen the windows while many tenants are active: the store takes a limited rate of batches."""
        active_s = self._clock() - _ACTIVE_S
        num_active = sum(outbox.was_sent_since(active_s) for outbox in self._outboxes.values())
        window_s = self._window_s * max(1.0, num_active / _TENANTS_PER_WINDOW)
        for outbox in self._outboxes.values():
            outbox.window_s = window_s

    def _send_due(self, is_last: bool) -> None:
        self._widen_windows()
        for tenant, outbox in list(self._outboxes.items()):
            while is_last or outbox.due_s <= self._clock():
                batch = outbox.cut(self._origin)
                if batch is None or self._clock() > self._deadline_s:
                    break
                self._send(tenant, batch)

    def _send(self, tenant: str, batch: Batch) -> None:
        """Publish an outbox's unsent batch. On CorpusError the batch stays in the outbox."""
        outbox = self._outboxes[tenant]
        num_outputs = sum(1 for _ in batch.outputs)
        try:
            num_bytes = self._log.publish(tenant, batch, outbox.epoch)
            outbox.is_refused = False
        except (DataKeyError, BatchError) as error:  # an error of this tenant only
            if not outbox.is_refused:
                logger.warning("outputs of tenant %s are not shared: %s", tenant, error)
            outbox.is_refused = True
            self._num_lost += num_outputs
            return outbox.sent(self._clock())
        if num_bytes is None:
            before, outbox.epoch = outbox.epoch, self._log.marks(tenant, outbox.epoch or 0).epoch
            if outbox.epoch != before:  # else the store lost the erasure: send again
                self._num_lost += num_outputs
                self._clear(tenant)
            return None
        self._breaker.succeed()
        self._success_s = self._clock()
        self._num_sent += num_outputs
        self._num_bytes += num_bytes
        return outbox.sent(self._success_s)

    def _clear(self, tenant: str) -> None:
        """Drop all outputs of a tenant, since they are older than its erasure."""
        self.queue.withdraw(lambda stage, _: stage.tenant == tenant)
        self._outboxes[tenant].clear()
        self._log.forget_key(tenant)
        self._erased.add(tenant)

    # ---- the thread ----

    def _step(self) -> None:
        wait_s = self.pump()
        if self._breaker.is_open:
            self._worker.closing.wait(wait_s)
        elif not self._worker.closing.wait(_PAUSE_S) and self._clock() > self._busy_s + _IDLE_S:
            self.queue.wait(min(wait_s, _IDLE_S))
